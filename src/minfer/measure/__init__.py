"""How fast, how close to what the machine allows, and how true: what the measuring verbs do."""

from minfer.measure.bench import Opened, configured, floor_of, opened, run, time_case
from minfer.measure.cases import Case, Facts, Result, Setup, every_case, every_setup
from minfer.measure.chart import Line, bars, check_plot, plot_lines, plot_speeds, speeds
from minfer.measure.fidelity import (
    PERCENTILES,
    Base,
    Distances,
    compare,
    divergence,
    load_base,
    record_base,
    save_base,
)
from minfer.measure.fits import Fit, fit, parse_bytes
from minfer.measure.floor import Floor, cpu_floor, measure_floor, step_seconds
from minfer.measure.machine import commit, cpu_name
from minfer.measure.ops import OpTime, kind_of, time_ops
from minfer.measure.report import (
    FIELDS,
    csv_rows,
    json_rows,
    jsonl_rows,
    markdown,
    record,
    sql_rows,
)
from minfer.measure.scoring import Chunks, Estimate, cut, log_softmax, perplexity, score
from minfer.measure.values import numbers, pairs

__all__ = [
    "FIELDS",
    "PERCENTILES",
    "Base",
    "Case",
    "Chunks",
    "Distances",
    "Estimate",
    "Facts",
    "Fit",
    "Floor",
    "Line",
    "OpTime",
    "Opened",
    "Result",
    "Setup",
    "bars",
    "check_plot",
    "commit",
    "compare",
    "configured",
    "cpu_floor",
    "cpu_name",
    "csv_rows",
    "cut",
    "divergence",
    "every_case",
    "every_setup",
    "fit",
    "floor_of",
    "json_rows",
    "jsonl_rows",
    "kind_of",
    "load_base",
    "log_softmax",
    "markdown",
    "measure_floor",
    "numbers",
    "opened",
    "pairs",
    "parse_bytes",
    "perplexity",
    "plot_lines",
    "plot_speeds",
    "record",
    "record_base",
    "run",
    "save_base",
    "score",
    "speeds",
    "sql_rows",
    "step_seconds",
    "time_case",
    "time_ops",
]
