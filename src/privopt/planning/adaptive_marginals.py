"""Defaults and forecast of adaptive marginals, from public numbers.

With kappa = n / s the loudness of the data (`planning.synthesis.loudness`), m columns of D cells in all:
the start gets 1.8 nu^(1/3) of the budget, nu = sqrt(2 / pi) D / (2 sqrt(m) kappa) the mean total variation that noise
of the whole budget causes in a column; and m sqrt(kappa) / 20 marginals are chosen, in up to six rounds. All three were
chosen on a half of adult_discrete and on compas, german, randhie and fars, at epsilon from 0.1 to 3, where doubling or
halving one of them moves the mean error by a few hundredths of itself: `docs/synthetic-data.md`. Utility only.
"""

import math
from typing import Any

from privopt.planning.effort import PRODUCT_SECONDS
from privopt.planning.forecast import Forecast
from privopt.planning.plan import Finding
from privopt.planning.synthesis import NORMAL_MEAN, WorkloadTask, cell_finding, cell_noise, loudness
from privopt.problems.workload import MOST_BYTES, Workload, cells_of

MOST_ROUNDS = 6
START_SLOPE, LARGEST_START, SMALLEST_START = 1.8, 0.8, 0.02
CHOICES_SLOPE = 1.0 / 20.0
SIZE_POWER = 2.0 / 3.0  # of a column's cells, to which its part of the start is proportional
SELECTION = 0.07  # of what the start leaves
HARMLESS, MOST_SMALL = 0.03, 100.0  # total variation of a marginal by noise; choices for its sake
LARGEST_MARGINAL = 2**22  # cells of a candidate


def candidates(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """The marginals that may be chosen: those asked for of at least two columns, and the pairs within them."""
    found: dict[tuple[int, ...], None] = {}
    for columns in workload.sets:
        ordered = tuple(sorted(columns))
        for place, first in enumerate(ordered):
            found.update(((first, second), None) for second in ordered[place + 1 :])
        if len(ordered) > 2 and cells_of(workload.levels, ordered) <= LARGEST_MARGINAL:
            found[ordered] = None
    return tuple(sorted(found, key=lambda one: (len(one), one)))


def asked(workload: Workload) -> Workload:
    """What is counted and held: every column alone, then the candidates."""
    singles = tuple((column,) for column in range(len(workload.levels)))
    return Workload(workload.levels, sets=singles + candidates(workload))


def too_large(workload: Workload) -> str | None:
    """Why what is counted would not fit into memory, or None."""
    cells = sum(workload.levels) + sum(cells_of(workload.levels, columns) for columns in candidates(workload))
    if 8 * cells <= MOST_BYTES:
        return None
    return (
        f"it would hold {cells:.2g} cells of marginals, {8 * cells / 2**30:.1f} GiB; ask for fewer columns at once, "
        "fewer column sets or coarser bins"
    )


def column_noise(task: WorkloadTask) -> float:
    """nu: mean total variation that noise causes in a column where the columns get the whole budget."""
    levels = task.problem.levels
    return NORMAL_MEAN * sum(levels) / (2.0 * math.sqrt(len(levels)) * loudness(task))


def total_choices(task: WorkloadTask) -> int:
    """How many marginals are chosen in all: m sqrt(kappa) / 20, and more where marginals are small.

    Many small marginals can be measured before the noise of each has a total variation of 0.03. At least 1 where there
    are candidates, at most twice as many as there are.
    """
    sizes = [cells_of(task.problem.levels, columns) for columns in candidates(task.problem)]
    if not sizes:
        return 0
    loud, typical = loudness(task), sum(sizes) / len(sizes)
    small = (2.0 * HARMLESS * loud / (NORMAL_MEAN * typical)) ** 2
    total = CHOICES_SLOPE * len(task.problem.levels) * math.sqrt(loud) + min(small, MOST_SMALL)
    return max(1, min(round(total), 2 * len(sizes)))


def default_rounds(program: Any, task: WorkloadTask) -> int:
    """Six, or fewer where fewer marginals are chosen."""
    del program
    return min(MOST_ROUNDS, total_choices(task))


def default_choices(program: Any, task: WorkloadTask) -> int:
    """What is chosen in all over the rounds, at most all candidates a round."""
    total = total_choices(task)
    return max(1, min(round(total / program.rounds), len(candidates(task.problem)))) if program.rounds else 1


def default_start_share(program: Any, task: WorkloadTask) -> float:
    """More for the columns alone the noisier they would be; all where nothing is chosen."""
    if program.rounds == 0:
        return 1.0
    return min(LARGEST_START, max(SMALLEST_START, START_SLOPE * column_noise(task) ** (1.0 / 3.0)))


def default_columns(program: Any, task: WorkloadTask) -> int:
    """As many as the table has."""
    del program
    return len(task.problem.levels)


DEFAULTS = {
    "columns": default_columns,
    "rounds": default_rounds,
    "choices": default_choices,
    "start_share": default_start_share,
}


def start_shares(program: Any, levels: tuple[int, ...]) -> tuple[float, ...]:
    """Each column's part of the budget: a column of d cells gets d^(2/3), which makes the summed errors least."""
    sizes = [level**SIZE_POWER for level in levels]
    return tuple(program.start_share * size / math.fsum(sizes) for size in sizes)


def choice_shares(program: Any) -> tuple[float, float]:
    """The parts of the budget for one choice, and for measuring what was chosen."""
    each = (1.0 - program.start_share) / max(1, program.rounds * program.choices)
    return each * program.selection_share, each * (1.0 - program.selection_share)


def fit_seconds(program: Any, workload: Workload) -> float:
    """Three products for each measured cell and step, an exponential for each logit."""
    sizes = [cells_of(workload.levels, columns) for columns in candidates(workload)]
    typical = sum(sizes) / max(1, len(sizes))
    chosen = program.choices * program.rounds * (program.rounds + 1) / 2
    products = 3.0 * program.components * program.steps * chosen * typical * 2.0 * PRODUCT_SECONDS
    logits = (program.rounds + 1) * program.steps * program.components * sum(workload.levels) * 4e-8
    return products + logits


def forecast(program: Any, task: WorkloadTask) -> Forecast:
    """The noise of what is measured, and notices where it drowns everything."""
    levels = task.problem.levels
    starts = start_shares(program, levels)
    noise = [cell_noise(program.noise_multiplier, share, task) for share in starts]
    variation = [NORMAL_MEAN * level * one / 2 for level, one in zip(levels, noise, strict=True)]
    typical = sum(variation) / len(variation)
    found = {
        "column_noise": Finding(
            typical,
            "the mean total variation that the noise alone causes in a column before the model is fitted",
        )
    }
    if program.rounds:
        _, measuring = choice_shares(program)
        chosen = cell_noise(program.noise_multiplier, measuring, task)
        found["cell_noise"] = cell_finding(chosen, "a chosen marginal")
    notices = ()
    if typical > 0.5:
        notices = (
            f"the noise on the columns alone has a total variation of about {typical:.2g}: the sample will say little. "
            "More units, a larger epsilon, or columns with fewer cells would help.",
        )
    return Forecast(
        meaning="there is no formula for the error of a model; see the indicators",
        indicators=found,
        notices=notices,
    )
