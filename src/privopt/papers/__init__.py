"""Published algorithms that others of this library dominate: nothing offers them, and whoever names one gets it.

`privopt.plan` does not list them, and "auto" does not choose them. They are priced, run and checked as all others are,
so that a paper can be read beside its algorithm and its tables made again: see docs/papers.md. Each is loaded when it
is first used, by its class here or by its name in `minimize`, `minimax` and `SyntheticData`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privopt.papers.anytime_mirror_descent import AnytimeMirrorDescent
    from privopt.papers.best_response import BestResponse
    from privopt.papers.bias_reduced_mirror_descent import BiasReducedMirrorDescent
    from privopt.papers.boosted_saddle import BoostedSaddle
    from privopt.papers.dp_spider import DPSpider
    from privopt.papers.mirror_descent import MirrorDescent
    from privopt.papers.newton import DoubleNoiseNewton
    from privopt.papers.output_perturbation import OutputPerturbation
    from privopt.papers.phased_group_sgd import PhasedGroupSGD
    from privopt.papers.phased_sgd import PhasedSGD
    from privopt.papers.pmw import PrivateMultiplicativeWeights
    from privopt.papers.saddle_mirror_descent import SaddleMirrorDescent
    from privopt.papers.single_pass_o2nc import SinglePassO2NC
    from privopt.papers.snowball_sgd import SnowballSGD
    from privopt.papers.strongly_convex_stages import StronglyConvexStages
    from privopt.papers.variance_reduced_frank_wolfe import VarianceReducedFrankWolfe
    from privopt.papers.variance_reduced_o2nc import VarianceReducedO2NC

__all__ = [
    "AnytimeMirrorDescent",
    "BestResponse",
    "BiasReducedMirrorDescent",
    "BoostedSaddle",
    "DPSpider",
    "DoubleNoiseNewton",
    "MirrorDescent",
    "OutputPerturbation",
    "PhasedGroupSGD",
    "PhasedSGD",
    "PrivateMultiplicativeWeights",
    "SaddleMirrorDescent",
    "SinglePassO2NC",
    "SnowballSGD",
    "StronglyConvexStages",
    "VarianceReducedFrankWolfe",
    "VarianceReducedO2NC",
]

# The names by which they are asked for, of each kind of program.
SOLVERS = {
    "output-perturbation": "OutputPerturbation",
    "mirror-descent": "MirrorDescent",
    "variance-reduced-frank-wolfe": "VarianceReducedFrankWolfe",
    "anytime-mirror-descent": "AnytimeMirrorDescent",
    "newton": "DoubleNoiseNewton",
    "dp-spider": "DPSpider",
    "single-pass-o2nc": "SinglePassO2NC",
    "variance-reduced-o2nc": "VarianceReducedO2NC",
    "phased-sgd": "PhasedSGD",
    "snowball-sgd": "SnowballSGD",
    "strongly-convex-stages": "StronglyConvexStages",
    "phased-group-sgd": "PhasedGroupSGD",
}
GAME_SOLVERS = {
    "best-response": "BestResponse",
    "saddle-mirror-descent": "SaddleMirrorDescent",
    "bias-reduced-mirror-descent": "BiasReducedMirrorDescent",
    "boosted-saddle": "BoostedSaddle",
}
SYNTHESIZERS = {
    "pmw": "PrivateMultiplicativeWeights",
}

_HOME = {
    "AnytimeMirrorDescent": "anytime_mirror_descent",
    "BestResponse": "best_response",
    "BiasReducedMirrorDescent": "bias_reduced_mirror_descent",
    "BoostedSaddle": "boosted_saddle",
    "DPSpider": "dp_spider",
    "DoubleNoiseNewton": "newton",
    "MirrorDescent": "mirror_descent",
    "OutputPerturbation": "output_perturbation",
    "PhasedGroupSGD": "phased_group_sgd",
    "PhasedSGD": "phased_sgd",
    "PrivateMultiplicativeWeights": "pmw",
    "SaddleMirrorDescent": "saddle_mirror_descent",
    "SinglePassO2NC": "single_pass_o2nc",
    "SnowballSGD": "snowball_sgd",
    "StronglyConvexStages": "strongly_convex_stages",
    "VarianceReducedFrankWolfe": "variance_reduced_frank_wolfe",
    "VarianceReducedO2NC": "variance_reduced_o2nc",
}


def published(name: str) -> Any:
    """A program by its name, with all fields open.

    Raises:
        KeyError: no program here has it.
    """
    return __getattr__({**SOLVERS, **GAME_SOLVERS, **SYNTHESIZERS}[name])()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'privopt.papers' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"privopt.papers.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
