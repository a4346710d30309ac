"""The rules that the panel compares, by name; what each is, is the first line of its docstring."""

from benchmarks.panel_calibrated import calibrated
from benchmarks.panel_cells import Cell, Floats, Rule
from benchmarks.panel_counts import whitened_counts
from benchmarks.panel_halfway import halfway
from benchmarks.panel_posterior import posterior
from benchmarks.panel_rules import landed


def default(cell: Cell) -> Floats:
    """The library's default: whitened descent, for counts from their released mean."""
    return whitened_counts(cell) if cell.problem.kind == "counts" else landed(cell)


RULES: dict[str, Rule] = {
    "landed": landed,
    "default": default,
    "halfway": halfway,
    "posterior": posterior,
    "calibrated": calibrated,
}
