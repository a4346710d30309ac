"""The list every contract test runs over: add a line here and a newcomer is tested."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from examples.plain_descent import PlainDescent
from examples.sampled_descent import SampledDescent
from examples.streamed_descent import StreamedDescent

from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.anytime_mirror_descent import AnytimeMirrorDescent
from privopt.papers.dp_spider import DPSpider
from privopt.papers.mirror_descent import MirrorDescent
from privopt.papers.newton import DoubleNoiseNewton
from privopt.papers.output_perturbation import OutputPerturbation
from privopt.papers.phased_group_sgd import PhasedGroupSGD
from privopt.papers.phased_sgd import PhasedSGD
from privopt.papers.single_pass_o2nc import SinglePassO2NC
from privopt.papers.snowball_sgd import SnowballSGD
from privopt.papers.strongly_convex_stages import StronglyConvexStages
from privopt.papers.variance_reduced_frank_wolfe import VarianceReducedFrankWolfe
from privopt.papers.variance_reduced_o2nc import VarianceReducedO2NC
from privopt.problems import losses
from privopt.problems.black_box import BlackBox
from privopt.problems.constraints import Box, L1Ball, L2Ball, LpBall, Polytope, Product, Simplex
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, ElasticNet, NoRegulariser, Ridge
from privopt.solvers.accelerated_mirror_descent import AcceleratedMirrorDescent
from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent
from privopt.solvers.base import Solver
from privopt.solvers.clip_choice import PrivateClip
from privopt.solvers.continuous_spider import ContinuousSpider
from privopt.solvers.correlated_noise_descent import CorrelatedNoiseDescent
from privopt.solvers.curvature_probe import CurvatureProbe
from privopt.solvers.frank_wolfe import FrankWolfe
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.group_privacy import GroupPrivacy
from privopt.solvers.kl_proximal_point import KLProximalPoint
from privopt.solvers.kl_spider import KLSpider
from privopt.solvers.o2nc import O2NC
from privopt.solvers.objective_perturbation import ObjectivePerturbation
from privopt.solvers.phased_accelerated_erm import PhasedAcceleratedERM
from privopt.solvers.posterior_descent import PosteriorDescent
from privopt.solvers.randomized_smoothing import RandomizedSmoothing
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent
from privopt.solvers.svrg import SVRG
from privopt.solvers.user_federated_averaging import UserFederatedAveraging
from privopt.solvers.user_gradient_descent import UserGradientDescent
from privopt.solvers.vertices import VertexAnytime
from privopt.solvers.warm_start import WarmStart
from privopt.solvers.whitening import Whitening
from privopt.solvers.worst_group_descent import WorstGroupDescent
from privopt.solvers.worst_group_two_stage import WorstGroupTwoStage

N, D = 40, 5
BUDGET = Budget(2.0, 1e-5)


@dataclass(frozen=True)
class Case:
    """A solver on a problem, with everything that could be derived given.

    `still` are the fields with which it does nothing; None where it always releases something. `by_user` makes two
    records a user. `tags` are what tests of
    a few cases select them by.
    """

    name: str
    solver: Solver
    problem: Problem
    relations: tuple[str, ...] = ("replace-one", "add-or-remove-one")
    still: Mapping[str, Any] | None = field(default_factory=lambda: {"steps": 0})
    by_user: bool = False
    tags: frozenset[str] = frozenset()


def own_loss(params, features, target):
    """A user-written loss of one record, neither convex nor generalised linear."""
    import jax.numpy as jnp

    return jnp.log1p((features @ params - target) ** 2) + 0.1 * jnp.sum(jnp.sin(params))


def jumping(params, features, target):
    """A loss of three parameters that has jumps, in plain Python, and fails for some records."""
    if not np.all(np.isfinite(features)):
        raise ValueError("no record")
    ahead = float(features[:3] @ params)
    return abs(target - round(ahead, 1)) + (1.0 if ahead > 0.5 else 0.0)


_LOGISTIC = Problem(losses.logistic, Ridge(0.1))
_COUNTS = Problem(losses.poisson(2.0, 5.0), Ridge(0.1, (1.0,) * (D - 1) + (0.0,)), constant=D - 1)
_FULL = {"clip": 0.4, "step_size": 1.0, "momentum": 0.5, "steps": 6}
_NO_ROUNDS = {"rounds": 0}
_USERS = {"clip": 0.4, "step_size": 1.0, "momentum": 0.5, "quantile": 0.7, "steps": 6}
_SAMPLED = {"clip": 0.4, "step_size": 1.0, "momentum": 0.5, "steps": 6, "rate": 0.5, "noise_multiplier": 8.0}
_EPOCHS = {"epochs": 2, "inner_steps": 3, "rate": 0.5, "clip": 0.4, "step_size": 1.0, "fall_back": False}
_EPOCHS_PRICED = {"noise_multiplier": 8.0, "momentum": 0.5, "tail": 0.5, **_EPOCHS}
_NO_EPOCHS = {"epochs": 0}
_PROXIMAL = {"outer_steps": 2, "inner_steps": 3, "weight": 0.5}
_MIRROR = {"clip": 0.4, "steps": 5, "step_smoothness": 0.5}
_SPIDER = {"clip": 0.4, "step_size": 1.0, "curvature": 0.25, "steps": 6}
_KL = KL(gamma=2.0, kappa=2.0)
_PHASES = {"clip": 0.4, "relative_error": 0.4, "failure": 0.9, "noise_multiplier": 0.4}
_NO_PHASES = {"most_steps": 0}
_L1_BALL = Problem(losses.logistic, constraint=L1Ball(2.0))
_NO_STEPS = {"most_steps": 0}
_GROUPS = {"groups": 8, "phases": 2, "step_size": 0.5, "distance": 1.0}
_ACCELERATED = {"phases": 2, "most_steps": 3, "clip": 0.4, "strength": 0.1}
_WINDOWS = {"clip": 0.4, "distance": 1.0, "steps": 6, "window": 2}
_ADAPTIVE = {"clip": 0.4, "step_size": 1.0, "window": 20, "most_steps": 60}

_GROUPED = Problem(GroupedLoss(losses.logistic, 3, (0.5, 0.3, 0.2)))
_UNKNOWN_SHARES = GroupedLoss(losses.logistic, 3, alpha=0.5)

_ALONE = ("replace-one",)

# Tags: full-batch steps on a scalar loss that a few lines of NumPy repeat, and cases that stand for the others.
_PLAIN_DESCENT, _TYPICAL = "plain descent", "typical"
# A case that differs by its loss or penalty alone from one that runs by default.
_LATER = "later"

EVERY_CASE = (
    Case(
        "gradient descent",
        GradientDescent(**_FULL),
        _LOGISTIC,
        tags=frozenset({_PLAIN_DESCENT, _TYPICAL}),
    ),
    Case(
        "gradient descent, l1, last",
        GradientDescent(returns="last", **_FULL),
        Problem(losses.huber(0.5), L1(0.02)),
        tags=frozenset({_PLAIN_DESCENT}),
    ),
    Case(
        "gradient descent, ball, weighted",
        GradientDescent(returns="weighted", **_FULL),
        Problem(losses.squared, NoRegulariser(), L2Ball(0.5)),
        tags=frozenset({_PLAIN_DESCENT}),
    ),
    Case("gradient descent, softmax", GradientDescent(**_FULL), Problem(losses.softmax(3), Ridge(0.1))),
    Case(
        "gradient descent, own loss",
        GradientDescent(**_FULL),
        Problem(losses.RecordLoss(own_loss)),
        tags=frozenset({_TYPICAL}),
    ),
    Case(
        "user gradient descent",
        UserGradientDescent(**_USERS),
        _LOGISTIC,
        by_user=True,
        tags=frozenset({_TYPICAL}),
    ),
    Case("user gradient descent, derived", UserGradientDescent(steps=8), _LOGISTIC, by_user=True),
    Case(
        "user gradient descent, own loss, ball, around the last mean",
        UserGradientDescent(centre="last", fading=True, **_USERS),
        Problem(losses.RecordLoss(own_loss), NoRegulariser(), L2Ball(0.5)),
        by_user=True,
        tags=frozenset({_LATER}),
    ),
    Case(
        "user gradient descent, softmax",
        UserGradientDescent(**_USERS),
        Problem(losses.softmax(3)),
        by_user=True,
    ),
    Case(
        "user gradient descent, sampled, l1",
        UserGradientDescent(rate=0.5, noise_multiplier=8.0, **_USERS),
        Problem(losses.huber(0.5), L1(0.02)),
        by_user=True,
    ),
    Case(
        "user gradient descent, whitened",
        Whitening(inner=UserGradientDescent()),
        _LOGISTIC,
        still=None,
        by_user=True,
    ),
    Case(
        "whitening, users, counts",
        Whitening(inner=UserGradientDescent()),
        _COUNTS,
        still=None,
        by_user=True,
        tags=frozenset({_LATER}),
    ),
    Case("user gradient descent on records", UserGradientDescent(**_USERS), _LOGISTIC),
    Case(
        "user federated averaging",
        UserFederatedAveraging(rounds=3),
        _LOGISTIC,
        still=_NO_ROUNDS,
        by_user=True,
    ),
    Case(
        "user federated averaging, own loss, ball, tail",
        UserFederatedAveraging(rounds=2, first_counts=3, later_counts=1, returns="tail"),
        Problem(losses.RecordLoss(own_loss), constraint=L2Ball(0.5)),
        still=_NO_ROUNDS,
        by_user=True,
    ),
    Case(
        "user federated averaging, softmax, l1",
        UserFederatedAveraging(rounds=2, longest=1.0, later_counts=0),
        Problem(losses.softmax(3), L1(0.02)),
        still=_NO_ROUNDS,
        by_user=True,
        tags=frozenset({_LATER}),
    ),
    Case(
        "user federated averaging, stable",
        UserFederatedAveraging(
            rounds=2,
            aggregator="stable",
            first_counts=4,
            test_share=0.3,
            bad_event_delta=1e-7,
            noise_multiplier=0.2,
        ),
        _LOGISTIC,
        still=_NO_ROUNDS,
        by_user=True,
    ),
    Case(
        "user federated averaging, known clip",
        UserFederatedAveraging(rounds=2, quantile=1.0, longest=0.3),
        Problem(losses.huber(0.5), constraint=Box(-0.2, 0.2)),
        still=_NO_ROUNDS,
        by_user=True,
    ),
    Case(
        "user gradient descent, probed, ball",
        CurvatureProbe(inner=UserGradientDescent()),
        Problem(losses.logistic, Ridge(0.1), L2Ball(0.5)),
        still=None,
        by_user=True,
    ),
    Case("group privacy", GroupPrivacy(inner=GradientDescent(steps=5)), _LOGISTIC, still=None, by_user=True),
    Case("stochastic gradient descent", StochasticGradientDescent(**_SAMPLED), _LOGISTIC),
    Case(
        "stochastic gradient descent, elastic net",
        StochasticGradientDescent(**_SAMPLED),
        Problem(losses.smoothed_hinge(0.5), ElasticNet(0.02, 0.1)),
        tags=frozenset({_LATER}),
    ),
    Case(
        "stochastic gradient descent, fixed size",
        StochasticGradientDescent(sampler="fixed-size", **_SAMPLED),
        _LOGISTIC,
        relations=("replace-one",),
    ),
    Case(
        "stochastic gradient descent, own loss",
        StochasticGradientDescent(**_SAMPLED),
        Problem(losses.RecordLoss(own_loss)),
    ),
    Case(
        "o2nc, black box",
        O2NC(steps=4, window=2, clip=0.4, distance=1.0, smoothing=0.1),
        Problem.of_values(BlackBox(jumping, value_range=(-1.0, 5.0), scale=2.0), np.zeros(3)),
    ),
    Case(
        "o2nc with a private clip, black box, users",
        PrivateClip(inner=O2NC(steps=4, window=2, distance=1.0)),
        Problem.of_values(BlackBox(jumping, value_range=(-1.0, 5.0), scale=2.0), np.zeros(3)),
        still=None,
        by_user=True,
    ),
    Case(
        "o2nc, black box, warm start",
        WarmStart(inner=O2NC(steps=4, window=2, clip=0.4, distance=1.0, smoothing=0.1), candidates=8),
        Problem.of_values(BlackBox(jumping, value_range=(-1.0, 5.0), scale=2.0), np.zeros(3)),
        still=None,
    ),
    Case("correlated noise", CorrelatedNoiseDescent(epochs=2, blocks=3, clip=0.5), _LOGISTIC, still=None),
    Case(
        "correlated noise, in order, l1, one epoch",
        CorrelatedNoiseDescent(epochs=1, blocks=4, strategy="optimum", in_order=True, returns="last"),
        Problem(losses.huber(0.5), L1(0.02), L2Ball(0.5)),
        relations=("replace-one",),
        still=None,
    ),
    Case(
        "correlated noise, own loss, users",
        CorrelatedNoiseDescent(epochs=2, blocks=3, clip=0.5),
        Problem(losses.RecordLoss(own_loss)),
        still=None,
        by_user=True,
    ),
    Case("whitening", Whitening(), _LOGISTIC, still=None),
    Case(
        "whitening, rescaled",
        Whitening(inner=GradientDescent(steps=3)),
        Problem(losses.logistic, Ridge(0.1, (1.0,) * (D - 1) + (0.0,))),
        still=None,
    ),
    Case("whitening, softmax", Whitening(), Problem(losses.softmax(3), Ridge(0.1)), still=None),
    Case(
        "whitening, counts",
        Whitening(inner=GradientDescent(steps=4)),
        _COUNTS,
        still=None,
    ),
    Case(
        "whitening, squared loss",
        Whitening(),
        Problem(losses.squared),
        still=None,
        tags=frozenset({_LATER}),
    ),
    Case(
        "whitening, ramp",
        Whitening(inner=GradientDescent(steps=5)),
        Problem(losses.ramp()),
        still=None,
        tags=frozenset({_LATER}),
    ),
    Case(
        "posterior descent, whitened",
        Whitening(inner=PosteriorDescent(steps=6, constant=4)),
        _LOGISTIC,
        still=None,
    ),
    Case(
        "posterior descent, whitened, users",
        Whitening(inner=PosteriorDescent(steps=4)),
        Problem(losses.logistic),
        still=None,
        by_user=True,
    ),
    Case(
        "whitening, corrected",
        Whitening(inner=GradientDescent(steps=5, returns="corrected")),
        _LOGISTIC,
        still=None,
    ),
    Case("objective perturbation", ObjectivePerturbation(), _LOGISTIC, still=None),
    Case(
        "objective perturbation, l1, ball",
        ObjectivePerturbation(clip=0.5),
        Problem(losses.huber(0.5), L1(0.02), L2Ball(0.5)),
        still=None,
    ),
    Case("output perturbation", OutputPerturbation(steps=6), _LOGISTIC),
    Case(
        "output perturbation, minimiser",
        OutputPerturbation(form="minimiser"),
        Problem(losses.squared, ElasticNet(0.02, 0.1)),
        still=None,
    ),
    Case(
        "gradient descent, geometric shares",
        GradientDescent(shares="geometric", returns="flattest", **_FULL),
        _LOGISTIC,
    ),
    Case(
        "stochastic gradient descent, everybody",
        StochasticGradientDescent(**(_SAMPLED | {"rate": 1.0})),
        _LOGISTIC,
    ),
    Case("svrg", SVRG(**_EPOCHS), _LOGISTIC, still=_NO_EPOCHS),
    Case(
        "svrg, momentum and l1",
        SVRG(**_EPOCHS_PRICED),
        Problem(losses.huber(0.5), L1(0.02)),
        still=_NO_EPOCHS,
        tags=frozenset({_LATER}),
    ),
    Case(
        "svrg, every unit",
        SVRG(**(_EPOCHS_PRICED | {"rate": 1.0})),
        Problem(losses.squared, ElasticNet(0.02, 0.1), L2Ball(0.5)),
        still=_NO_EPOCHS,
        tags=frozenset({_LATER}),
    ),
    Case(
        "svrg, own loss",
        SVRG(**_EPOCHS_PRICED),
        Problem(losses.RecordLoss(own_loss)),
        still=_NO_EPOCHS,
        tags=frozenset({_LATER}),
    ),
    Case(
        "svrg, the paper's design",
        SVRG(variant="paper", **_EPOCHS_PRICED),
        _LOGISTIC,
        still=_NO_EPOCHS,
        tags=frozenset({_LATER}),
    ),
    Case("svrg, unstable", SVRG(), _LOGISTIC, still=_NO_EPOCHS),
    Case("svrg, whitened", Whitening(inner=SVRG(**_EPOCHS)), _LOGISTIC, still=None),
    Case(
        "svrg++",
        SVRG.plus_plus(**(_EPOCHS_PRICED | {"inner_steps": 1})),
        _LOGISTIC,
        still=_NO_EPOCHS,
        tags=frozenset({_LATER}),
    ),
    Case("newton", DoubleNoiseNewton(steps=3, clip=0.4, damping=0.3), _LOGISTIC),
    Case(
        "newton, hessian",
        DoubleNoiseNewton(steps=3, clip=0.4, damping=0.3, model="hessian"),
        Problem(losses.smoothed_hinge(0.5)),
    ),
    Case("accelerated mirror descent", AcceleratedMirrorDescent(**_MIRROR), _L1_BALL),
    Case(
        "accelerated mirror descent, l2, gradient step",
        AcceleratedMirrorDescent(y_step="gradient", **_MIRROR),
        Problem(losses.huber(0.5), Ridge(0.1), L2Ball(0.5)),
    ),
    Case(
        "accelerated mirror descent, softmax",
        AcceleratedMirrorDescent(),
        Problem(losses.softmax(3), constraint=LpBall(1.0, 1.5)),
        tags=frozenset({_LATER}),
    ),
    Case("mirror descent", MirrorDescent(steps=5, clip=0.4), _L1_BALL),
    Case("frank-wolfe", FrankWolfe(steps=5, clip=0.2), _L1_BALL),
    Case(
        "frank-wolfe, own loss",
        FrankWolfe(steps=5, clip=0.2),
        Problem(losses.RecordLoss(own_loss), Ridge(0.1), L1Ball(1.0)),
        tags=frozenset({_LATER}),
    ),
    Case("vertex-anytime", VertexAnytime(steps=5, balanced=True), _L1_BALL, tags=frozenset({_TYPICAL})),
    Case(
        "vertex-anytime, one pass, ridge",
        VertexAnytime(steps=5, single_pass=True),
        Problem(losses.logistic, Ridge(0.1), L1Ball(2.0)),
        by_user=True,
    ),
    Case(
        "vertex-anytime, own loss, simplex",
        VertexAnytime(steps=4, draws=2, clip=0.2),
        Problem(losses.RecordLoss(own_loss), constraint=Simplex(2.0)),
        still=None,
    ),
    Case(
        "variance-reduced frank-wolfe",
        VarianceReducedFrankWolfe(trees=1),
        Problem(losses.logistic, Ridge(0.1), L1Ball(1.0)),
        still={"trees": 0},
        by_user=True,
    ),
    Case("anytime mirror descent", AnytimeMirrorDescent(steps=6, interval=3, draws=2), _L1_BALL),
    Case(
        "frank-wolfe, an l1 ball and an intercept, softmax, refit",
        FrankWolfe(steps=4, clip=0.2, refit=True),
        Problem(losses.softmax(3), Ridge(0.1), Product(((L1Ball(1.0), 12), (Box(-1.0, 1.0), 3)))),
        tags=frozenset({_LATER}),
    ),
    Case(
        "frank-wolfe, simplex",
        FrankWolfe(steps=5, clip=0.2),
        Problem(losses.squared, constraint=Simplex()),
        still=None,  # its start is not zero
    ),
    Case(
        "frank-wolfe, polytope",
        FrankWolfe(steps=5, clip=0.2),
        Problem(losses.logistic, Ridge(0.1), Polytope(np.outer(np.arange(3.0), [1.0, -1.0, 0.5, 0.0, 0.2]))),
        tags=frozenset({_LATER}),
    ),
    Case("continuous spider", ContinuousSpider(difference_clip=1.0, **_SPIDER), _LOGISTIC),
    Case(
        "continuous spider, ball",
        ContinuousSpider(gain="average", **_SPIDER),
        Problem(losses.squared, NoRegulariser(), L2Ball(0.5)),
    ),
    Case(
        "continuous spider, l1, momentum",
        ContinuousSpider(momentum=0.5, **_SPIDER),
        Problem(losses.huber(0.5), L1(0.02)),
    ),
    Case("continuous spider, softmax", ContinuousSpider(**_SPIDER), Problem(losses.softmax(3), Ridge(0.1))),
    Case(
        "continuous spider, own loss",
        ContinuousSpider(**_SPIDER),
        Problem(losses.RecordLoss(own_loss)),
        tags=frozenset({_LATER}),
    ),
    Case("continuous spider, derived", ContinuousSpider(), _LOGISTIC),
    Case("continuous spider, whitened", Whitening(inner=ContinuousSpider()), _LOGISTIC, still=None),
    Case("geometric gradient descent", GradientDescent.geometric(steps=6), _LOGISTIC),
    Case(
        "geometric gradient descent, own loss, ball",
        GradientDescent.geometric(steps=5, ratio=100.0),
        Problem(losses.RecordLoss(own_loss), NoRegulariser(), L2Ball(0.5)),
    ),
    Case(
        "geometric gradient descent, growth",
        GradientDescent.geometric(most_steps=12, growth=KL(gamma=1.0, kappa=2.0, gap=0.7)),
        Problem(losses.huber(0.5), L1(0.02)),
    ),
    Case("kl proximal point", KLProximalPoint(**_PROXIMAL), _LOGISTIC, still={"outer_steps": 0}),
    Case(
        "kl proximal point, median, ball",
        KLProximalPoint(clip=0.4, growth=KL(gamma=1.0, kappa=3.0), **(_PROXIMAL | {"weight": None})),
        Problem(losses.quantile(0.5), constraint=L2Ball(0.5)),
        still={"outer_steps": 0},
    ),
    Case(
        "kl proximal point, own loss, elastic net",
        KLProximalPoint(weak_convexity=0.5, **_PROXIMAL),
        Problem(losses.RecordLoss(own_loss), ElasticNet(0.02, 0.1)),
        still={"outer_steps": 0},
    ),
    Case(
        "curvature probe",
        CurvatureProbe(inner=GradientDescent.geometric(most_steps=8)),
        _LOGISTIC,
        still=None,
    ),
    Case(
        "curvature probe, gradient descent, softmax",
        CurvatureProbe(inner=GradientDescent(momentum=0.5)),
        Problem(losses.softmax(3), Ridge(0.1)),
        still=None,
    ),
    Case(
        "curvature probe, spider, ball",
        CurvatureProbe(inner=ContinuousSpider(most_steps=8)),
        Problem(losses.huber(0.5), constraint=L2Ball(0.5)),
        still=None,
    ),
    Case(
        "curvature probe, spider",
        CurvatureProbe(inner=ContinuousSpider(most_steps=8)),
        _LOGISTIC,
        still=None,
        tags=frozenset({_LATER}),
    ),
    Case("adaptive gradient descent", AdaptiveGradientDescent(**_ADAPTIVE), _LOGISTIC, still=_NO_STEPS),
    Case(
        "adaptive gradient descent, own loss, flattest",
        AdaptiveGradientDescent(returns="flattest", **_ADAPTIVE),
        Problem(losses.RecordLoss(own_loss), Ridge(0.1)),
        still=_NO_STEPS,
        tags=frozenset({_LATER}),
    ),
    Case(
        "adaptive gradient descent, ball, selected",
        AdaptiveGradientDescent(returns="selected", **_ADAPTIVE),
        Problem(losses.squared, NoRegulariser(), L2Ball(0.5)),
        still=_NO_STEPS,
        tags=frozenset({_LATER}),
    ),
    Case(
        "adaptive gradient descent, l1, average",
        AdaptiveGradientDescent(returns="average", **_ADAPTIVE),
        Problem(losses.huber(0.5), L1(0.02)),
        still=_NO_STEPS,
        tags=frozenset({_LATER}),
    ),
    Case(
        "adaptive gradient descent, softmax",
        AdaptiveGradientDescent(most_steps=60),
        Problem(losses.softmax(3), Ridge(0.1)),
        still=_NO_STEPS,
        tags=frozenset({_LATER}),
    ),
    Case(
        "adaptive gradient descent, the paper's",
        AdaptiveGradientDescent(variant="paper", **_ADAPTIVE),
        Problem(losses.logistic),
        still=_NO_STEPS,
        tags=frozenset({_LATER}),
    ),
    Case("o2nc", O2NC(**_WINDOWS), _LOGISTIC, tags=frozenset({_TYPICAL})),
    Case(
        "o2nc, own loss, jitter, constant radius, best window",
        O2NC(mode="guarantee", returns="best", oracle="jitter", **_WINDOWS),
        Problem(losses.RecordLoss(own_loss)),
        tags=frozenset({_LATER}),
    ),
    Case(
        "o2nc, sampled, middles, random window",
        O2NC(rate=0.5, places="middle", returns="random", **_WINDOWS),
        Problem(losses.RecordLoss(own_loss)),
        tags=frozenset({_LATER}),
    ),
    Case(
        "o2nc, users, parts in turns", O2NC(blocks=4, **_WINDOWS), Problem(losses.quantile(0.5)), by_user=True
    ),
    Case("single-pass o2nc", SinglePassO2NC(steps=4, window=2), _LOGISTIC, by_user=True),
    Case(
        "single-pass o2nc, changes by lunes, own loss",
        SinglePassO2NC(steps=4, window=2, variance_reduction=True, period=2, estimate="lune"),
        Problem(losses.RecordLoss(own_loss)),
    ),
    Case(
        "variance-reduced o2nc",
        VarianceReducedO2NC(steps=4, window=2, places="uniform", returns="random"),
        Problem(losses.quantile(0.5)),
    ),
    Case(
        "private clip, o2nc, own loss",
        PrivateClip(inner=O2NC(steps=4, window=2, quantile=0.5)),
        Problem(losses.RecordLoss(own_loss)),
        still=None,
    ),
    Case(
        "o2nc, exact, random window",
        O2NC(returns="random", **_WINDOWS),
        Problem(losses.ramp(0.0)),
        tags=frozenset({_LATER}),
    ),
    Case(
        "o2nc, values",
        O2NC(oracle="values", directions=3, **_WINDOWS),
        Problem(losses.softmax(3)),
        tags=frozenset({_LATER}),
    ),
    Case("kl spider", KLSpider(**_PHASES), Problem(losses.logistic, growth=_KL), still=_NO_PHASES),
    Case(
        "kl spider, ridge, no recycling",
        KLSpider(recycle=False, growth=KL(gamma=1.0, kappa=2.0, gap=0.15), **_PHASES),
        Problem(losses.squared, Ridge(0.1)),
        still=_NO_PHASES,
        tags=frozenset({_LATER}),
    ),
    Case(
        "kl spider, own loss, ball",
        KLSpider(curvature=2.0, difference_clip=0.5, growth=_KL, **_PHASES),
        Problem(losses.RecordLoss(own_loss), constraint=L2Ball(0.5)),
        still=_NO_PHASES,
        tags=frozenset({_LATER}),
    ),
    Case(
        "kl spider, the paper's phases",
        KLSpider(variant="paper", growth=KL(gamma=0.5, kappa=1.5), clip=0.4, most_steps=20),
        Problem(losses.softmax(3)),
        still=_NO_PHASES,
        tags=frozenset({_LATER}),
    ),
    Case("dp spider", DPSpider(steps=7, period=3, clip=0.4, step_size=1.0), _LOGISTIC),
    Case(
        "dp spider, l1, last",
        DPSpider(steps=4, period=2, clip=0.4, difference_clip=0.2, returns="last"),
        Problem(losses.huber(0.5), L1(0.02)),
    ),
    Case(
        "dp spider, own loss, ball",
        DPSpider(steps=5, period=5, clip=0.4, curvature=2.0, anchor_share=0.3),
        Problem(losses.RecordLoss(own_loss), constraint=L2Ball(0.5)),
    ),
    Case(
        "worst group descent, cvar, released shares and losses, ball",
        WorstGroupDescent(steps=3, report_share=0.1),
        Problem(_UNKNOWN_SHARES, constraint=L2Ball(0.5)),
    ),
    Case(
        "worst group descent, drawn, ridge",
        WorstGroupDescent(steps=4, draws=3),
        Problem(_GROUPED.loss, Ridge(0.1)),
        tags=frozenset({_LATER}),
    ),
    Case("worst group descent, whitened", Whitening(inner=WorstGroupDescent(steps=4)), _GROUPED, still=None),
    Case(
        "worst group two stage, intercept, released shares",
        WorstGroupTwoStage(selection_steps=2, inner=WorstGroupDescent(steps=2, report_share=0.2)),
        Problem(_UNKNOWN_SHARES, constraint=Product(((L1Ball(2.0), D - 1), (Box(-1.0, 1.0), 1)))),
        still=None,
    ),
    Case("phased sgd", PhasedSGD(phases=2), _LOGISTIC, _ALONE, still={"phases": 0}),
    Case(
        "phased sgd, l1, ball",
        PhasedSGD(clip=0.5, step_size=0.3),
        Problem(losses.huber(0.5), L1(0.02), L2Ball(0.5)),
        _ALONE,
        still={"phases": 0},
    ),
    Case("snowball sgd", SnowballSGD(), _LOGISTIC, _ALONE, still=None),
    Case(
        "snowball sgd, elastic net, ball",
        SnowballSGD(clip=0.5, noise_ratio=4.0, step_size=0.3),
        Problem(losses.squared, ElasticNet(0.02, 0.1), L2Ball(0.5)),
        _ALONE,
        still=None,
    ),
    Case(
        "strongly convex stages",
        StronglyConvexStages(inner=GradientDescent(**_FULL), distance=1e3, fewest_units=2),
        _LOGISTIC,
        still=None,
    ),
    Case(
        "strongly convex stages, all units",
        StronglyConvexStages(inner=GradientDescent(**_FULL), distance=1e3, split="allot"),
        Problem(losses.softmax(3), Ridge(0.1)),
        still=None,
    ),
    Case(
        "strongly convex stages, phased sgd",
        StronglyConvexStages(inner=PhasedSGD(phases=1), distance=1e3, fewest_units=2),
        _LOGISTIC,
        _ALONE,
        still=None,
    ),
    Case(
        "randomized smoothing, median",
        RandomizedSmoothing(inner=GradientDescent(**_FULL)),
        Problem(losses.quantile(0.5), constraint=L2Ball(0.5)),
        still=None,
    ),
    Case(
        "randomized smoothing, own loss, sampled",
        RandomizedSmoothing(
            inner=StochasticGradientDescent(**(_SAMPLED | {"noise_multiplier": None})), radius=0.3
        ),
        Problem(losses.RecordLoss(own_loss)),
        still=None,
    ),
    Case(
        "randomized smoothing, softmax",
        RandomizedSmoothing(inner=GradientDescent(**_FULL), radius=0.3),
        Problem(losses.softmax(3), Ridge(0.1)),
        still=None,
        tags=frozenset({_LATER}),
    ),
    Case("phased group sgd", PhasedGroupSGD(**_GROUPS), _LOGISTIC, still={"phases": 0}, by_user=True),
    Case(
        "phased group sgd, private radius",
        PhasedGroupSGD(radius_quantile=0.5, **_GROUPS),
        _LOGISTIC,
        still={"phases": 0},
    ),
    Case(
        "phased group sgd, blocks, ball",
        PhasedGroupSGD(reuse=False, **_GROUPS),
        Problem(losses.squared, NoRegulariser(), L2Ball(0.5)),
        still={"phases": 0},
    ),
    Case(
        "phased group sgd, softmax",
        PhasedGroupSGD(**_GROUPS),
        Problem(losses.softmax(3)),
        still={"phases": 0},
        tags=frozenset({_LATER}),
    ),
    Case(
        "phased group sgd, own loss",
        PhasedGroupSGD(**_GROUPS),
        Problem(losses.RecordLoss(own_loss), Ridge(0.1)),
        still={"phases": 0},
        tags=frozenset({_LATER}),
    ),
    Case(
        "phased accelerated erm",
        PhasedAcceleratedERM(**_ACCELERATED),
        _LOGISTIC,
        still={"phases": 0},
        by_user=True,
    ),
    Case(
        "phased accelerated erm, clipped, l1, restarts",
        PhasedAcceleratedERM(aggregator="clip", stages="multi", smoothness=1.0, **_ACCELERATED),
        Problem(losses.huber(0.5), L1(0.02)),
        still={"phases": 0},
    ),
    Case(
        "phased accelerated erm, blocks, sampled",
        PhasedAcceleratedERM(reuse=False, rate=0.5, noise_multiplier=8.0, **_ACCELERATED),
        Problem(losses.softmax(3), Ridge(0.1)),
        still={"phases": 0},
        tags=frozenset({_LATER}),
    ),
    Case(
        "phased accelerated erm, own loss, ball",
        PhasedAcceleratedERM(aggregator="clip", **_ACCELERATED),
        Problem(losses.RecordLoss(own_loss), constraint=L2Ball(0.5)),
        still={"phases": 0},
    ),
    Case("example, plain descent", PlainDescent(steps=6, step_size=1.0), _LOGISTIC),
    Case(
        "example, plain descent, own loss",
        PlainDescent(steps=6, step_size=1.0),
        Problem(losses.RecordLoss(own_loss)),
    ),
    Case("example, sampled descent", SampledDescent(steps=6, rate=0.5, noise_multiplier=8.0), _LOGISTIC),
    Case("example, streamed descent", StreamedDescent(steps=5), _LOGISTIC, still=None),
    Case(
        "example, streamed descent, l1",
        StreamedDescent(steps=4),
        Problem(losses.huber(0.5), L1(0.02)),
        still=None,
    ),
    Case(
        "adaptive gradient descent, whitened",
        Whitening(inner=AdaptiveGradientDescent(most_steps=8)),
        _LOGISTIC,
        still=None,
        tags=frozenset({_TYPICAL}),
    ),
)
CASES = [(case, relation) for case in EVERY_CASE for relation in case.relations]


def is_repeated(case: Any, cases: Sequence[Any]) -> bool:
    """Whether it is another setting of a published solver: of each one case runs at once, the others in the audit."""

    def kind(one: Any) -> tuple[type, type, bool]:
        return type(one.solver), type(getattr(one.solver, "inner", None)), getattr(one, "by_user", False)

    published = type(case.solver).__module__.startswith("privopt.papers.")
    return published and any(kind(case) == kind(other) for other in cases[: cases.index(case)])


def _marks(case: Case, relation: str) -> tuple[Any, ...]:
    """Typical cases run under both relations, the others under one, in turn; all of them in the audit."""
    turn = EVERY_CASE.index(case) % 2
    other = len(case.relations) > 1 and _TYPICAL not in case.tags and relation != case.relations[turn]
    waits = _LATER in case.tags or other or is_repeated(case, EVERY_CASE)
    return (pytest.mark.audit,) if waits else ()


def _named(values: tuple[Any, ...], pair: tuple[Case, str]) -> Any:
    return pytest.param(*values, marks=_marks(*pair), id=f"{pair[0].name}, {pair[1]}")


AT_ONCE = [pair for pair in CASES if not _marks(*pair)]  # the others in the audit
CASE_ARGUMENTS = [_named(pair, pair) for pair in CASES]
CASE_PAIRS = [_named((pair,), pair) for pair in CASES]


def those(wanted: Callable[[Case], bool]) -> dict[str, Any]:
    """Arguments of `parametrize` for the cases that a test is about, in turn with a relation as above."""
    return {"argvalues": [_named(pair, pair) for pair in CASES if wanted(pair[0])]}


def tagged(tag: str) -> dict[str, Any]:
    """The same for the cases that carry a tag."""
    return those(lambda case: tag in case.tags)


def toy_arrays(case: Case, seed: int = 0):
    """Features (N, D) and targets of the right kind for the case's loss."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(N, D))
    scores = features @ np.arange(1.0, D + 1.0)
    if case.problem.loss.outputs > 1:
        return features, (np.digitize(scores, [-3.0, 3.0])).astype(float)
    if isinstance(case.problem.loss, GroupedLoss):
        groups = rng.integers(1, case.problem.loss.groups + 1, N)
        return features, groups * np.where(scores + rng.normal(size=N) > 0, 1.0, -1.0)
    if case.problem.loss.name in ("logistic", "smoothed hinge"):
        return features, np.where(scores + rng.normal(size=N) > 0, 1.0, -1.0)
    return features, np.tanh(scores)


def as_units(features, targets, relation: str, *, by_user: bool = False) -> Units:
    """The toy data behind a row bound of 1; two records a user, whose choice is the same every time, where asked."""
    if not by_user:
        return Units.from_arrays(features, targets, relation=relation, row_bound=1.0, n=N)
    return Units.from_arrays(
        features, targets, relation=relation, row_bound=1.0, n=N // 2, groups=np.arange(len(features)) // 2,
        max_records_per_user=3, noise=NoiseSource(7),
    )  # fmt: skip


def neighbours(case: Case, relation: str, features, targets, last):
    """Two data sets that differ in their last unit: its last record is another one, or the unit is gone."""
    other, moved = features.copy(), targets.copy()
    other[-1] = last
    if isinstance(case.problem.loss, GroupedLoss):  # another label, in another group
        moved[-1] = -np.sign(targets[-1]) * (np.abs(targets[-1]) % case.problem.loss.groups + 1)
    if relation == "replace-one":
        sides = (features, targets), (other, moved)
    else:
        kept = -2 if case.by_user else -1
        sides = (other, targets), (other[:kept], targets[:kept])
    return [as_units(*side, relation, by_user=case.by_user) for side in sides]
