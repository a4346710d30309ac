"""What the releases of a run show about groups: how they were weighted, and whether anything was to be gained."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from privopt.planning.picture import Picture, line
from privopt.planning.plan import Finding
from privopt.problems.grouped_loss import GroupedLoss
from privopt.solvers.group_weights import Play

SURE = 2.0  # standard deviations from which on a difference is more than noise
NEAR = 0.1  # total variation below which weights are those of a plain mean
MOST_LINES = 4  # of a picture
MOST = 0.5  # share of the records from which on a group is what a plain mean is about


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
    """Whether a group stood out while the weights followed the losses, and whether they changed what is minimised.

    Losses that the weights have made equal do not differ at the end; over all steps they did.
    """
    losses, weights = np.mean(measured, axis=0), np.mean(history, axis=0)
    spreads = noise / math.sqrt(len(measured)) / loss.divisors(shares)
    above = losses - float(shares @ losses)
    worst = int(np.argmax(above / np.maximum(spreads, 1e-300)))
    heaviest = int(np.argmax(weights))
    moved = 0.5 * float(np.sum(np.abs(weights - shares)))
    meaning = (
        f"how far the released loss of the group that stood out most (number {worst + 1} of those declared) was above "
        f"the mean over all records, averaged over the steps; its noise has standard deviation {spreads[worst]:.2g}, "
        f"and the weights moved by {moved:.2f} of 1 from the groups' shares"
    )
    if above[worst] <= SURE * spreads[worst]:
        meaning += ". No group clearly stood out of the noise: nothing to gain over a plain fit was seen at this budget"
    elif moved < NEAR:
        meaning += (
            ". The weights stayed near the shares: a plain fit minimises nearly the same mean, little to gain"
        )
    elif shares[heaviest] > MOST:
        meaning += (
            f". The group with most weight (number {heaviest + 1}) holds {shares[heaviest]:.0%} of the records: a "
            "plain fit minimises mostly its loss already, little to gain"
        )
    return Finding(float(above[worst]), meaning)


def weights_picture(history: NDArray[np.float64], names: Sequence[str] = ()) -> Picture:
    """How groups were weighted, step by step: the (at most four) groups with most weight.

    Args:
        history: (steps, groups), from releases.
        names: of the groups; by default their numbers.
    """
    known: list[str] = list(names) or [f"group {number + 1}" for number in range(history.shape[1])]
    most = sorted(np.argsort(-np.mean(history, axis=0), kind="stable")[:MOST_LINES].tolist())
    rest = history.shape[1] - len(most)
    others = f" {rest} groups with less weight are not drawn." if rest else ""
    return Picture(
        title="Weights of the groups",
        caption=(
            "Weight of each group at each step, from released noisy losses: where a group's loss was larger, its "
            f"weight grew.{others}"
        ),
        x="step",
        y="weight",
        series=tuple(
            line(known[place], history[:, place].tolist(), range(1, len(history) + 1)) for place in most
        ),
    )
