"""Defaults, forecast and picture of descent with correlated noise.

Epochs and blocks make T = k b steps. The noise of the mean gradient of a whole run is that of one full-batch release
bought with the whole budget, times `excess_noise`: 2.1 for one epoch of 50 blocks, 1.04 for 8 epochs of 12. With that
signal the rule of `descent_defaults` gives a number of steps, of which SHARE are taken: too many blocks cost far more
than too few. Step size and momentum are those of full-batch descent for as many steps. Chosen by the excess of logistic
regression on adult, randhie, compas and german at epsilon 0.3 to 3. Utility only.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.mechanisms.correlated_noise import prefix_noise
from privopt.mechanisms.participation import Participation, unit_sensitivity
from privopt.mechanisms.strategies import (
    Strategy,
    banded,
    binary_tree,
    dense_optimum,
    independent,
    square_root_toeplitz,
)
from privopt.planning import descent_defaults
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta, long_steps
from privopt.planning.picture import Picture, line

EPOCHS = 8
SHARE = 0.75  # of the steps that full-batch descent with this signal would take
SMALLEST_BLOCK = 20


def participation(solver: Any) -> Participation:
    """Every unit is in one block, and every block in one item an epoch."""
    return Participation(separation=solver.blocks, most=solver.epochs)


def strategy(solver: Any) -> Strategy:
    """The strategy of a solver's name, of sensitivity 1 for its epochs."""
    items, blocks = solver.epochs * solver.blocks, solver.blocks
    match solver.strategy:
        case "bands":
            made: Strategy = banded(items, blocks)
        case "optimum":
            made = dense_optimum(np.ones(items))
        case "square-root":
            made = square_root_toeplitz(items)
        case "tree":
            made = binary_tree(items)
        case _:
            made = independent(items)
    return unit_sensitivity(made, participation(solver))


def excess_noise(epochs: int, blocks: int) -> float:
    """The noise of the sum of all gradients of a run, over that of one full-batch release of the same price."""
    cut = banded(epochs * blocks, blocks)
    return float(prefix_noise(cut)[-1]) / math.sqrt(epochs)


def epochs(solver: Any, instance: Instance) -> int:
    """k; with the noise off as many as a full-batch descent has steps."""
    if instance.is_private:
        return EPOCHS
    return descent_defaults.default_steps(instance, step_size(solver, instance))


def blocks(solver: Any, instance: Instance) -> int:
    """b, see the module's docstring; one block with the noise off, that is full-batch descent."""
    if not instance.is_private:
        return 1
    steps = descent_defaults.default_steps(instance, step_size(solver, instance))
    most = max(1, instance.public.n // SMALLEST_BLOCK)
    first = min(max(1, round(steps / solver.epochs)), most)
    steps *= SHARE / math.sqrt(excess_noise(solver.epochs, first))  # a signal to the power of a half
    return min(max(1, round(steps / solver.epochs)), most)


def step_size(solver: Any, instance: Instance) -> float:
    """eta of full-batch descent."""
    del solver
    return descent_defaults.descent_setting(instance, steps=1).step_size


def momentum(solver: Any, instance: Instance) -> float:
    """b of full-batch descent with as many steps."""
    return descent_defaults.descent_setting(instance, steps=solver.epochs * solver.blocks).momentum


DEFAULTS = {
    "epochs": epochs,
    "blocks": blocks,
    "clip": lambda solver, instance: descent_defaults.default_clip(instance),
    "step_size": step_size,
    "momentum": momentum,
}


def forecast(solver: Any, instance: Instance) -> Forecast:
    """No prediction; notices on what was guessed, and on steps that are too long."""
    if not instance.is_private:
        return Forecast(notices=(NOISE_IS_OFF,))
    smoothness = descent_defaults.smoothness(instance) + instance.penalty_smoothness
    found = large_delta(instance) + long_steps(solver.step_size, smoothness)
    if instance.has_own_loss:
        found += (
            "step size and clip of a user-written loss, where not given, are guesses from the row bound.",
        )
    return Forecast(notices=found)


def noise_picture(
    scales: NDArray[np.float64], sensitivities: NDArray[np.float64], solver: Any
) -> tuple[Picture, ...]:
    """The noise of the released sums beside that of independent noise of the same price; nothing with the noise off.

    Args:
        scales: standard deviation of the noise on each sum.
        sensitivities: of the items.
        solver: how often a unit is in an item, and the price.
    """
    if not solver.noise_multiplier > 0:
        return ()
    alone = solver.noise_multiplier * math.sqrt(solver.epochs) * np.sqrt(np.cumsum(sensitivities**2))
    steps = range(1, len(scales) + 1)
    return (
        Picture(
            title="Noise of the released sums of gradients",
            caption="Standard deviation of each coordinate, step by step. Correlated noise nearly cancels in the sums, "
            "along which the parameters move; independent noise at the same price adds up.",
            x="step",
            y="standard deviation",
            series=(
                line("correlated, as added", scales.tolist(), steps),
                line("independent", alone.tolist(), steps),
            ),
        ),
    )
