"""Algorithms: programs over a curator, pure post-processing of what it releases.

Solvers of minimisations and of games are imported from here; a name is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from privopt import papers

if TYPE_CHECKING:
    from privopt.games.dual_averaging import NoisyExponentiatedGradient, SampledDualAveraging
    from privopt.games.noisy_extragradient import NoisyExtragradient, SaddleGradientDescent
    from privopt.games.noisy_matrix import NoisyMatrix
    from privopt.solvers.accelerated_mirror_descent import AcceleratedMirrorDescent
    from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent
    from privopt.solvers.clip_choice import PrivateClip
    from privopt.solvers.continuous_spider import ContinuousSpider
    from privopt.solvers.correlated_noise_descent import CorrelatedNoiseDescent
    from privopt.solvers.curvature_probe import CurvatureProbe
    from privopt.solvers.frank_wolfe import FrankWolfe
    from privopt.solvers.gradient_descent import GradientDescent
    from privopt.solvers.group_privacy import GroupPrivacy as GroupPrivacy
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
    from privopt.solvers.user_gradient_descent import UserGradientDescent as UserGradientDescent
    from privopt.solvers.vertices import VertexAnytime
    from privopt.solvers.whitening import Whitening
    from privopt.solvers.worst_group_descent import WorstGroupDescent
    from privopt.solvers.worst_group_two_stage import WorstGroupTwoStage

__all__ = [
    "O2NC",
    "SVRG",
    "AcceleratedMirrorDescent",
    "AdaptiveGradientDescent",
    "ContinuousSpider",
    "CorrelatedNoiseDescent",
    "CurvatureProbe",
    "FrankWolfe",
    "GradientDescent",
    "KLProximalPoint",
    "KLSpider",
    "NoisyExponentiatedGradient",
    "NoisyExtragradient",
    "NoisyMatrix",
    "ObjectivePerturbation",
    "PhasedAcceleratedERM",
    "PosteriorDescent",
    "PrivateClip",
    "RandomizedSmoothing",
    "SaddleGradientDescent",
    "SampledDualAveraging",
    "StochasticGradientDescent",
    "UserFederatedAveraging",
    "VertexAnytime",
    "Whitening",
    "WorstGroupDescent",
    "WorstGroupTwoStage",
]

_HOME = {
    "AcceleratedMirrorDescent": "solvers.accelerated_mirror_descent",
    "AdaptiveGradientDescent": "solvers.adaptive_gradient_descent",
    "ContinuousSpider": "solvers.continuous_spider",
    "CorrelatedNoiseDescent": "solvers.correlated_noise_descent",
    "CurvatureProbe": "solvers.curvature_probe",
    "FrankWolfe": "solvers.frank_wolfe",
    "GradientDescent": "solvers.gradient_descent",
    "GroupPrivacy": "solvers.group_privacy",
    "KLProximalPoint": "solvers.kl_proximal_point",
    "KLSpider": "solvers.kl_spider",
    "NoisyExponentiatedGradient": "games.dual_averaging",
    "NoisyExtragradient": "games.noisy_extragradient",
    "NoisyMatrix": "games.noisy_matrix",
    "O2NC": "solvers.o2nc",
    "ObjectivePerturbation": "solvers.objective_perturbation",
    "PhasedAcceleratedERM": "solvers.phased_accelerated_erm",
    "PosteriorDescent": "solvers.posterior_descent",
    "PrivateClip": "solvers.clip_choice",
    "RandomizedSmoothing": "solvers.randomized_smoothing",
    "SVRG": "solvers.svrg",
    "SaddleGradientDescent": "games.noisy_extragradient",
    "SampledDualAveraging": "games.dual_averaging",
    "StochasticGradientDescent": "solvers.stochastic_gradient_descent",
    "UserGradientDescent": "solvers.user_gradient_descent",
    "UserFederatedAveraging": "solvers.user_federated_averaging",
    "VertexAnytime": "solvers.vertices",
    "Whitening": "solvers.whitening",
    "WorstGroupDescent": "solvers.worst_group_descent",
    "WorstGroupTwoStage": "solvers.worst_group_two_stage",
}


_RENAMED = {
    "ScheduledGradientDescent": ": it is GradientDescent.geometric",
    "WarmStart": ": it is an option, BlackBox(..., warm_start=1024)",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        moved = f": it is privopt.papers.{name}" if name in papers.__all__ else _RENAMED.get(name, "")
        raise AttributeError(f"module 'privopt.solvers' has no attribute {name!r}{moved}")
    value = globals()[name] = getattr(importlib.import_module(f"privopt.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
