"""Every synthesizer by name, and the default choice."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from privopt.planning.cell_weights import parts
from privopt.planning.synthesis import MOST_CELLS, NORMAL_MEAN, WorkloadTask, loudness
from privopt.synthesis.adaptive_marginals import AdaptiveMarginals
from privopt.synthesis.base import Synthesizer
from privopt.synthesis.gaussian_marginals import GaussianMarginals
from privopt.synthesis.mwem import MWEM
from privopt.synthesis.pmw import PrivateMultiplicativeWeights
from privopt.synthesis.query_game import QueryGame
from privopt.synthesis.query_game_ml import QueryGameML

SYNTHESIZERS: dict[str, Callable[[], Synthesizer]] = {
    "adaptive-marginals": AdaptiveMarginals,
    "gaussian-marginals": GaussianMarginals,
    "mwem": MWEM,
    "query-game-ml": QueryGameML,
    "query-game": QueryGame,
    "pmw": PrivateMultiplicativeWeights,
}
FAINT = 0.03  # mean total variation of a marginal by noise on all of them
SMALL_MARGINALS = 16.0  # cells, on average
MANY_SLOPE = 10.0  # marginals, over the square root of the loudness


class SynthesizerChoice(NamedTuple):
    """A synthesizer, and why "auto" took it: the end of a sentence after "because"; empty where the user named it."""

    synthesizer: Synthesizer
    reason: str = ""


def choose_synthesizer(method: Synthesizer | str, task: WorkloadTask) -> SynthesizerChoice:
    """The synthesizer meant by a name, an instance, or "auto", see `automatic_synthesizer`.

    Raises:
        TypeError: it is neither a name nor a synthesizer.
        ValueError: an unknown name, or a synthesizer that cannot model such a table.
    """
    given: Any = method
    if not isinstance(given, str | Synthesizer):
        what = given.__name__ + " itself" if isinstance(given, type) else type(given).__name__
        raise TypeError(
            f"method must be 'auto', a name such as 'mwem', or a synthesizer like MWEM(), got {what}."
        )
    if isinstance(method, str) and method != "auto" and method not in SYNTHESIZERS:
        raise ValueError(
            f"method must be 'auto', one of {sorted(SYNTHESIZERS)} or a synthesizer, got {method!r}."
        )
    if method == "auto":
        choice = automatic_synthesizer(task)
    else:
        choice = SynthesizerChoice(SYNTHESIZERS[method]() if isinstance(method, str) else method)
    choice.synthesizer.check_applicable(task.problem, task.public)
    return choice


def all_noise(task: WorkloadTask) -> float:
    """The mean total variation of a marginal that Gaussian noise on all of them causes, before the fit."""
    sets = parts(task.problem)
    return NORMAL_MEAN / 2.0 * (task.problem.size / sets) * math.sqrt(sets) / loudness(task)


def automatic_synthesizer(task: WorkloadTask) -> SynthesizerChoice:
    """The default choice, from public numbers.

    Queries that are no marginals: Gaussian noise on all of them where it is faint (0.03 of their range), else the game
    with a likelihood refit. Marginals of a table whose cells can all be
    weighed: Gaussian noise on all of them, where that noise is faint (a mean total variation of 0.03) or marginals are
    small (16 cells on average) and not many (10 sqrt(kappa)); MWEM for many small ones. Everything else: adaptive
    marginals. Measured: `docs/synthetic-data.md`.
    """
    workload = task.problem
    if workload.queries is not None:
        noise = math.sqrt(workload.size) / loudness(task)
        if noise <= FAINT:
            reason = f"noise on all {workload.size:,} queries is faint, {noise:.2g} of a query's range"
            return SynthesizerChoice(GaussianMarginals(), reason)
        return SynthesizerChoice(
            QueryGameML(),
            f"noise on all {workload.size:,} queries would be loud, {noise:.2g} of a query's range",
        )
    if workload.universe > MOST_CELLS:
        return SynthesizerChoice(
            AdaptiveMarginals(), f"the joint table has {workload.universe:.2g} cells, too many to weigh each"
        )
    sets, noise = parts(workload), all_noise(task)
    if noise <= FAINT:
        reason = f"noise on all {sets:,} marginals is faint, a mean total variation of {noise:.2g}"
        return SynthesizerChoice(GaussianMarginals(), reason)
    if workload.size > SMALL_MARGINALS * sets:
        reason = f"noise on all {sets:,} marginals would be loud, a mean total variation of {noise:.2g}"
        return SynthesizerChoice(AdaptiveMarginals(), reason)
    if sets <= MANY_SLOPE * math.sqrt(loudness(task)):
        return SynthesizerChoice(GaussianMarginals(), f"the {sets:,} marginals are small and not many")
    return SynthesizerChoice(MWEM(), f"the {sets:,} marginals are small and many")
