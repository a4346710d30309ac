"""Differentially private optimization: private models with a guarantee that the code enforces.

What a user types; everything else is imported from its own file. A name is loaded when it is first used, so that
`import privopt` and the command line start at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privopt import certify
    from privopt.curator.journals import resumable
    from privopt.data.units import Units
    from privopt.estimators.classifiers import LinearSVC, LogisticRegression
    from privopt.estimators.fair import FairClassifier
    from privopt.estimators.lasso import LassoClassifier, LassoRegressor
    from privopt.estimators.regressors import (
        HuberRegressor,
        LinearRegression,
        PoissonRegressor,
        QuantileRegressor,
        Ridge,
    )
    from privopt.estimators.robust import RobustClassifier, RobustRegressor
    from privopt.estimators.selection import PrivateSearchCV
    from privopt.estimators.synthetic_data import SyntheticData
    from privopt.games.best_response import BestResponse
    from privopt.games.bias_reduced_mirror_descent import BiasReducedMirrorDescent
    from privopt.games.boosted_saddle import BoostedSaddle
    from privopt.games.noisy_exponentiated_gradient import NoisyExponentiatedGradient
    from privopt.games.noisy_extragradient import NoisyExtragradient
    from privopt.games.noisy_matrix import NoisyMatrix
    from privopt.games.saddle_gradient_descent import SaddleGradientDescent
    from privopt.games.saddle_mirror_descent import SaddleMirrorDescent
    from privopt.games.sampled_dual_averaging import SampledDualAveraging
    from privopt.ledger.account import Account
    from privopt.ledger.amounts import Budget
    from privopt.mean_of_users import user_mean
    from privopt.planning.public_clip import clip_from
    from privopt.precision import double_precision
    from privopt.problems import constraints, losses, regularisers
    from privopt.problems.black_box import BlackBox
    from privopt.problems.grouped_loss import GroupedLoss
    from privopt.problems.growth import KL
    from privopt.problems.problem import Problem
    from privopt.problems.saddle import BilinearGame, SaddleProblem
    from privopt.public import Relation
    from privopt.report.report import PrivacyReport
    from privopt.solve import minimize, plan
    from privopt.solve_games import minimax
    from privopt.solvers.accelerated_mirror_descent import AcceleratedMirrorDescent
    from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent
    from privopt.solvers.anytime_mirror_descent import AnytimeMirrorDescent
    from privopt.solvers.clip_choice import PrivateClip
    from privopt.solvers.continuous_spider import ContinuousSpider
    from privopt.solvers.correlated_noise_descent import CorrelatedNoiseDescent
    from privopt.solvers.curvature_probe import CurvatureProbe
    from privopt.solvers.dp_spider import DPSpider
    from privopt.solvers.frank_wolfe import FrankWolfe
    from privopt.solvers.gradient_descent import GradientDescent
    from privopt.solvers.kl_proximal_point import KLProximalPoint
    from privopt.solvers.kl_spider import KLSpider
    from privopt.solvers.mirror_descent import MirrorDescent
    from privopt.solvers.newton import DoubleNoiseNewton
    from privopt.solvers.o2nc import O2NC
    from privopt.solvers.objective_perturbation import ObjectivePerturbation
    from privopt.solvers.output_perturbation import OutputPerturbation
    from privopt.solvers.phased_accelerated_erm import PhasedAcceleratedERM
    from privopt.solvers.phased_group_sgd import PhasedGroupSGD
    from privopt.solvers.phased_sgd import PhasedSGD
    from privopt.solvers.posterior_descent import PosteriorDescent
    from privopt.solvers.randomized_smoothing import RandomizedSmoothing
    from privopt.solvers.scheduled_gradient_descent import ScheduledGradientDescent
    from privopt.solvers.single_pass_o2nc import SinglePassO2NC
    from privopt.solvers.snowball_sgd import SnowballSGD
    from privopt.solvers.stationary_selection import select_stationary
    from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent
    from privopt.solvers.strongly_convex_stages import StronglyConvexStages
    from privopt.solvers.svrg import SVRG
    from privopt.solvers.user_federated_averaging import UserFederatedAveraging
    from privopt.solvers.variance_reduced_frank_wolfe import VarianceReducedFrankWolfe
    from privopt.solvers.variance_reduced_o2nc import VarianceReducedO2NC
    from privopt.solvers.vertex_anytime import VertexAnytime
    from privopt.solvers.warm_start import WarmStart
    from privopt.solvers.whitening import Whitening
    from privopt.solvers.worst_group_descent import WorstGroupDescent
    from privopt.solvers.worst_group_two_stage import WorstGroupTwoStage
    from privopt.tables.encoder import TabularEncoder
    from privopt.tables.table import Table

    __version__: str

__all__ = [
    "KL",
    "O2NC",
    "SVRG",
    "AcceleratedMirrorDescent",
    "Account",
    "AdaptiveGradientDescent",
    "AnytimeMirrorDescent",
    "BestResponse",
    "BiasReducedMirrorDescent",
    "BilinearGame",
    "BlackBox",
    "BoostedSaddle",
    "Budget",
    "ContinuousSpider",
    "CorrelatedNoiseDescent",
    "CurvatureProbe",
    "DPSpider",
    "DoubleNoiseNewton",
    "FairClassifier",
    "FrankWolfe",
    "GradientDescent",
    "GroupedLoss",
    "HuberRegressor",
    "KLProximalPoint",
    "KLSpider",
    "LassoClassifier",
    "LassoRegressor",
    "LinearRegression",
    "LinearSVC",
    "LogisticRegression",
    "MirrorDescent",
    "NoisyExponentiatedGradient",
    "NoisyExtragradient",
    "NoisyMatrix",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "PhasedAcceleratedERM",
    "PhasedGroupSGD",
    "PhasedSGD",
    "PoissonRegressor",
    "PosteriorDescent",
    "PrivacyReport",
    "PrivateClip",
    "PrivateSearchCV",
    "Problem",
    "QuantileRegressor",
    "RandomizedSmoothing",
    "Relation",
    "Ridge",
    "RobustClassifier",
    "RobustRegressor",
    "SaddleGradientDescent",
    "SaddleMirrorDescent",
    "SaddleProblem",
    "SampledDualAveraging",
    "ScheduledGradientDescent",
    "SinglePassO2NC",
    "SnowballSGD",
    "StochasticGradientDescent",
    "StronglyConvexStages",
    "SyntheticData",
    "Table",
    "TabularEncoder",
    "Units",
    "UserFederatedAveraging",
    "VarianceReducedFrankWolfe",
    "VarianceReducedO2NC",
    "VertexAnytime",
    "WarmStart",
    "Whitening",
    "WorstGroupDescent",
    "WorstGroupTwoStage",
    "__version__",
    "certify",
    "clip_from",
    "constraints",
    "double_precision",
    "losses",
    "minimax",
    "minimize",
    "plan",
    "regularisers",
    "resumable",
    "select_stationary",
    "user_mean",
]

_HOME = {
    "certify": "privopt",
    "clip_from": "privopt.planning.public_clip",
    "select_stationary": "privopt.solvers.stationary_selection",
    "AcceleratedMirrorDescent": "privopt.solvers.accelerated_mirror_descent",
    "Account": "privopt.ledger.account",
    "AdaptiveGradientDescent": "privopt.solvers.adaptive_gradient_descent",
    "BilinearGame": "privopt.problems.saddle",
    "BlackBox": "privopt.problems.black_box",
    "Budget": "privopt.ledger.amounts",
    "ContinuousSpider": "privopt.solvers.continuous_spider",
    "CorrelatedNoiseDescent": "privopt.solvers.correlated_noise_descent",
    "CurvatureProbe": "privopt.solvers.curvature_probe",
    "DPSpider": "privopt.solvers.dp_spider",
    "DoubleNoiseNewton": "privopt.solvers.newton",
    "FairClassifier": "privopt.estimators.fair",
    "FrankWolfe": "privopt.solvers.frank_wolfe",
    "GradientDescent": "privopt.solvers.gradient_descent",
    "GroupedLoss": "privopt.problems.grouped_loss",
    "HuberRegressor": "privopt.estimators.regressors",
    "KL": "privopt.problems.growth",
    "KLProximalPoint": "privopt.solvers.kl_proximal_point",
    "KLSpider": "privopt.solvers.kl_spider",
    "LassoClassifier": "privopt.estimators.lasso",
    "LassoRegressor": "privopt.estimators.lasso",
    "LinearRegression": "privopt.estimators.regressors",
    "LinearSVC": "privopt.estimators.classifiers",
    "LogisticRegression": "privopt.estimators.classifiers",
    "MirrorDescent": "privopt.solvers.mirror_descent",
    "O2NC": "privopt.solvers.o2nc",
    "ObjectivePerturbation": "privopt.solvers.objective_perturbation",
    "OutputPerturbation": "privopt.solvers.output_perturbation",
    "PoissonRegressor": "privopt.estimators.regressors",
    "PrivacyReport": "privopt.report.report",
    "PrivateSearchCV": "privopt.estimators.selection",
    "Problem": "privopt.problems.problem",
    "QuantileRegressor": "privopt.estimators.regressors",
    "Relation": "privopt.public",
    "Ridge": "privopt.estimators.regressors",
    "RobustClassifier": "privopt.estimators.robust",
    "RobustRegressor": "privopt.estimators.robust",
    "SaddleProblem": "privopt.problems.saddle",
    "SampledDualAveraging": "privopt.games.sampled_dual_averaging",
    "minimax": "privopt.solve_games",
    "SaddleMirrorDescent": "privopt.games.saddle_mirror_descent",
    "SaddleGradientDescent": "privopt.games.saddle_gradient_descent",
    "NoisyExtragradient": "privopt.games.noisy_extragradient",
    "NoisyMatrix": "privopt.games.noisy_matrix",
    "NoisyExponentiatedGradient": "privopt.games.noisy_exponentiated_gradient",
    "BestResponse": "privopt.games.best_response",
    "BiasReducedMirrorDescent": "privopt.games.bias_reduced_mirror_descent",
    "BoostedSaddle": "privopt.games.boosted_saddle",
    "SVRG": "privopt.solvers.svrg",
    "ScheduledGradientDescent": "privopt.solvers.scheduled_gradient_descent",
    "StochasticGradientDescent": "privopt.solvers.stochastic_gradient_descent",
    "SyntheticData": "privopt.estimators.synthetic_data",
    "Table": "privopt.tables.table",
    "TabularEncoder": "privopt.tables.encoder",
    "Units": "privopt.data.units",
    "PhasedAcceleratedERM": "privopt.solvers.phased_accelerated_erm",
    "PhasedGroupSGD": "privopt.solvers.phased_group_sgd",
    "PhasedSGD": "privopt.solvers.phased_sgd",
    "PosteriorDescent": "privopt.solvers.posterior_descent",
    "PrivateClip": "privopt.solvers.clip_choice",
    "RandomizedSmoothing": "privopt.solvers.randomized_smoothing",
    "SinglePassO2NC": "privopt.solvers.single_pass_o2nc",
    "SnowballSGD": "privopt.solvers.snowball_sgd",
    "StronglyConvexStages": "privopt.solvers.strongly_convex_stages",
    "UserFederatedAveraging": "privopt.solvers.user_federated_averaging",
    "AnytimeMirrorDescent": "privopt.solvers.anytime_mirror_descent",
    "VarianceReducedFrankWolfe": "privopt.solvers.variance_reduced_frank_wolfe",
    "VarianceReducedO2NC": "privopt.solvers.variance_reduced_o2nc",
    "VertexAnytime": "privopt.solvers.vertex_anytime",
    "WarmStart": "privopt.solvers.warm_start",
    "Whitening": "privopt.solvers.whitening",
    "WorstGroupDescent": "privopt.solvers.worst_group_descent",
    "WorstGroupTwoStage": "privopt.solvers.worst_group_two_stage",
    "constraints": "privopt.problems",
    "double_precision": "privopt.precision",
    "losses": "privopt.problems",
    "minimize": "privopt.solve",
    "plan": "privopt.solve",
    "resumable": "privopt.curator.journals",
    "regularisers": "privopt.problems",
    "user_mean": "privopt.mean_of_users",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        value: Any = metadata.version("privopt")
    elif name in _HOME:
        is_module = _HOME[name] in ("privopt", "privopt.problems")
        value = (
            importlib.import_module(f"{_HOME[name]}.{name}")
            if is_module
            else getattr(importlib.import_module(_HOME[name]), name)
        )
    else:
        raise AttributeError(f"module 'privopt' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
