"""`losses.smoothed`: a loss with kinks as a smooth one, for any solver."""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from privopt.later import jnp
from privopt.problems.ball import Smoothed
from privopt.problems.glm import GLMLoss, LossFacts, Values
from privopt.problems.pieces import Pieces

Kind = Literal["ridge", "exact", "lasry-lions"]


def smoothed(
    loss: GLMLoss,
    *,
    radius: float,
    kind: Kind = "ridge",
    dimension: int | None = None,
    row_norm: float = 1.0,
) -> GLMLoss:
    """A generalised-linear loss made smooth by what it is within `radius` of the parameters.

    It is a loss like any other: it takes no randomness, and how it was made does not touch the guarantee. Rows count
    as `row_norm` long, so a shorter one is smoothed over a larger radius.

    Args:
        loss: of one output.
        radius: r, in units of the parameters.
        kind: "ridge", the average along each record's own row, of curvature L / r; "exact", the average over a ball, of
            curvature kappa_d L / r; "lasry-lions", the envelope of losses with kinks, of curvature 3 L / r.
        dimension: d of the ball, for "exact".
        row_norm: the length that every row counts as.
    Raises:
        ValueError: an argument is missing or out of its range, or the loss has no such smoothing.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be one of {list(get_args(Kind))}, got {kind!r}.")
    if (dimension is not None) is not (kind == "exact"):
        raise ValueError(
            f"dimension must be given for kind='exact', and for that alone; got {dimension!r} and {kind!r}."
        )
    if kind == "lasry-lions":
        return Envelope(loss, radius * row_norm / (3.0 * loss.lipschitz))
    return Smoothed(loss, radius, 1 if dimension is None else dimension, row_norm)


# ---- Lasry-Lions smoothing of piecewise-linear losses: an envelope from below of an envelope from above ----
#     h~(x) = max_z min_y  h(y) + (z - y)^2 / (4 lam) - (z - x)^2 / (2 lam)
#
# has a (1 / lam)-Lipschitz derivative, the slopes of h, and lies within lam L^2 below it. For a loss phi(<a, w>, y) it
# is an envelope of phi in one number with `strength = lam |a|^2`. A kink from slope l to r turns into a straight rise
# of the slope over a length `strength |r - l|`, moved by `strength (l + r) / 2`; on a straight piece of slope s the
# value is `strength s^2 / 2` lower. Kinks so near that this would overlap share their room: there a table is used.
#
# Averages along rows (`ball_average`, dimension 1) are three times as smooth for the same radius: prefer them.
#
# Source:
#     Kornowski, Liu, Talwar 2024, appendix B (Lasry, Lions 1986); the closed form for one number is ours.


_GRID = 4001  # arguments of a table


@dataclass(frozen=True)
class Envelope(GLMLoss):
    """The Lasry-Lions envelope of a loss with kinks.

    Attributes:
        loss: of the library, with a slope of straight pieces and a bounded one.
        strength: lam |a|^2, with `3 strength L` the reach of the smoothing in predictions.
    """

    loss: GLMLoss
    strength: float

    def __post_init__(self) -> None:
        if not 0.0 < self.strength < math.inf:
            raise ValueError(
                f"strength must be positive and finite, got {self.strength!r}: it is one over the curvature."
            )
        if self.loss.pieces is None or not math.isfinite(self.loss.lipschitz):
            raise ValueError(f"the {self.loss.name} loss has no kinks that an envelope of it is known for.")

    @property
    def facts(self) -> LossFacts:
        of_loss = self.loss.facts
        return LossFacts(
            name=f"envelope of {of_loss.name}",
            lipschitz=of_loss.lipschitz,
            curvature=min(of_loss.curvature, 1.0 / self.strength),
            convex=of_loss.convex,
            monotone=of_loss.monotone,
            value_at_zero=of_loss.value_at_zero,
        )

    @property
    def _sharp(self) -> Pieces:
        """Of the loss itself."""
        found = self.loss.pieces
        assert found is not None
        return found

    def value(self, prediction: Values, target: Values) -> Values:
        at, _ = self._sharp.split(prediction, target)
        rises = _rises(self._sharp, self.strength)
        if rises is None:
            grid, values, slopes = _table(self._sharp, self.strength)
            beyond = at - jnp.clip(at, grid[0], grid[-1])
            ends = jnp.where(beyond > 0.0, slopes[-1], slopes[0])
            return jnp.interp(at, jnp.asarray(grid), jnp.asarray(values)) + ends * beyond
        first = self._sharp.first
        value = _ahead(self._sharp) + first * at - 0.5 * self.strength * first**2
        for start, end, jump in rises:
            inside = jnp.clip(at, start, end) - start
            value = value + jump * (0.5 * inside * inside / (end - start) + jnp.maximum(at - end, 0.0))
        return value

    def slope(self, prediction: Values, target: Values) -> Values:
        at, rate = self._sharp.split(prediction, target)
        rises = _rises(self._sharp, self.strength)
        if rises is None:
            grid, _, slopes = _table(self._sharp, self.strength)
            return rate * jnp.interp(at, jnp.asarray(grid), jnp.asarray(slopes))
        slope = jnp.full_like(at, self._sharp.first)
        for start, end, jump in rises:
            slope = slope + jump * jnp.clip((at - start) / (end - start), 0.0, 1.0)
        return rate * slope

    def predict_mean(self, prediction: Values) -> Values:
        return self.loss.predict_mean(prediction)


def _rises(pieces: Pieces, strength: float) -> tuple[tuple[float, float, float], ...] | None:
    """Where the slope rises, from where to where and by how much; None where a table is needed."""
    rises: list[tuple[float, float, float]] = []
    before = pieces.first
    for position, jump, bend in pieces.knots:
        if bend:
            return None
        start = position + strength * (before + 0.5 * jump - 0.5 * abs(jump))
        rises.append((start, start + strength * abs(jump), jump))
        before += jump
    steepest = _steepest(pieces)
    places = [knot.position for knot in pieces.knots]
    apart = min((b - a for a, b in itertools.pairwise(places)), default=math.inf)
    return tuple(rises) if apart >= 3.0 * strength * steepest else None


def _steepest(pieces: Pieces) -> float:
    """The largest slope, for slopes that are constant in the end."""
    at, slope, bend, most = -math.inf, pieces.first, 0.0, abs(pieces.first)
    for knot in pieces.knots:
        slope += bend * (knot.position - at) if bend else 0.0
        most = max(most, abs(slope), abs(slope + knot.jump))
        at, slope, bend = knot.position, slope + knot.jump, bend + knot.bend
    return most


def _ahead(pieces: Pieces) -> float:
    """What the straight part of psi before all knots would be at 0."""
    return pieces.at_zero - sum(jump * max(-position, 0.0) for position, jump, _ in pieces.knots)


def _value(pieces: Pieces, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """psi."""
    value = pieces.at_zero + pieces.first * at
    for position, jump, bend in pieces.knots:
        behind, before = np.maximum(at - position, 0.0), max(-position, 0.0)
        value = value + jump * (behind - before) + 0.5 * bend * (behind**2 - before**2)
    return value


@functools.lru_cache(maxsize=64)
def _table(
    pieces: Pieces, strength: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Arguments, values and slopes of the envelope, by trying all points of a grid in both steps."""
    room = 3.0 * strength * _steepest(pieces)
    low, high = pieces.knots[0].position - 2.0 * room, pieces.knots[-1].position + 2.0 * room
    grid = np.linspace(low - room, high + room, _GRID)
    values = _value(pieces, grid)
    below = np.array([np.min(values + (z - grid) ** 2 / (4.0 * strength)) for z in grid])
    best = np.array([int(np.argmax(below - (grid - x) ** 2 / (2.0 * strength))) for x in grid])
    kept = (grid >= low) & (grid <= high)
    envelope = below[best] - (grid[best] - grid) ** 2 / (2.0 * strength)
    return grid[kept], envelope[kept], ((grid[best] - grid) / strength)[kept]
