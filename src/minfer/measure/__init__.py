"""How fast, how close to what the machine allows, and how true: what the measuring verbs do."""

from minfer.measure.bench import Opened, configured, floor_of, opened, run, time_case
from minfer.measure.cases import Case, Facts, Result, Setup, every_case, every_setup
from minfer.measure.chart import Line, bars, check_plot, plot_lines, plot_speeds, speeds
from minfer.measure.floor import Floor, cpu_floor, measure_floor, step_seconds
from minfer.measure.machine import commit, cpu_name
from minfer.measure.ops import OpTime, kind_of, time_ops
from minfer.measure.report import FIELDS, csv_rows, json_rows, jsonl_rows, markdown, record
from minfer.measure.values import numbers, pairs

__all__ = [
    "FIELDS",
    "Case",
    "Facts",
    "Floor",
    "Line",
    "OpTime",
    "Opened",
    "Result",
    "Setup",
    "bars",
    "check_plot",
    "commit",
    "configured",
    "cpu_floor",
    "cpu_name",
    "csv_rows",
    "every_case",
    "every_setup",
    "floor_of",
    "json_rows",
    "jsonl_rows",
    "kind_of",
    "markdown",
    "measure_floor",
    "numbers",
    "opened",
    "pairs",
    "plot_lines",
    "plot_speeds",
    "record",
    "run",
    "speeds",
    "step_seconds",
    "time_case",
    "time_ops",
]
