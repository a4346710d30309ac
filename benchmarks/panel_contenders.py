"""The rules that the panel compares, by name; what each is, is the first line of its docstring.

`VARIANTS` are the landed rule with one part changed, for two classes: they say how flat its optimum is and what its
excess consists of. They are no candidates and stay on the half there is to choose on.
"""

from functools import partial

from benchmarks.panel_alternatives import varied
from benchmarks.panel_calibrated import calibrated
from benchmarks.panel_cells import Cell, Floats, Rule
from benchmarks.panel_counts import whitened_counts
from benchmarks.panel_halfway import halfway
from benchmarks.panel_posterior import posterior
from benchmarks.panel_rules import landed
from privopt.planning.whitening import SHARE, WhiteningRule
from privopt.problems.losses import Logistic


def default(cell: Cell) -> Floats:
    """The library's default: whitened descent, rescaled for two classes, for counts from their released mean."""
    if cell.problem.kind == "counts":
        return whitened_counts(cell)
    return calibrated(cell) if isinstance(cell.loss, Logistic) else landed(cell)


RULES: dict[str, Rule] = {
    "landed": landed,
    "default": default,
    "halfway": halfway,
    "posterior": posterior,
    "calibrated": calibrated,
}


def fifth_of_the_ridge(cell: Cell) -> Floats:
    """Whitened descent with a fifth of the default's ridge."""
    return varied(cell, strength=0.2 * WhiteningRule.of(cell.instance, SHARE).ridge)


VARIANTS: dict[str, Rule] = {
    "the smaller ridge of halfway alone": partial(halfway, newton=0.0),
    "a fifth of the ridge": fifth_of_the_ridge,
    "half the steps": partial(varied, pace=0.5),
    "twice the steps": partial(varied, pace=2.0),
    "half the clip": partial(varied, clip=0.5),
    "twice the clip": partial(varied, clip=2.0),
    "half the second moment's share": partial(varied, share=0.5 * SHARE),
    "twice the second moment's share": partial(varied, share=2.0 * SHARE),
    "no noise in the gradients (not private)": partial(varied, noise=0.0),
}
