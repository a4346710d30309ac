"""The solvers of games that every contract test runs over: add a line here and a newcomer is tested."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.contracts.cases import is_repeated

from privopt.data.units import Units
from privopt.games.base import GameSolver
from privopt.games.dual_averaging import NoisyExponentiatedGradient, SampledDualAveraging
from privopt.games.gradients import Drawn, Noised
from privopt.games.noisy_extragradient import NoisyExtragradient, SaddleGradientDescent
from privopt.games.noisy_matrix import NoisyMatrix
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.best_response import BestResponse
from privopt.papers.bias_reduced_mirror_descent import BiasReducedMirrorDescent
from privopt.papers.boosted_saddle import BoostedSaddle
from privopt.papers.saddle_mirror_descent import SaddleMirrorDescent
from privopt.problems.constraints import L1Ball, Simplex
from privopt.problems.saddle import BilinearGame, Game, SaddleProblem
from privopt.solvers.frank_wolfe import FrankWolfe

N = 24
BUDGET = Budget(2.0, 1e-5)
RELATIONS = ("replace-one", "add-or-remove-one")


@dataclass(frozen=True)
class GameCase:
    """A solver on a game, of records or of users with two records each."""

    name: str
    solver: GameSolver
    game: Game
    relations: tuple[str, ...] = RELATIONS
    by_user: bool = False
    budget: Budget = BUDGET


def own_payoff(x, y, features, target):
    """A user-written payoff, bent in both strategies."""
    return (
        jnp.sum(jnp.sin(features * x)) * (1.0 + y[0] * target) + 0.1 * jnp.sum(x * x) - 0.1 * jnp.sum(y * y)
    )


MATRIX = BilinearGame(rows=2, columns=3)
OFFSETS = BilinearGame(rows=2, columns=2, offsets=True, entries=(-0.5, 1.0))
OWN = SaddleProblem(own_payoff, x=L1Ball(1.5), y=Simplex(), sizes=(5, 2), curvatures=(0.2, 0.2))
LONELY = BilinearGame(rows=1, columns=3)
_FEW = {"steps": 5}

EVERY_GAME = (
    GameCase("sampled dual averaging", SampledDualAveraging(**_FEW), MATRIX),
    GameCase("sampled dual averaging, derived", SampledDualAveraging(), OFFSETS),
    GameCase("sampled dual averaging, one pass", SampledDualAveraging(batches="one pass", **_FEW), MATRIX),
    GameCase("sampled dual averaging, own payoff", SampledDualAveraging(**_FEW), OWN),
    GameCase(
        "sampled dual averaging, own payoff, one pass",
        SampledDualAveraging(batches="one pass", steps=3),
        OWN,
        relations=("add-or-remove-one",),
    ),
    GameCase(
        "sampled dual averaging, users", SampledDualAveraging(x=Drawn(draws=3), **_FEW), MATRIX, by_user=True
    ),
    GameCase("sampled dual averaging, own payoff, users", SampledDualAveraging(**_FEW), OWN, by_user=True),
    GameCase("sampled dual averaging, one noised", SampledDualAveraging(y=Noised(), **_FEW), OFFSETS),
    GameCase(
        "sampled dual averaging, both noised, one pass",
        SampledDualAveraging(x=Noised(clip=0.3), y=Noised(), batches="one pass", steps=4),
        OWN,
        relations=("replace-one",),
    ),
    GameCase("mirror descent, paper", SaddleMirrorDescent(schedule="paper", steps=4, draws=2), MATRIX),
    GameCase(
        "mirror descent, epochs, fresh",
        SaddleMirrorDescent(schedule="epochs", steps=6, epochs=2, draws=2, output="fresh"),
        MATRIX,
        by_user=True,
    ),
    GameCase(
        "mirror descent, decreasing, fresh",
        SaddleMirrorDescent(schedule="decreasing", output="fresh", steps=5),
        OFFSETS,
    ),
    GameCase("noisy exponentiated gradient", NoisyExponentiatedGradient(**_FEW), OFFSETS, by_user=True),
    GameCase("noisy matrix", NoisyMatrix(), OFFSETS),
    GameCase("noisy matrix, users", NoisyMatrix(), MATRIX, by_user=True),
    GameCase("gradient descent and ascent", SaddleGradientDescent(**_FEW), MATRIX),
    GameCase(
        "gradient descent and ascent, own payoff",
        SaddleGradientDescent(clip_x=0.5, **_FEW),
        OWN,
        relations=("add-or-remove-one",),
    ),
    GameCase("noisy extragradient", NoisyExtragradient(steps=3), MATRIX, by_user=True),
    GameCase("noisy extragradient, own payoff", NoisyExtragradient(steps=3), OWN),
    GameCase("noisy extragradient, one vertex", NoisyExtragradient(steps=2), LONELY, ("replace-one",)),
    GameCase("best response", BestResponse(**_FEW), MATRIX, by_user=True),
    GameCase("best response, own payoff", BestResponse(steps=4), OWN, relations=("replace-one",)),
    GameCase("sampled dual averaging, one vertex", SampledDualAveraging(held=False, **_FEW), LONELY),
    GameCase("bias-reduced mirror descent", BiasReducedMirrorDescent(effort=6.0), MATRIX),
    GameCase(
        "bias-reduced mirror descent, own payoff, first half",
        BiasReducedMirrorDescent(effort=6.0, highest_level=1, differences="first half", schedule_seed=3),
        OWN,
    ),
    GameCase(
        "bias-reduced mirror descent, derived, users",
        BiasReducedMirrorDescent(),
        OWN,
        relations=("add-or-remove-one",),
        by_user=True,
    ),
    GameCase(
        "bias-reduced mirror descent, one vertex",
        BiasReducedMirrorDescent(effort=5.0),
        LONELY,
        ("replace-one",),
    ),
    GameCase(
        "boosted saddle",
        BoostedSaddle(candidates=3, forced=True, inner=SampledDualAveraging(**_FEW)),
        OFFSETS,
    ),
    GameCase(
        "boosted saddle, own payoff",
        BoostedSaddle(
            candidates=2,
            answers=1,
            forced=True,
            inner=SampledDualAveraging(steps=3),
            x_answers=FrankWolfe(steps=2),
            y_answers=FrankWolfe(steps=2),
        ),
        OWN,
    ),
    GameCase(
        "boosted saddle, users",
        BoostedSaddle(candidates=2, forced=True, inner=SampledDualAveraging(batches="one pass", steps=2)),
        MATRIX,
        by_user=True,
    ),
    GameCase(
        "boosted saddle, one run",
        BoostedSaddle(candidates=1, inner=SampledDualAveraging(**_FEW)),
        MATRIX,
        ("replace-one",),
    ),
)


def _marks(case: GameCase, relation: str) -> tuple[Any, ...]:
    """Each case runs under one relation, in turn; under both where there is time."""
    turn = EVERY_GAME.index(case) % 2
    waits = is_repeated(case, EVERY_GAME) or (len(case.relations) > 1 and relation != case.relations[turn])
    return (pytest.mark.audit,) if waits else ()


_PAIRS = [(case, relation) for case in EVERY_GAME for relation in case.relations]
GAMES = [pytest.param(*pair, marks=_marks(*pair), id=f"{pair[0].name}, {pair[1]}") for pair in _PAIRS]
GAME_PAIRS = [pytest.param(pair, marks=_marks(*pair), id=f"{pair[0].name}, {pair[1]}") for pair in _PAIRS]


def toy_rows(case: GameCase, seed: int = 0):
    """Features and targets that the case's game is about."""
    rng = np.random.default_rng(seed)
    width = getattr(case.game, "width", case.game.x.vertices.dimension)
    return rng.choice([-1.0, 1.0, 0.3], size=(N, width)), rng.normal(size=N)


def as_units(case: GameCase, features, targets, relation: str) -> Units:
    """The rows as units; two records a user where the case is about users."""
    rows = {"relation": relation, "row_bound": 4.0, "storage": "float64"}
    if not case.by_user:
        return Units.from_arrays(features, targets, n=N, **rows)
    return Units.from_arrays(
        features,
        targets,
        n=N // 2,
        groups=np.arange(len(features)) // 2,
        max_records_per_user=3,
        noise=NoiseSource(7),
        **rows,
    )


def neighbours(case: GameCase, relation: str, features, targets, last):
    """Two data sets that differ in their last unit: its last record is another one, or the unit is gone."""
    other = features.copy()
    other[-1] = last
    kept = -2 if case.by_user else -1
    if relation == "replace-one":
        sides = (features, targets), (other, targets)
    else:
        sides = (other, targets), (other[:kept], targets[:kept])
    return [as_units(case, *side, relation) for side in sides]
