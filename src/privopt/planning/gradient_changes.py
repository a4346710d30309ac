"""What a variance-reduced method asks for at a point and of the change between two, and how long that can be.

    kind         at a point                       of the change from z' to z, r = |z - z'|     at most
    plain        gradient                         difference of gradients                      min(H r, 2 C)
    exact        gradient averaged over a ball    difference of such                           min(H r, 2 C p(r))
    lune         gradient at a point of the ball  p(r) times that at a pair of points          2 C p(r)
    translate    likewise                         difference at m common random shifts         min(H r, 2 C)
    values       two-point values along lines     their difference along the same lines        min(H r, 2 C)

with C the clip of one unit's gradient, H one in gradient units per parameter unit, p(r) the share of a ball of the
smoothing radius that lies outside of one moved by r. All of these lengths are clips: none is assumed of the loss.

Source:
    Kornowski, Liu, Talwar 2024, Algorithms 3 to 5; clips, lunes and the closed smoothing are ours.
"""

import math
from typing import TYPE_CHECKING, Literal

from privopt.planning import descent_defaults
from privopt.planning.instance import Instance
from privopt.problems.ball import moved_share
from privopt.problems.black_box import BlackBox
from privopt.problems.glm import GLMLoss
from privopt.problems.losses import Loss, RecordLoss

if TYPE_CHECKING:
    from privopt.papers.single_pass_o2nc import SinglePassO2NC
    from privopt.papers.variance_reduced_o2nc import VarianceReducedO2NC

Estimate = Literal["plain", "exact", "lune", "translate", "values"]
SMOOTHED_SLOPE = 0.3  # H over sqrt(p) C / smoothing: unit differences are far shorter than the worst case
VALUE_SMOOTHING = 0.1  # in scales of a black box
MOST_DIRECTIONS = 200  # of one value estimate


def length_of_change(
    kind: Estimate, distance: float, *, clip: float, slope_clip: float, smoothing: float, parameters: int
) -> float:
    """The largest norm of one unit's change; 0 at distance 0."""
    if distance == 0.0:
        return 0.0
    if kind in ("exact", "lune"):
        by_share = 2.0 * clip * float(moved_share(distance, smoothing, parameters))
        return by_share if kind == "lune" else min(by_share, slope_clip * distance)
    return min(slope_clip * distance, 2.0 * clip)


def estimate(solver: "SinglePassO2NC | VarianceReducedO2NC", instance: Instance) -> Estimate:
    """Closed smoothing for losses of one prediction, values for those that have no gradient, else common shifts."""
    del solver
    loss: Loss = instance.problem.loss
    if isinstance(loss, GLMLoss):
        return "exact" if loss.outputs == 1 else "translate"
    return "translate" if isinstance(loss, RecordLoss) else "values"


def smoothing(solver: "SinglePassO2NC | VarianceReducedO2NC", instance: Instance, share: float) -> float:
    """The radius of the ball: a share of the distance, and a tenth of the scales of a black box."""
    if isinstance(instance.problem.loss, BlackBox):
        return VALUE_SMOOTHING
    return share * solver.distance


def clip(solver: "SinglePassO2NC | VarianceReducedO2NC", instance: Instance) -> float:
    """C: what descent takes; of a black box no more than its range over the ball allows along one direction."""
    usual, loss = descent_defaults.default_clip(instance), instance.problem.loss
    if isinstance(loss, BlackBox) and instance.is_private:
        return min(usual, (loss.high - loss.low) / (2.0 * solver.smoothing))
    return usual


def slope_clip(solver: "SinglePassO2NC | VarianceReducedO2NC", instance: Instance) -> float:
    """H: the curvature of the loss for plain gradients, none for closed smoothing, else 0.3 sqrt(p) C / smoothing.

    Raises:
        ValueError: the loss's curvature is not known.
    """
    if solver.estimate in ("exact", "lune"):
        return math.inf
    if solver.estimate != "plain":
        return SMOOTHED_SLOPE * math.sqrt(instance.parameters) * solver.clip / solver.smoothing
    curvature = instance.problem.loss_smoothness(instance.public)
    if math.isinf(curvature) and not math.isinf(solver.clip):
        raise ValueError(
            f"the {instance.problem.loss.name} loss has no known curvature, which bounds how far its gradient moves: "
            "give `slope_clip`, or another `estimate`, which smooths the loss."
        )
    return curvature


def obstacle(kind: Estimate | None, loss: Loss) -> str | None:
    """Why a loss has no such estimates, or None if it has."""
    if kind == "exact" and not (isinstance(loss, GLMLoss) and loss.outputs == 1):
        return f"the {loss.name} loss has no closed average over a ball: use estimate='lune' or 'translate'"
    if kind is not None and kind != "values" and not isinstance(loss, GLMLoss | RecordLoss):
        return f"the {loss.name} is known by its values only: use estimate='values'"
    return None


def directions(parameters: int) -> int:
    """k, of one value estimate."""
    return min(parameters, MOST_DIRECTIONS)


def few_directions(solver: "SinglePassO2NC | VarianceReducedO2NC", instance: Instance) -> tuple[str, ...]:
    """A notice where values are taken along fewer directions than there are parameters."""
    k, p = directions(instance.parameters), instance.parameters
    if solver.estimate != "values" or k == p:
        return ()
    return (
        f"values are taken along {k} random directions a step of {p} parameters: steps are noisier than with all of "
        "them.",
    )
