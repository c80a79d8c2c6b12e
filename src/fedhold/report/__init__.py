from fedhold.report.charts import draw
from fedhold.report.curves import COLOURS, Chart, Curve, curve, number, round_numbers
from fedhold.report.heatmap import FULL, detection, draw_weights, flagged, picture
from fedhold.report.plots import can_plot, plot, plot_weights
from fedhold.report.tables import Table, file_paths, write_tables
from fedhold.report.terminal import print_table, table_of
from fedhold.report.untrusted import quoted, visible

__all__ = [
    "COLOURS",
    "FULL",
    "Chart",
    "Curve",
    "Table",
    "can_plot",
    "curve",
    "detection",
    "draw",
    "draw_weights",
    "file_paths",
    "flagged",
    "number",
    "picture",
    "plot",
    "plot_weights",
    "print_round",
    "print_table",
    "quoted",
    "round_numbers",
    "table_of",
    "visible",
    "write_tables",
]
