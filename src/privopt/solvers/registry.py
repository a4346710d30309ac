"""Every solver by name, and `automatic`, the choice of solver="auto" by public numbers and the formula of the loss.

For a loss written by the user the choice also asks whether the loss looks convex, and whether all records share its
corners (points where the gradient jumps); both are tried on generated points, never on data.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privopt import papers, solvers
from privopt.errors import NotPriceable
from privopt.later import Array, jax, jnp
from privopt.planning.counts import constant_column
from privopt.planning.task import Instance
from privopt.precision import in_float64
from privopt.problems.black_box import BlackBox
from privopt.problems.constraints import Constraint, L1Ball, Polytope, Product, Simplex
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.losses import Poisson, RecordLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.safeguards import require_pure_loss
from privopt.solvers.base import Solver
from privopt.solvers.program import Choice, Maker, Registry

if TYPE_CHECKING:
    from privopt.solvers.svrg import SVRG

SOLVERS: dict[str, Maker[Solver]] = {
    "whitening": Maker(solvers, "Whitening"),
    "posterior-descent": Maker(solvers, "Whitening", inner="PosteriorDescent"),
    "gradient-descent": Maker(solvers, "GradientDescent"),
    "stochastic-gradient-descent": Maker(solvers, "StochasticGradientDescent"),
    "user-whitening": Maker(solvers, "Whitening", inner="UserGradientDescent"),
    "user-gradient-descent": Maker(solvers, "UserGradientDescent"),
    "user-federated-averaging": Maker(solvers, "UserFederatedAveraging"),
    "group-privacy": Maker(solvers, "GroupPrivacy"),
    "svrg": Maker(solvers, "SVRG"),
    "svrg-plus-plus": Maker(solvers, "SVRG.plus_plus"),
    "objective-perturbation": Maker(solvers, "ObjectivePerturbation"),
    "accelerated-mirror-descent": Maker(solvers, "AcceleratedMirrorDescent"),
    "frank-wolfe": Maker(solvers, "FrankWolfe"),
    "vertex-anytime": Maker(solvers, "VertexAnytime"),
    "geometric-gradient-descent": Maker(solvers, "GradientDescent.geometric"),
    "adaptive-gradient-descent": Maker(solvers, "AdaptiveGradientDescent"),
    "continuous-spider": Maker(solvers, "ContinuousSpider"),
    "correlated-noise-descent": Maker(solvers, "CorrelatedNoiseDescent"),
    "curvature-probe": Maker(solvers, "CurvatureProbe"),
    "kl-spider": Maker(solvers, "KLSpider"),
    "kl-proximal-point": Maker(solvers, "KLProximalPoint"),
    "o2nc": Maker(solvers, "O2NC"),
    "private-clip": Maker(solvers, "PrivateClip", inner="O2NC"),
    "randomized-smoothing": Maker(solvers, "RandomizedSmoothing"),
    "phased-accelerated-erm": Maker(solvers, "PhasedAcceleratedERM"),
    "worst-group-whitening": Maker(solvers, "Whitening", inner="WorstGroupDescent"),
    "worst-group-descent": Maker(solvers, "WorstGroupDescent"),
    "worst-group-two-stage": Maker(solvers, "WorstGroupTwoStage"),
}


REGISTRY = Registry(
    Solver,
    "solver",
    "a Solver",
    ("gradient-descent", "GradientDescent()"),
    SOLVERS,
    papers.SOLVERS,
    renamed=(("scheduled-gradient-descent", "geometric-gradient-descent"),),
)
NAMES, named = REGISTRY.names, REGISTRY.named  # `plan` compares those of `SOLVERS`

FEW_COLUMNS = (
    2.0 / 3.0
)  # p / (n mu)^(2/3) up to which mirror descent is taken on an l1 ball, see `_has_few_columns`
MANY_COLUMNS = 100  # d above which a worst-group problem on an l1 ball selects columns first


def choose(solver: Solver | str, instance: Instance) -> Choice[Solver]:
    """The solver that `solver=` asks for, checked against the problem.

    Args:
        solver: a name of `NAMES`, a `Solver`, or "auto" for `automatic`.
        instance: the problem, the public numbers and the budget.
    Raises:
        TypeError: `solver` is neither a name nor a `Solver`.
        ValueError: an unknown name, a solver that cannot solve the problem, or one whose step size is too large for it.
    """
    choice = REGISTRY.chosen(solver, lambda: automatic(instance))
    if solver != "auto":
        from privopt.solvers.clip_choice import with_chosen_clip  # late: for solvers that are named alone

        choice = Choice(with_chosen_clip(choice.solver))
    if isinstance(instance.problem.loss, BlackBox):
        from privopt.solvers.warm_start import with_warm_start  # late: for black boxes alone

        choice = choice._replace(solver=with_warm_start(choice.solver, instance.problem.loss))
    choice.solver.check_applicable(instance.problem, instance.public)
    choice.solver.check_step_size(instance)
    return choice


def automatic(instance: Instance) -> Choice[Solver]:
    """The default choice, from public numbers and the problem's formulas alone: the first line that fits.

        a loss of groups: an l1 ball in more than 100 columns             two stages for the worst group
            no set, where whitening applies                               whitened descent for the worst group
            else                                                          descent for the worst group
        a black box                                                       O2NC by values, with a private clip
        no privacy: records, losses of known curvature, where whitening
            applies                                                       whitened gradient descent
            else                                                          gradient descent
        users whose typical records times log(2p)^2 are fewer than the
        p parameters in a set with an l1 ball                             Frank-Wolfe
        users with many records: where there are few such users, or
        the loss has corners, see `user_federated_averaging.wins`         federated averaging
        other users, a convex generalised-linear loss with corners        accelerated phases on regularised problems
        other users, where whitening applies                              whitened user-level gradient descent
        other users of generalised-linear losses, smooth penalties,
        at most 2000 features                                             probed user-level gradient descent
        other users                                                       user-level gradient descent
        ramp and capped losses where whitening does not apply, smooth
        penalties, no set                                                 O2NC
        a non-smooth loss with a known growth (KL) condition of
        kappa >= 2, without corners that all records share                proximal points
        a generalised-linear loss, a ridge or no penalty, no set, at
        most 2000 features; counts with a declared constant
        column                                                            whitened gradient descent
        an l1 ball alone, in few columns                                  accelerated mirror descent
        an l1 ball, also beside intercepts and in other products of its
        kind, or a polytope given by its vertices                         Frank-Wolfe
        a simplex, and other products                                     accelerated mirror descent
        a non-smooth penalty and a ridge on every coordinate, if stable   SVRG
        another generalised-linear loss with a ridge or no penalty:
        other counts, other sets, at most 2000 features                   probed gradient descent
        losses of the user's own that state their curvature, and either
        a growth condition or look convex                                 gradient descent, with a private clip unless
                                                                          the slope is stated
        losses of the user's own that look convex, without corners that
        all records share                                                 gradient descent with a private clip
        other losses of the user's own, smooth penalties, no set          O2NC with a private clip
        everything else                                                   gradient descent

    Each was the most accurate of the applicable solvers in most of the measurements of docs/benchmarks.md and
    docs/benchmarks-kl.md. "Whitening applies" means that `obstacle` names no reason against it. Counts are whitened
    relative to their released mean, see `planning.counts`, which needs the declared column of ones (`Problem.constant`)
    to put that mean in. Two solvers are never chosen: objective perturbation behind the same whitening, about as
    accurate with a strong ridge, since its running time depends on the data; and KL Spider, which has a proved bound
    and a larger error.

    Raises:
        ValueError: a loss of the user's own has effects such as a callback.
    """
    problem, public = instance.problem, instance.public
    # `looks_convex` and `shares_corners` below evaluate it on generated points, so it must have no effects.
    require_pure_loss(problem.loss, problem.parameter_shape(public), public)
    if isinstance(problem.loss, GroupedLoss):
        return _for_groups(instance)
    if isinstance(problem.loss, BlackBox):
        return _for_values(instance)
    if not instance.is_private:
        return _without_noise(instance)
    if public.by_user:
        return _for_users(instance)
    if (
        not instance.has_own_loss
        and problem.loss.convex is False
        and solvers.Whitening().obstacle(problem, public) is not None
        and solvers.O2NC().obstacle(problem, public) is None
    ):
        return Choice(
            solvers.O2NC(), "the loss is not convex, and its steps average the noise on smoothed gradients"
        )
    for solver, reason in _candidates(instance):
        if solver.obstacle(problem, public) is None:
            return Choice(solver, reason)
    if not problem.regulariser.is_smooth and problem.regulariser.strong_convexity > 0:
        variance_reduced = solvers.SVRG()
        if variance_reduced.obstacle(problem, public) is None and _is_stable(variance_reduced, instance):
            return Choice(
                variance_reduced, "with a ridge and so many units, changes of the gradient need little noise"
            )
    loss = problem.loss
    convex = instance.has_own_loss and looks_convex(problem, public)
    if instance.has_own_loss and math.isfinite(loss.curvature) and (problem.growth or convex):
        return _for_stated(instance)
    if instance.has_own_loss:
        return _for_own(instance, convex=convex)
    probed = solvers.CurvatureProbe(inner=solvers.GradientDescent())
    if problem.regulariser.is_smooth and probed.obstacle(problem, public) is None:
        return Choice(probed, "where whitening does not apply, a released curvature buys longer steps")
    return Choice(solvers.GradientDescent(), "neither whitening nor variance reduction applies")


def _for_own(instance: Instance, *, convex: bool) -> Choice[Solver]:
    """The default for a loss of the user's own that states no curvature; `convex` says whether it looks so."""
    from privopt.solvers.o2nc import own_quantile  # late: for such losses alone

    problem, public = instance.problem, instance.public
    clipped = solvers.PrivateClip(inner=solvers.GradientDescent())
    if convex and not shares_corners(problem, public) and clipped.obstacle(problem, public) is None:
        return Choice(
            clipped,
            "the loss looks convex, on which averaged steps settle, and the clip is chosen privately",
        )
    windowed = solvers.PrivateClip(inner=solvers.O2NC(quantile=own_quantile(instance)))
    if windowed.obstacle(problem, public) is None:
        return Choice(
            windowed,
            "the loss is not known to be convex and smooth on the whole: the clip is chosen privately and follows the "
            "gradients, and steps do not scale with them",
        )
    return Choice(
        solvers.GradientDescent(),
        "it follows penalties and sets that have no gradient, for losses of any kind",
    )


def _without_noise(instance: Instance) -> Choice[Solver]:
    """The default with the noise off (an infinite epsilon)."""
    problem, public = instance.problem, instance.public
    is_curved = math.isfinite(problem.loss.curvature) and problem.loss.convex is not False
    counted = isinstance(problem.loss, Poisson)  # its curvature is a guess, which only the clip makes safe
    whitened = solvers.Whitening()
    if is_curved and not counted and not public.by_user and whitened.obstacle(problem, public) is None:
        return Choice(whitened, "without noise descent converges fastest where all directions look alike")
    return Choice(solvers.GradientDescent(), "without noise the plainest method converges")


def _for_stated(instance: Instance) -> Choice[Solver]:
    """The default for a loss of the user's own that states a finite curvature."""
    chosen = solvers.PrivateClip(inner=solvers.GradientDescent())
    if math.isinf(instance.gradient_bound) and chosen.obstacle(instance.problem, instance.public) is None:
        return Choice(chosen, "its steps follow the stated curvature, and the clip is chosen privately")
    return Choice(
        solvers.GradientDescent(), "its steps follow the stated curvature, and its clip the stated slope"
    )


def _for_values(instance: Instance) -> Choice[Solver]:
    """The default for a black box, of which only values are known."""
    reason = "it asks for values of the loss alone, and the loss is a black box"
    windowed: Solver = solvers.PrivateClip(inner=solvers.O2NC()) if instance.is_private else solvers.O2NC()
    return Choice(windowed, reason)


def _for_groups(instance: Instance) -> Choice[Solver]:
    """The default for an objective that is the largest of several groups' mean losses."""
    problem, public = instance.problem, instance.public
    two_stages, whitened = solvers.WorstGroupTwoStage(), solvers.Whitening(inner=solvers.WorstGroupDescent())
    if public.d > MANY_COLUMNS and two_stages.obstacle(problem, public) is None:
        return Choice(two_stages, "in many columns noise is kept to a few that are selected first")
    if whitened.obstacle(problem, public) is None:
        return Choice(whitened, "rare groups need steps in directions that few records say much about")
    return Choice(solvers.WorstGroupDescent(), "it weights groups against each other by their noisy losses")


def _for_users(instance: Instance) -> Choice[Solver]:
    """The default where the privacy unit is a user with all their records."""
    from privopt.solvers.user_federated_averaging import has_corners, wins  # late: for users alone

    problem, public = instance.problem, instance.public
    # Frank-Wolfe's noise grows with log(2p), that of descent with sqrt(p); but descent clips users' averages, whose
    # spread falls with the number m of records. So Frank-Wolfe is taken for m log(2p)^2 < p.
    frank_wolfe = solvers.FrankWolfe()
    few = public.typical_records * math.log(2 * instance.parameters) ** 2 < instance.parameters
    if _has_l1_ball(problem.constraint) and few and frank_wolfe.obstacle(problem, public) is None:
        return Choice(
            frank_wolfe, "on an l1 ball its noise grows with the logarithm of the number of features"
        )
    averaging = solvers.UserFederatedAveraging()
    if wins(instance) and averaging.obstacle(problem, public) is None:
        return Choice(averaging, "each user has many records to learn from")
    phased = solvers.PhasedAcceleratedERM()
    if has_corners(instance) and phased.obstacle(problem, public) is None:
        return Choice(phased, "the loss has corners, on which the steps of whitened descent do not settle")
    whitened = solvers.Whitening(inner=solvers.UserGradientDescent())
    if whitened.obstacle(problem, public) is None:
        return Choice(
            whitened,
            "it clips users at the spread of their averages, in coordinates where features look alike",
        )
    probed = solvers.CurvatureProbe(inner=solvers.UserGradientDescent())
    if problem.regulariser.is_smooth and probed.obstacle(problem, public) is None:
        return Choice(
            probed,
            "it clips users at the spread of their averages, and a released curvature buys longer steps",
        )
    return Choice(solvers.UserGradientDescent(), "it clips users at the spread of their averages")


def _candidates(instance: Instance) -> Iterator[tuple[Solver, str]]:
    """Candidates by the kind of loss and set, each with its reason, the most accurate first; for records only."""
    problem = instance.problem
    constraint, growth = problem.constraint, problem.growth
    sharp = growth is not None and growth.kappa >= 2.0 and math.isinf(problem.loss.curvature)
    if sharp and not shares_corners(problem, instance.public):
        yield (
            solvers.KLProximalPoint(),
            "the loss is not smooth, and it is known to grow sharply from its minimum",
        )
    if not isinstance(problem.loss, Poisson) or constant_column(problem) is not None:
        yield (
            solvers.Whitening(),
            "whitening was the most accurate on most tables: all directions get the noise they can bear",
        )
    if isinstance(constraint, L1Ball) and _has_few_columns(instance):
        yield solvers.AcceleratedMirrorDescent(), "on an l1 ball of few features its noise is the smaller one"
    if _has_l1_ball(constraint):
        yield (
            solvers.FrankWolfe(),
            "on an l1 ball its noise grows with the logarithm of the number of features",
        )
    if isinstance(constraint, Polytope):
        yield (
            solvers.FrankWolfe(),
            "among the vertices of a polytope its noise grows with the logarithm of their number",
        )
    if isinstance(constraint, L1Ball | Product | Simplex):
        yield solvers.AcceleratedMirrorDescent(), "its mirror map fits the geometry of the set"


def _has_few_columns(instance: Instance) -> bool:
    """Whether p <= 2/3 (n mu)^(2/3).

    The excess of mirror descent is proportional to sqrt(p) / (n mu), that of Frank-Wolfe to (n mu)^(-2/3). The factor
    was measured with `benchmarks.auto`, for 30 to 1,000 columns at epsilon 0.3 to 3.
    """
    return instance.parameters <= FEW_COLUMNS * (instance.public.n * instance.mu) ** (2.0 / 3.0)


def _has_l1_ball(constraint: Constraint) -> bool:
    """Whether a set is an l1 ball or a product with one among its parts."""
    parts = constraint.parts if isinstance(constraint, Product) else ((constraint, 0),)
    return any(isinstance(part, L1Ball) for part, _ in parts)


def _is_stable(solver: "SVRG", instance: Instance) -> bool:
    """Whether variance reduction can be priced and would not fall back to gradient descent."""
    try:
        return solver.configure(instance).fallback is None
    except NotPriceable:
        return False


# ---- Whether a loss of the user's own looks convex, and whether records share its corners: by its formula --
# A loss is convex if `f((a + b) / 2) <= (f(a) + f(b)) / 2` for all parameters a and b. Up to 512 pairs at three
# distances are tried, with rows of the longest length and targets of both signs and several sizes; all are drawn with
# one fixed seed and hold no data. That no pair refutes convexity proves nothing, so the answer only says which solver
# is likely to be better.
#
# The mean of many records' losses is nearly smooth if each has a corner of its own, as |x . w - y|, and the iterates of
# descent converge on it; max_j |w_j| has its corners in the same places for all records, and they do not. A segment is
# halved thirty times, each time to the half over which the mean gradient of 64 generated records changes more: there is
# a shared corner if the change over what remains is longer than a quarter of the records' mean gradient length.
MOST_PAIRS, FEWEST_PAIRS = 512, 8
MOST_NUMBERS = 4_000_000  # in all that is generated; a model of more than an eighth of that is not tried
DISTANCES = (0.3, 3.0, 30.0)  # over the row bound: the standard deviations of the drawn parameters
TARGETS = (-3.0, -1.0, 0.0, 1.0, 3.0)
ROUNDING = 1e-9  # by which two values may differ and count as equal, over their size
SEGMENTS, RECORDS, HALVINGS, JUMP = 32, 64, 30, 0.25  # JUMP is over a typical gradient's length


def looks_convex(problem: Problem, public: Public) -> bool:
    """Whether the loss states that it is convex, or states nothing and no pair refutes it. Utility only."""
    loss = problem.loss
    if not isinstance(loss, RecordLoss):
        return bool(loss.convex)
    if loss.convex is not None:
        return loss.convex
    return _no_pair_refutes(loss, problem.parameter_shape(public), public.d, public.row_bound)


def shares_corners(problem: Problem, public: Public) -> bool:
    """Whether the mean loss seems to have corners, however many records there are. Utility only."""
    loss = problem.loss
    if not isinstance(loss, RecordLoss) or math.isfinite(loss.curvature):
        return False
    return _has_jump(loss, problem.parameter_shape(public), public.d, public.row_bound)


@lru_cache(maxsize=64)
def _no_pair_refutes(loss: RecordLoss, shape: tuple[int, ...], features: int, row_bound: float) -> bool:
    """Whether no generated pair of parameters violates midpoint convexity; False for models too large to try."""
    pairs = min(MOST_NUMBERS // max(math.prod(shape), features), MOST_PAIRS)
    if pairs < FEWEST_PAIRS:
        return False
    rng = np.random.default_rng(0)
    first, second = _points(rng, pairs, shape, row_bound)
    rows, targets = _records(rng, pairs, features, row_bound)
    with in_float64():
        values = jax.jit(jax.vmap(loss.value))
        low, high, middle = (
            np.asarray(values(jnp.asarray(at), rows, targets))
            for at in (first, second, 0.5 * (first + second))
        )
    chord = 0.5 * (low + high)
    known = np.isfinite(chord) & np.isfinite(middle)
    within = middle <= chord + ROUNDING * (1.0 + np.abs(low) + np.abs(high))
    return bool(np.any(known) and np.all(within[known]))


@lru_cache(maxsize=64)
def _has_jump(loss: RecordLoss, shape: tuple[int, ...], features: int, row_bound: float) -> bool:
    """Whether the mean gradient of generated records jumps on some segment; False for models too large to try."""
    segments = min(MOST_NUMBERS // (RECORDS * max(math.prod(shape), features)), SEGMENTS)
    if segments < 1:
        return False
    rng = np.random.default_rng(1)
    low, high = _points(rng, segments, shape, row_bound)
    rows, targets = _records(rng, RECORDS, features, row_bound)
    with in_float64():
        each = jax.vmap(loss.gradient, in_axes=(None, 0, 0))
        means = jax.jit(jax.vmap(lambda at: jnp.mean(each(at, rows, targets), axis=0)))
        lengths = jax.jit(jax.vmap(lambda at: jnp.mean(jnp.linalg.norm(each(at, rows, targets), axis=-1))))

        def moved(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.linalg.norm(
                (means(jnp.asarray(one)) - means(jnp.asarray(other))).reshape(segments, -1), axis=1
            )

        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            upper = (moved(middle, high) > moved(low, middle)).reshape(-1, *[1] * len(shape))
            low, high = np.where(upper, middle, low), np.where(upper, high, middle)
        jumps, typical = moved(low, high), np.asarray(lengths(jnp.asarray(low)))
    return bool(np.any(jumps > JUMP * typical))


def _points(
    rng: np.random.Generator, pairs: int, shape: tuple[int, ...], row_bound: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The two ends of each segment, (pairs, *shape) each, normal at a random one of the distances."""
    far = rng.choice(DISTANCES, pairs).reshape(-1, *[1] * len(shape)) / row_bound
    first, second = far * rng.normal(size=(2, pairs, *shape))
    return first, second


def _records(rng: np.random.Generator, count: int, features: int, row_bound: float) -> tuple[Array, Array]:
    """Rows of the longest length, (count, features), and targets of `TARGETS`, (count,)."""
    rows = rng.normal(size=(count, features))
    rows *= row_bound / np.linalg.norm(rows, axis=1, keepdims=True)
    with in_float64():
        return jnp.asarray(rows), jnp.asarray(rng.choice(TARGETS, count))
