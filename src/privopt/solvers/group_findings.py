"""What the releases of a run show about groups: how they were weighted, and whether anything was to be gained."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from privopt.planning.plan import Finding
from privopt.problems.grouped_loss import GroupedLoss
from privopt.solvers.group_weights import Play

SURE = 2.0  # standard deviations from which on a difference is more than noise
NEAR = 0.1  # total variation below which weights are those of a plain mean


def findings(
    loss: GroupedLoss, shares: NDArray[np.float64], play: Play | None, noise: float
) -> Mapping[str, Finding]:
    """By name, what a run shows.

    Args:
        loss: of the groups.
        shares: public or released.
        play: the player at the end of the run; None where nobody weighted groups.
        noise: standard deviation of one released sum of a group's losses; 0 where they stayed hidden.
    """
    found: dict[str, Finding] = {}
    if loss.shares is None:
        found["group_shares"] = Finding(
            shares, "released share of the records in each group, in the order declared"
        )
    if play is None:
        return found
    history = np.asarray(play.history)
    found["group_weights"] = Finding(
        history, "weight of each group (column) in each step (row), from released losses or draws"
    )
    if play.measured:
        found["worst_group_excess"] = _excess(loss, shares, history, np.asarray(play.measured), noise)
    return found


def _excess(
    loss: GroupedLoss,
    shares: NDArray[np.float64],
    history: NDArray[np.float64],
    measured: NDArray[np.float64],
    noise: float,
) -> Finding:
    """How far the worst group stands out, and whether weighting it changed what is minimised."""
    steps = np.arange(1.0, len(measured) + 1.0)
    steps /= np.sum(steps)
    losses, weights = steps @ measured, steps @ history
    worst = int(np.argmax(losses))
    excess = float(losses[worst] - shares @ losses)
    spread = noise * math.sqrt(float(steps @ steps)) / float(loss.divisors(shares)[worst])
    moved = 0.5 * float(np.sum(np.abs(weights - shares)))
    meaning = (
        "how much larger the worst group's released loss was than the mean over all records, averaged over the steps "
        f"(its noise has standard deviation {spread:.2g}); weights moved by {moved:.2f} of 1 from the groups' shares"
    )
    if excess <= SURE * spread:
        meaning += (
            ". No group stands out of the noise: nothing to gain over a plain fit was seen at this budget"
        )
    elif moved < NEAR:
        meaning += ". The weights stayed near the shares, so a plain fit minimises nearly the same mean: little to gain"
    return Finding(excess, meaning)
