"""Reports: pages, charts, heat maps, tables and terminal output, and how numbers and untrusted text are written in them.

What enters are numbers and words: curves over rounds, weights of clients by round, rows of tables, texts that clients chose.
What leaves is one HTML file that needs nothing else (`page`), CSV and PNG files, and tables of rich. HTML is written by the
jinja2 templates in templates/, which escape all that is put into them; those for blocks of `fedhold.audit` and `fedhold.lab`
are there, too, beside the style sheet and the script that they need.

It may import jinja2, rich, `fedhold.kernels` for its array types, `fedhold.spec` for the names of rules, each of which has its
colour, and, for PNG files only, matplotlib.
"""

from fedhold.errors import visible
from fedhold.report.charts import Axis, Chart, Curve, Drawing, Tick, curve, draw
from fedhold.report.colours import COLOURS, FULL, Style, plain_styles, rule_style, rule_styles
from fedhold.report.figures import can_plot, save_png
from fedhold.report.formats import column, csv_cell, decimals, fixed, number
from fedhold.report.heatmap import (
    MOST_COLUMNS,
    MOST_ROWS,
    WeightMap,
    column_ticks,
    data_uri,
    group_means,
    groups,
    weight_map,
)
from fedhold.report.matrix import Entry, Facet, Matrix, Scale
from fedhold.report.pages import Block, Cards, Folded, Heading, Pair, Paragraph, Section, Source, page
from fedhold.report.tables import Table, file_paths, write_tables
from fedhold.report.terminal import ProgressLines, print_line, print_table, table_of
from fedhold.report.untrusted import one_line, quoted
from fedhold.report.weights import LOW, detection, held_down, weighs

__all__ = [
    "COLOURS",
    "FULL",
    "LOW",
    "MOST_COLUMNS",
    "MOST_ROWS",
    "Axis",
    "Block",
    "Cards",
    "Chart",
    "Curve",
    "Drawing",
    "Entry",
    "Facet",
    "Folded",
    "Heading",
    "Matrix",
    "Pair",
    "Paragraph",
    "ProgressLines",
    "Scale",
    "Section",
    "Source",
    "Style",
    "Table",
    "Tick",
    "WeightMap",
    "can_plot",
    "column",
    "column_ticks",
    "csv_cell",
    "curve",
    "data_uri",
    "decimals",
    "detection",
    "draw",
    "file_paths",
    "fixed",
    "group_means",
    "groups",
    "held_down",
    "number",
    "one_line",
    "page",
    "plain_styles",
    "print_line",
    "print_table",
    "quoted",
    "rule_style",
    "rule_styles",
    "save_png",
    "table_of",
    "visible",
    "weighs",
    "weight_map",
    "write_tables",
]
