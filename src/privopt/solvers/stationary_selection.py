"""A private choice of the point with the smallest gradient, among points that are public or released.

The exponential mechanism on minus the norms |grad F(w_t)|; the norms are exact and stay with the curator. Each moves
by at most Delta = factor L0 / n when a unit changes, up or down, so the range of the change is at most 2 Delta, and
with an epsilon of e the chance of point t is proportional to exp(-c |grad F(w_t)|), c = e / (2 Delta). It costs e^2 / 8
in zCDP.

Source:
    Menart, Ullah, Arora, Bassily, Guzman 2023, Theorem 5; bounded range: Dong, Durfee, Rogers 2020.
"""

import heapq
from collections.abc import Sequence

from privopt.curator.base import Curator
from privopt.later import Array, jnp
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.problems.glm import Loss
from privopt.queries.gradient_norms import GradientNorms

MOST_CANDIDATES = 64


class FlattestPoints:
    """The points with the smallest estimated gradient norms of all that were added; the earlier one among equals."""

    def __init__(self, most: int = MOST_CANDIDATES) -> None:
        self._most = most
        self._heap: list[tuple[float, int, Array]] = []  # the worst first
        self._added = 0

    def add(self, norm: float, point: Array) -> None:
        """Offer a point; a norm and a point are functions of releases."""
        entry = (-norm, -self._added, point)
        self._added += 1
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    @property
    def least(self) -> tuple[float, Array]:
        """The smallest norm and its point."""
        norm, _, point = max(self._heap, key=lambda entry: entry[:2])
        return -norm, point

    def in_order(self) -> tuple[list[float], list[Array]]:
        """Norms and points, in the order in which they were added."""
        ordered = sorted(self._heap, key=lambda entry: -entry[1])
        return [-norm for norm, _, _ in ordered], [point for _, _, point in ordered]


def select_stationary(
    curator: Curator,
    loss: Loss,
    points: Sequence[Array],
    *,
    clip: float,
    mechanism: ExponentialMechanism,
    offsets: Sequence[Array] | None = None,
) -> int:
    """Choose the point where the clipped mean gradient is shortest, nearly always one where it is nearly so.

    Args:
        curator: answers the one release.
        loss: whose gradients.
        points: public or released, all of one shape; at least one. Each costs a pass over the data.
        clip: L0, the largest norm of one unit's gradient.
        mechanism: epsilon is the range of one choice: rho = epsilon^2 / 8 in zCDP.
        offsets: gradients of a smooth penalty at the points, public; none by default.
    Returns:
        The index of the chosen point. Its norm exceeds the smallest by 2 Delta ln(T) / epsilon in the mean, or less.
    Privacy:
        One release by the exponential mechanism of sensitivity 2 Delta in the range; the norms stay with the curator.
    Raises:
        BudgetExceeded, PlanMismatch: nothing was read or spent.
    """
    if not points:
        raise ValueError("points must hold at least one point to choose from, got none.")
    query = GradientNorms(
        loss=loss,
        points=jnp.stack([jnp.asarray(point, jnp.float64) for point in points]),
        clip=clip,
        offsets=0.0 if offsets is None else jnp.stack([jnp.asarray(o, jnp.float64) for o in offsets]),
    )
    return int(curator.release(query, mechanism))
