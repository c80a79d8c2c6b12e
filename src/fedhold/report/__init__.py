"""Reports: pages, charts, heat maps, tables and terminal output, and how numbers and untrusted text are written in them.

What enters are numbers and words: curves over rounds, weights of clients by round, rows of tables, texts that clients chose.
What leaves is one HTML file that needs nothing else (`page`), CSV, PNG and PDF files, and tables of rich. HTML is written by
the jinja2 templates in templates/, which escape all that is put into them. Those for blocks of `fedhold.lab` are there, too,
beside the style sheet and the script that they need.

It may import `fedhold.kernels` for its array types and `fedhold.spec` for the names of rules, each of which has its colour.
jinja2, rich and matplotlib are loaded when the first page, table or figure is made.
"""

from fedhold.errors import one_line, visible
from fedhold.report.charts import Axis, Chart, Curve, curve
from fedhold.report.colours import COLOURS, FULL, Style, plain_styles, rule_style, rule_styles
from fedhold.report.figures import Figure, can_plot
from fedhold.report.heatmap import HeatMap, Mark, weight_map
from fedhold.report.matrix import Entry, Facet, Matrix, Scale
from fedhold.report.pages import Block, Cards, Folded, Heading, Paragraph, Section, Source, page
from fedhold.report.tables import Table, column, decimals, file_paths, fixed, number, quoted, write_tables
from fedhold.report.terminal import ProgressLines, print_blocks, print_line, print_table, table_of
from fedhold.report.weights import LOW, detection, held_down, weighs

__all__ = [
    "COLOURS",
    "FULL",
    "LOW",
    "Axis",
    "Block",
    "Cards",
    "Chart",
    "Curve",
    "Entry",
    "Facet",
    "Figure",
    "Folded",
    "Heading",
    "HeatMap",
    "Mark",
    "Matrix",
    "Paragraph",
    "ProgressLines",
    "Scale",
    "Section",
    "Source",
    "Style",
    "Table",
    "can_plot",
    "column",
    "curve",
    "decimals",
    "detection",
    "file_paths",
    "fixed",
    "held_down",
    "number",
    "one_line",
    "page",
    "plain_styles",
    "print_blocks",
    "print_line",
    "print_table",
    "quoted",
    "rule_style",
    "rule_styles",
    "table_of",
    "visible",
    "weighs",
    "weight_map",
    "write_tables",
]
