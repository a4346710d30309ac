"""Every query of the library, on rows of four columns: add a line here and a newcomer meets the hostile rows."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

import privopt
from privopt.data.units import Units
from privopt.problems import losses
from privopt.problems.black_box import BlackBox
from privopt.problems.constraints import L1Ball, L2Ball, Simplex
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, Ridge
from privopt.problems.saddle import BilinearGame, SaddleProblem
from privopt.problems.vertices import CrossPolytopeVertices, ListedVertices, SimplexVertices
from privopt.problems.workload import Workload
from privopt.proofs.one_pass import GrowingBatches
from privopt.queries.base import FunctionOfMean, MeanQuery, Query
from privopt.queries.gradient_norms import (
    AveragedGradient,
    GradientAndCount,
    GradientNorms,
    NormCounts,
    ValueNormCounts,
)
from privopt.queries.groups import (
    GroupedGradient,
    GroupedVertexScores,
    GroupLosses,
    GroupLossScores,
    GroupShares,
)
from privopt.queries.lots import LocalPass
from privopt.queries.marginals import (
    CellErrors,
    HeldAnswer,
    HeldMarginal,
    MarginalDistances,
    MarginalMeans,
    MeanDistance,
    QueryMeans,
    SignedErrors,
    TableAnswer,
    TableAnswerError,
)
from privopt.queries.minimisers import (
    DescentEnd,
    HuberisedMinimiser,
    NoisyPass,
    PassAverage,
    PerturbedMinimiser,
)
from privopt.queries.moments import (
    ColumnMagnitudes,
    NewtonDirection,
    SecondMoment,
    TargetMagnitudes,
    TopCurvature,
    TotalWeight,
    UsableUnits,
    UserAverage,
)
from privopt.queries.payoffs import (
    BiasReducedGradient,
    CandidateGaps,
    CandidatePayoffs,
    PayoffGradient,
    PayoffMeans,
    PayoffSlope,
    PlayerGradient,
    PlayerSlope,
)
from privopt.queries.safeguards import is_ours
from privopt.queries.scores import (
    Accuracy,
    BoundedLoss,
    HoldoutScores,
    PartScores,
    PolytopeScores,
    VertexScores,
    VertexSlopeChanges,
    VertexSlopes,
)
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference, GradientNorm, MixedGradient
from privopt.queries.smoothed import (
    JitteredGradient,
    LuneDifference,
    SmoothedDifference,
    SmoothedGradient,
    TranslatedDifference,
)
from privopt.queries.values import (
    CandidateValues,
    PlacedValueDifference,
    PlacedValueGradient,
    ValueDifference,
    ValueGradient,
)

D = 4
ROW_BOUND = 1.5
AT, FAR, BEFORE = (
    np.array([0.3, -0.2, 0.5, 1.0]),
    np.array([30.0, -2e3, 5.0, 1.0]),
    np.array([0.1, 0.2, -0.3, 0.0]),
)
CORNERS = np.array([[2.0, 0.0, 0.0, 0.0], [0.0, 1e3, -1.0, 0.5], [-1.0, 1.0, 1.0, 1.0]])
LEVELS = (3, 2, 4, 2)  # of the coded tables that some queries are asked of
WIDE, WIDE_BEFORE = np.outer(AT, [1.0, -0.5, 0.2]), np.outer(BEFORE, [1.0, 2.0, -1.0])


def own_residual(params, features, target):
    """A user-written loss whose gradient is as long as its data."""
    return 0.5 * (features @ params - target) ** 2


def own_payoff(x, y, features, target):
    """A user-written payoff, bent in both strategies."""
    return jnp.sum(jnp.sin(features * x)) * (1.0 + y[0] * target) - 0.1 * jnp.sum(y * y) * jnp.sum(
        features**2
    )


OWN_GAME = SaddleProblem(own_payoff, x=L1Ball(2.0), y=Simplex(), sizes=(4, 2))
SCALED_GAME = SaddleProblem(own_payoff, x=L1Ball(2.0), y=Simplex(), sizes=(4, 2), clip="scale")


@dataclass(frozen=True)
class PlainSquared(losses.Squared):
    """The squared loss without a compiled kernel: by blocks, in JAX."""

    @property
    def facts(self):
        return replace(super().facts, kernel_code=None)


PLAIN = PlainSquared()
OWN, SOFTMAX, SQUARED = losses.RecordLoss(own_residual), losses.softmax(3), losses.squared
HULL = ListedVertices(np.array([[1.0, 0.0, 2.0, -1.0], [0.0, -3.0, 0.5, 0.1], [1.0, 1.0, 1.0, 1.0]]))
BOX = Problem.of_values(BlackBox(own_residual, value_range=(-1e3, 1e3), scale=2.0), AT).loss
HADAMARD = 0.5 * np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1.0]])
_RIDGE = Problem(losses.logistic, Ridge(0.1))
GROUPED = GroupedLoss(losses.logistic, 2, (0.7, 0.3))
_GROUP_WEIGHTS = np.array([0.4, 2.5])

EVERY_QUERY: dict[str, Query] = {
    "gradient, logistic": ClippedGradient(loss=losses.logistic, at=AT, clip=0.4),
    "gradient, ramp": ClippedGradient(loss=losses.ramp(), at=AT, clip=2.0),
    "gradient, capped, not compiled": ClippedGradient(
        loss=losses.capped(0.7, "quantile", quantile=0.2), at=AT, clip=2.0
    ),
    "gradient, logistic, balanced": ClippedGradient(loss=losses.logistic, at=FAR, clip=0.3, balanced=True),
    "gradient, squared": ClippedGradient(loss=SQUARED, at=AT, clip=0.4),
    "gradient, squared, tiny clip": ClippedGradient(loss=SQUARED, at=FAR, clip=3e-16),
    "gradient, squared, huge clip": ClippedGradient(loss=SQUARED, at=FAR, clip=1e99),
    "gradient, poisson": ClippedGradient(loss=losses.poisson(2.0, 5.0), at=AT, clip=0.4),
    "gradient, softmax": ClippedGradient(loss=SOFTMAX, at=WIDE, clip=0.4),
    "gradient, own loss": ClippedGradient(loss=OWN, at=AT, clip=0.4),
    "gradient, own loss, tiny clip": ClippedGradient(loss=OWN, at=AT, clip=3e-16),
    "gradient, no kernel": ClippedGradient(loss=PLAIN, at=AT, clip=0.4),
    "gradient norm": GradientNorm(loss=SQUARED, at=AT, clip=0.4),
    "gradient and count": GradientAndCount(loss=SQUARED, at=AT, clip=0.4, height=0.1),
    "gradient and count, mapped": GradientAndCount(
        loss=losses.logistic, at=AT, clip=0.4, height=0.1, row_map=np.eye(D)[:, :3] * 2.0, centre=AT[:3]
    ),
    "gradient and count, no kernel": GradientAndCount(
        loss=PLAIN, at=AT, clip=0.4, height=0.2, centre=0.1 * AT
    ),
    "gradient and count, softmax": GradientAndCount(
        loss=SOFTMAX, at=WIDE, clip=0.4, height=0.1, row_map=2.0 * np.eye(D)
    ),
    "gradient and count, own loss": GradientAndCount(loss=OWN, at=AT, clip=3e-16, height=1e-16),
    "total weight": TotalWeight(),
    "usable units": UsableUnits(),
    "average of a unit": UserAverage(bound=0.4),
    "difference": ClippedGradientDifference(loss=SQUARED, at=AT, anchor=BEFORE, slope_clip=0.3),
    "difference, clipped gradients": ClippedGradientDifference(
        loss=SQUARED, at=AT, anchor=BEFORE, slope_clip=0.3, gradient_clip=0.5
    ),
    "difference, no kernel": ClippedGradientDifference(
        loss=PLAIN, at=AT, anchor=BEFORE, slope_clip=0.3, gradient_clip=0.5
    ),
    "difference, softmax": ClippedGradientDifference(
        loss=SOFTMAX, at=WIDE, anchor=WIDE_BEFORE, slope_clip=0.01
    ),
    "difference, own loss": ClippedGradientDifference(
        loss=OWN, at=AT, anchor=BEFORE, slope_clip=0.1, gradient_clip=0.5
    ),
    "smoothed gradient": SmoothedGradient(loss=losses.huber(0.5), at=AT, smoothing=0.7, clip=0.4),
    "smoothed gradient, logistic": SmoothedGradient(loss=losses.logistic, at=FAR, smoothing=1e3, clip=3e-16),
    "smoothed difference": SmoothedDifference(
        loss=losses.huber(0.5), at=AT, anchor=BEFORE, smoothing=0.7, clip=0.4
    ),
    "smoothed difference, logistic": SmoothedDifference(
        loss=losses.logistic, at=FAR, anchor=AT, smoothing=1e3, clip=0.4, slope_clip=1e-17
    ),
    "gradient at random points": JitteredGradient(loss=SQUARED, at=AT, smoothing=0.7, clip=0.4),
    "gradient at random points, own loss": JitteredGradient(loss=OWN, at=FAR, smoothing=1e3, clip=3e-16),
    "difference by lunes": LuneDifference(loss=SQUARED, at=AT, anchor=BEFORE, smoothing=0.7, clip=0.4),
    "difference by lunes, softmax": LuneDifference(
        loss=SOFTMAX, at=WIDE, anchor=WIDE_BEFORE, smoothing=50.0, clip=3e-16
    ),
    "difference by lunes, own loss": LuneDifference(loss=OWN, at=FAR, anchor=AT, smoothing=0.2, clip=0.4),
    "difference by translation": TranslatedDifference(
        loss=SQUARED, at=AT, anchor=BEFORE, smoothing=0.7, clip=0.4, slope_clip=0.3, draws=2
    ),
    "difference by translation, own loss": TranslatedDifference(
        loss=OWN, at=FAR, anchor=BEFORE, smoothing=1e3, clip=0.4, slope_clip=1e-17
    ),
    "mixture": MixedGradient(loss=SQUARED, at=AT, previous=BEFORE, clip=0.4, change_clip=0.1, gain=0.6),
    "mixture, no kernel": MixedGradient(
        loss=PLAIN, at=AT, previous=BEFORE, clip=0.4, change_clip=0.1, gain=0.6
    ),
    "mixture, softmax": MixedGradient(
        loss=SOFTMAX, at=WIDE, previous=WIDE_BEFORE, clip=0.4, change_clip=0.1, gain=0.6
    ),
    "mixture, own loss": MixedGradient(loss=OWN, at=AT, previous=BEFORE, clip=0.4, change_clip=0.1, gain=0.6),
    "counts of norms": NormCounts(loss=SQUARED, at=AT, lengths=np.array([1e3, 2.0, 0.5, 0.1]), share=0.3),
    "counts of norms, own loss": NormCounts(loss=OWN, at=FAR, lengths=np.array([1e6, 1e-3]), share=0.8),
    "counts of norms of estimates": ValueNormCounts(
        loss=OWN,
        at=AT,
        directions=np.eye(4)[:3],
        smoothing=0.2,
        lengths=np.array([1e3, 1.0, 1e-2]),
        share=0.8,
        bonus=np.array([0.0, -0.1, -0.2]),
    ),
    "norms of gradients": GradientNorms(loss=SQUARED, points=np.stack([AT, BEFORE, FAR]), clip=0.4),
    "norms of gradients, softmax": GradientNorms(
        loss=SOFTMAX, points=np.stack([WIDE, WIDE_BEFORE]), clip=0.4
    ),
    "norms of gradients, own loss": GradientNorms(loss=OWN, points=np.stack([AT, BEFORE]), clip=0.4),
    "average of gradients": AveragedGradient(loss=SQUARED, points=np.stack([AT, BEFORE, FAR]), clip=0.4),
    "average of gradients, softmax": AveragedGradient(
        loss=SOFTMAX, points=np.stack([WIDE, WIDE_BEFORE]), clip=0.4
    ),
    "average of gradients, own loss": AveragedGradient(loss=OWN, points=np.stack([AT, BEFORE]), clip=3e-16),
    "vertex scores": VertexScores(loss=SQUARED, at=AT, clip=0.2, offset=0.1 * AT),
    "vertex scores, no kernel": VertexScores(loss=PLAIN, at=AT, clip=0.2, offset=0.1 * AT),
    "vertex scores, softmax": VertexScores(loss=SOFTMAX, at=WIDE, clip=0.2, offset=0.1 * WIDE),
    "vertex scores, own loss": VertexScores(loss=OWN, at=AT, clip=0.2, offset=0.0 * AT),
    "vertex slopes": VertexSlopes(
        loss=SQUARED,
        at=AT,
        vertices=CrossPolytopeVertices(D, 2.0),
        clip=0.2,
        offset=0.1 * AT,
        offset_bound=0.1,
    ),
    "vertex slopes, simplex, softmax": VertexSlopes(
        loss=SOFTMAX,
        at=WIDE,
        vertices=SimplexVertices(3 * D),
        clip=0.2,
        offset=0.1 * WIDE,
        offset_bound=0.05,
    ),
    "vertex slopes, listed, no kernel": VertexSlopes(
        loss=PLAIN, at=FAR, vertices=HULL, clip=3e-16, offset=0.0 * AT, offset_bound=0.0
    ),
    "changes of vertex slopes": VertexSlopeChanges(
        loss=SQUARED,
        at=AT,
        anchor=BEFORE,
        vertices=CrossPolytopeVertices(D, 2.0),
        clip=0.2,
        offset=0.1 * AT,
        offset_bound=0.1,
    ),
    "changes of vertex slopes, no kernel": VertexSlopeChanges(
        loss=PLAIN, at=FAR, anchor=BEFORE, vertices=HULL, clip=0.1, offset=0.0 * AT, offset_bound=0.0
    ),
    "changes of vertex slopes, own loss": VertexSlopeChanges(
        loss=OWN,
        at=AT,
        anchor=BEFORE,
        vertices=SimplexVertices(D),
        clip=0.1,
        offset=0.0 * AT,
        offset_bound=0.0,
    ),
    "polytope scores": PolytopeScores(loss=SQUARED, at=AT, vertices=CORNERS, clip=0.2, offset=0.1 * AT),
    "polytope scores, own loss": PolytopeScores(
        loss=OWN, at=AT, vertices=CORNERS[:1], clip=0.2, offset=0.0 * AT
    ),
    "second moment": SecondMoment(row_bound=ROW_BOUND),
    "second moment, clipped": SecondMoment(row_bound=0.5),
    "top curvature": TopCurvature(row_bound=ROW_BOUND),
    "marginals": MarginalMeans(workload=Workload.ways(LEVELS, 2)),
    "marginals, of any size": MarginalMeans(workload=Workload(LEVELS, sets=((2,), (3, 0), (1, 0, 2)))),
    "answers to queries": QueryMeans(
        workload=Workload(LEVELS, queries=np.abs(np.sin(np.arange(5 * 48) ** 2)).reshape(5, 48))
    ),
    "newton direction": NewtonDirection(
        loss=losses.logistic, at=AT, gradient=AT, ridge=np.full(D, 0.01), damping=0.1, clip=0.2, model="bound"
    ),
    "newton direction, hessian": NewtonDirection(
        loss=losses.poisson(2.0, 5.0),
        at=AT,
        gradient=AT,
        ridge=np.zeros(D),
        damping=0.1,
        clip=0.2,
        model="hessian",
    ),
    "local pass": LocalPass(loss=losses.logistic, at=AT, step_size=0.5, clip=0.2, shuffle=2),
    "local pass, squared, average, ball": LocalPass(
        loss=SQUARED, at=AT, step_size=0.3, clip=0.4, constraint=L2Ball(1.3), returns="average"
    ),
    "local pass, squared, ridge, far": LocalPass(
        loss=SQUARED, at=FAR, step_size=0.1, clip=1e-9, regulariser=Ridge(0.2, (1.0, 1.0, 1.0, 0.0))
    ),
    "local pass, l1, reach": LocalPass(
        loss=losses.huber(0.5), at=AT, step_size=0.3, clip=0.4, regulariser=L1(0.02), reach=0.3
    ),
    "local pass, no kernel": LocalPass(loss=PLAIN, at=AT, step_size=0.3, clip=0.4, shuffle=0),
    "local pass, softmax": LocalPass(loss=SOFTMAX, at=WIDE, step_size=0.5, clip=0.2, shuffle=1),
    "local pass, own loss": LocalPass(loss=OWN, at=AT, step_size=0.1, clip=0.4, constraint=L2Ball(1.3)),
    "magnitudes of targets": TargetMagnitudes(largest=20.0),
    "magnitudes of targets, small": TargetMagnitudes(largest=0.7),
    "magnitudes of columns": ColumnMagnitudes(levels=6, columns=D),
    "scores of models": HoldoutScores(score=Accuracy(), models=np.stack([AT, BEFORE, FAR])[:, :, None]),
    "scores of models, losses": HoldoutScores(
        score=BoundedLoss(losses.squared, 2.0), models=np.stack([AT, BEFORE])[:, :, None]
    ),
    "gradient of groups": GroupedGradient(loss=GROUPED, at=AT, weights=_GROUP_WEIGHTS, clip=0.4),
    "gradient of groups, not balanced": GroupedGradient(
        loss=GROUPED, at=FAR, weights=1e6 * _GROUP_WEIGHTS, clip=3e-16, balanced=False
    ),
    "vertex scores of groups": GroupedVertexScores(
        loss=GROUPED, at=AT, weights=_GROUP_WEIGHTS, clip=0.2, columns=D - 1
    ),
    "losses of groups": GroupLosses(loss=GROUPED, at=FAR),
    "scores of groups": GroupLossScores(
        loss=GROUPED, at=AT, divisors=np.array([0.7, 0.3]), constants=np.ones(2)
    ),
    "shares of groups": GroupShares(loss=GROUPED),
    "minimiser": HuberisedMinimiser(problem=_RIDGE, clip=0.4, ridge=0.1),
    "end of a descent": DescentEnd(
        problem=Problem(SQUARED), clip=0.4, start=jnp.zeros(D), step_size=0.3, steps=4
    ),
    "average of a pass": PassAverage(problem=_RIDGE, clip=0.4, start=jnp.asarray(AT), step_size=0.5),
    "average of a pass, squared, ball": PassAverage(
        problem=Problem(SQUARED, constraint=L2Ball(1.3)), clip=0.4, start=jnp.asarray(FAR), step_size=0.8
    ),
    "end of a noisy pass": NoisyPass(
        problem=Problem(SQUARED, L1(0.02)),
        clip=0.4,
        start=jnp.zeros(D),
        step_size=0.8,
        noise_multiplier=1.0,
        batches=GrowingBatches(places=5, scale=2.5),
    ),
    "gradient of a player": PlayerGradient(game=OWN_GAME, who="x", x=AT, y=AT[:2] / 2.0, half_range=0.3),
    "gradient of a player, scaled": PlayerGradient(
        game=SCALED_GAME, who="y", x=FAR, y=np.array([0.2, 0.8]), half_range=0.3
    ),
    "slope of a player, along vertices": PlayerSlope(
        game=OWN_GAME, who="x", x=AT, y=AT[:2] / 2.0, clip=0.3, along_vertices=True
    ),
    "slope of a player": PlayerSlope(game=OWN_GAME, who="y", x=AT, y=AT[:2] / 2.0, clip=0.3),
    "bias-reduced gradient": BiasReducedGradient(
        game=OWN_GAME,
        who="x",
        x=np.stack([AT, BEFORE, FAR]),
        y=np.array([[0.5, 0.5], [1.0, 0.0], [0.2, 0.8]]),
        gain=3.75,
        difference_clip=0.2,
        half_range=0.3,
    ),
    "bias-reduced gradient, both halves, scaled": BiasReducedGradient(
        game=SCALED_GAME,
        who="y",
        x=np.stack([AT, FAR, BEFORE, AT]),
        y=np.array([[0.5, 0.5], [1.0, 0.0], [0.2, 0.8], [0.0, 1.0]]),
        gain=1.0,
        difference_clip=0.5,
        half_range=0.3,
    ),
    "payoffs of candidates": CandidatePayoffs(
        game=OWN_GAME,
        x=np.stack([AT, FAR]),
        y=np.array([[0.5, 0.5], [1.0, 0.0]]),
        x_answers=np.stack([[BEFORE, AT, FAR], [AT, AT, BEFORE]]),
        y_answers=np.zeros((2, 0, 2)),
        payoff_clip=0.7,
    ),
    "payoffs": PayoffMeans(game=BilinearGame(rows=1, columns=3)),
    "payoffs, offsets": PayoffMeans(game=BilinearGame(rows=1, columns=1, offsets=True, entries=(-0.5, 1.0))),
    "value gradient": ValueGradient(loss=SQUARED, at=AT, directions=np.eye(D)[:3], smoothing=0.1, clip=0.4),
    "value gradient, two blocks, own loss": ValueGradient(
        loss=OWN, at=AT, directions=np.concatenate([np.eye(D), HADAMARD]), smoothing=0.3, clip=0.4, blocks=2
    ),
    "value gradient, softmax": ValueGradient(
        loss=SOFTMAX, at=WIDE, directions=np.eye(3 * D)[::2], smoothing=0.3, clip=3e-16
    ),
    "value gradient, black box": ValueGradient(
        loss=BOX, at=FAR, directions=HADAMARD, smoothing=0.3, clip=0.4
    ),
    "value gradient in parameters": PlacedValueGradient(
        loss=SQUARED, at=AT, directions=np.eye(D)[:3], smoothing=0.1, clip=0.4
    ),
    "value gradient in parameters, rows that stretch": PlacedValueGradient(
        loss=OWN, at=AT, directions=np.ones((3, D)), smoothing=0.1, clip=0.4
    ),
    "value difference in parameters": PlacedValueDifference(
        loss=BOX, at=AT / 2.0, anchor=BEFORE / 2.0, directions=np.eye(D), smoothing=0.1, slope_clip=0.4
    ),
    "value difference": ValueDifference(
        loss=SQUARED, at=AT, anchor=BEFORE, directions=HADAMARD, smoothing=0.2, slope_clip=0.3
    ),
    "value difference, black box": ValueDifference(
        loss=BOX,
        at=AT,
        anchor=BEFORE,
        directions=np.concatenate([np.eye(D), HADAMARD]),
        smoothing=0.2,
        slope_clip=0.01,
        blocks=2,
    ),
    "values of candidates": CandidateValues(
        loss=SQUARED, candidates=np.stack([AT, BEFORE, FAR]), low=0.0, high=2.0
    ),
    "values of candidates, black box": CandidateValues(
        loss=BOX, candidates=np.stack([AT, BEFORE, FAR]), low=-3.0, high=0.5
    ),
    "perturbed minimiser": PerturbedMinimiser(problem=_RIDGE, clip=0.4, ridge=0.1),
    "perturbed minimiser, mapped": PerturbedMinimiser(
        problem=Problem(SQUARED), clip=0.4, ridge=0.1, matrix=np.diag([1.0, 1e-140, 2.0, 1e-3])
    ),
}

# One query of each class; others of a class differ in their loss or in public numbers.
FIRST_OF_ITS_KIND = frozenset({type(query): name for name, query in reversed(EVERY_QUERY.items())}.values())


GAME = BilinearGame(rows=1, columns=3)
OFFSETS = BilinearGame(rows=1, columns=1, offsets=True, entries=(-0.5, 1.0))


@dataclass(frozen=True)
class OfMean:
    """A function of a held mean: what is held, the function of its handle, and data of another kind, if it needs such.

    `pair(rng, relation, layout)` makes two neighbouring sets of units; None for the hostile rows of all queries.
    """

    held: MeanQuery
    function: Callable[[Any], FunctionOfMean]
    pair: Callable[[Any, str, str], Any] | None = None


PAIRS = MarginalMeans(workload=Workload.ways((3, 2, 3), 2))
ANSWERS = QueryMeans(workload=Workload((3, 2, 3), queries=np.abs(np.sin(np.arange(90) ** 2)).reshape(5, 18)))
_MODELLED = 0.3 + 0.2 * np.cos(np.arange(21))


def coded_pair(rng: np.random.Generator, relation: str, layout: str) -> tuple[Units, Units]:
    """Two coded tables that differ in one unit, records or users of two; most of it stands in few cells."""
    users = "users" in layout
    count, last = (10, 8) if users else (5, 4)
    tables = [rng.choice([0, 0, 0, 1, 2, 9], (count, 3)) for _ in range(2)]
    tables[1][:last] = tables[0][:last]
    sizes = (last if relation == "add-or-remove-one" else count, count)
    left, right = (
        Units.from_codes(
            table[:size],
            levels=(3, 2, 3),
            relation=relation,
            n=5,
            groups=np.arange(size) // 2 if users else None,
            max_records_per_user=2,
            user_weighting="user",
        )
        for table, size in zip(tables, sizes, strict=True)
    )
    return left, right


EVERY_FUNCTION_OF_A_MEAN: dict[str, OfMean] = {
    "gaps of candidates": OfMean(EVERY_QUERY["payoffs of candidates"], lambda mean: CandidateGaps(mean=mean)),
    "gaps of candidates, a matrix game": OfMean(
        CandidatePayoffs(
            game=GAME,
            x=np.ones((3, 1)),
            y=np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
            x_answers=np.zeros((3, 0, 1)),
            y_answers=np.zeros((3, 0, 3)),
            payoff_clip=1.0,
        ),
        lambda mean: CandidateGaps(mean=mean),
    ),
    "a marginal": OfMean(PAIRS, lambda mean: HeldMarginal(mean=mean, place=1), coded_pair),
    "an answer": OfMean(ANSWERS, lambda mean: HeldAnswer(mean=mean, place=2), coded_pair),
    "errors of cells": OfMean(PAIRS, lambda mean: CellErrors(mean=mean, modelled=_MODELLED), coded_pair),
    "errors of answers": OfMean(
        ANSWERS, lambda mean: CellErrors(mean=mean, modelled=_MODELLED[:5] - 0.3), coded_pair
    ),
    "signed errors of cells": OfMean(
        PAIRS, lambda mean: SignedErrors(mean=mean, modelled=_MODELLED), coded_pair
    ),
    "signed errors of answers": OfMean(
        ANSWERS, lambda mean: SignedErrors(mean=mean, modelled=_MODELLED[:5]), coded_pair
    ),
    "distances of marginals": OfMean(
        PAIRS,
        lambda mean: MarginalDistances(
            mean=mean, modelled=0.2 * _MODELLED, penalties=np.array([1.0, 30.0]), candidates=(2, 0)
        ),
        coded_pair,
    ),
    "mean distance of marginals": OfMean(
        PAIRS, lambda mean: MeanDistance(mean=mean, modelled=0.2 * _MODELLED), coded_pair
    ),
    "mean error of answers": OfMean(
        ANSWERS, lambda mean: MeanDistance(mean=mean, modelled=_MODELLED[:5] - 0.3), coded_pair
    ),
    "an answer of a table": OfMean(
        PAIRS, lambda mean: TableAnswer(mean=mean, values=np.arange(9) % 2 * 1.0, place=1), coded_pair
    ),
    "the error of an answer of a table": OfMean(
        PAIRS,
        lambda mean: TableAnswerError(mean=mean, values=np.arange(9) % 2 * 1.0, place=1, modelled=0.4),
        coded_pair,
    ),
    "gradient of x": OfMean(
        PayoffMeans(game=BilinearGame(rows=2, columns=2)),  # of one row, a vector's range is zero
        lambda mean: PayoffGradient(mean=mean, who="x", play=jnp.array([0.2, 0.8])),
    ),
    "gradient of y": OfMean(
        PayoffMeans(game=GAME), lambda mean: PayoffGradient(mean=mean, who="y", play=jnp.ones(1))
    ),
    "scores of a part": OfMean(
        VertexScores(loss=SQUARED, at=AT, clip=0.2, offset=0.1 * AT),
        lambda mean: PartScores(mean=mean, places=((1, 3), (5, 7))),
    ),
    "scores of a simplex": OfMean(
        VertexScores(loss=OWN, at=AT, clip=0.2, offset=0.1 * AT),
        lambda mean: PartScores(mean=mean, places=((0, 4),)),
    ),
    "gradient of x, offsets": OfMean(
        PayoffMeans(game=OFFSETS), lambda mean: PayoffGradient(mean=mean, who="x", play=jnp.ones(1))
    ),
    "slope of x": OfMean(
        PayoffMeans(game=BilinearGame(rows=3, columns=1)),
        lambda mean: PayoffSlope(mean=mean, who="x", play=np.ones(1)),
    ),
    "slope of y": OfMean(
        PayoffMeans(game=GAME), lambda mean: PayoffSlope(mean=mean, who="y", play=np.ones(1))
    ),
    "slope of y, offsets": OfMean(
        PayoffMeans(game=BilinearGame(rows=1, columns=1, offsets=True)),
        lambda mean: PayoffSlope(mean=mean, who="y", play=np.ones(1)),
    ),
}


def is_of_codes(query: Query) -> bool:
    """Whether a query is asked of a coded table."""
    return isinstance(query, MarginalMeans | QueryMeans)


def concrete_queries() -> Iterator[type[Query]]:
    """The library's query classes that can be made."""
    for module in pkgutil.walk_packages(privopt.__path__, "privopt."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = [Query]
    for kind in found:
        found += kind.__subclasses__()
    yield from {kind for kind in found if is_ours(kind) and not inspect.isabstract(kind)}
