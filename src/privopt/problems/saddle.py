"""Saddle points: min over x, max over y of F(x, y) = (1/n) sum over units of f(x, y; unit), on two polytopes.

Public mathematics. f is convex in x and concave in y for the guarantees on utility; privacy asks nothing of it. Both
players descend, x on f and y on -f, each on the values of the gradient at its vertices. A constant added to all of them
changes no draw, so what counts is their *half-range*, (largest - smallest) / 2, which is clipped.

Source:
    Gonzalez, Guzman, Paquette 2024, section 2. In their Algorithms 1 and 3 the sign of the second player is wrong; the
    midranges are ours.
"""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from privopt.later import Array, Float, jax, jnp
from privopt.problems.constraints import Constraint, Simplex
from privopt.problems.vertices import Vertices, vertices_of
from privopt.public import Public

Who = Literal["x", "y"]
Clip = Literal["entries", "scale"]
Payoff = Callable[
    [Float[Array, " p"], Float[Array, " q"], Float[Array, " d"], Float[Array, ""]], Float[Array, ""]
]


@dataclass(frozen=True)
class Player:
    """One side of a game, seen from outside.

    Attributes:
        who: "x" descends on f, "y" on -f.
        vertices: of the player's set.
        half_range: L, to which a unit's vertex gradient is clipped; enforced.
        curvature: by how much, in l_inf, a unit's gradient changes with the player's own strategy (in l1 of the weights
            on the vertices); 0 if f is linear in it. Utility only.
    """

    who: Who
    vertices: Vertices
    half_range: float
    curvature: float = 0.0


class Game(abc.ABC):
    """A convex-concave saddle point over two polytopes."""

    clip: Clip = "entries"

    @property
    @abc.abstractmethod
    def x(self) -> Player:
        """The player who minimises."""

    @property
    @abc.abstractmethod
    def y(self) -> Player:
        """The player who maximises."""

    @property
    def players(self) -> dict[Who, Player]:
        """Both."""
        return {"x": self.x, "y": self.y}

    @abc.abstractmethod
    def payoff(
        self, x: Float[Array, " p"], y: Float[Array, " q"], features: Float[Array, " d"], target: Any
    ) -> Any:
        """f of one record, at strategies in coordinates."""

    def slope(
        self,
        who: Who,
        x: Float[Array, " p"],
        y: Float[Array, " q"],
        features: Float[Array, " d"],
        target: Any,
    ) -> Array:
        """The gradient of f by x, or of -f by y, of one record, in coordinates."""
        if who == "x":
            return jax.grad(self.payoff, argnums=0)(x, y, features, target)
        return -jax.grad(self.payoff, argnums=1)(x, y, features, target)

    def vertex_slope(
        self,
        who: Who,
        x: Float[Array, " p"],
        y: Float[Array, " q"],
        features: Float[Array, " d"],
        target: Any,
    ) -> Array:
        """The slope along every vertex of the player's set: the gradient by the weights on them."""
        return self.players[who].vertices.along(self.slope(who, x, y, features, target))

    def obstacle(self, public: Public) -> str | None:
        """Why the game cannot be played on such records, or None."""
        del public
        return None


@dataclass(frozen=True, kw_only=True)
class BilinearGame(Game):
    """A matrix game of which every record pays a matrix of rank one, or two more terms.

    A record's features are (u, v), and f = (u . x)(v . y); with `offsets` they are (u, v, p, q), and
    f = ((u . x)(v . y) + p . x - q . y) / 2. Both players mix pure strategies: x and y lie on simplices.

    Attributes:
        rows: pure strategies of x, who minimises.
        columns: pure strategies of y.
        offsets: whether records have p and q.
        entries: public (low, high) of the entries of u, v, p and q; others are moved to the nearer end. Enforced.
    """

    rows: int
    columns: int
    offsets: bool = False
    entries: tuple[float, float] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            size = getattr(self, name)
            if not _is_size(size):
                raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}.")
        object.__setattr__(self, "entries", tuple(self.entries))
        low, high = self.entries
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"entries must be finite bounds (low, high), low < high, got {self.entries!r}.")

    @property
    def width(self) -> int:
        """Features of a record."""
        return (2 if self.offsets else 1) * (self.rows + self.columns)

    @property
    def largest_entry(self) -> float:
        """The largest entry of u, v, p and q in absolute value."""
        return max(abs(self.entries[0]), abs(self.entries[1]))

    @property
    def row_bound(self) -> float:
        """The length of the longest record, a margin for rounding included: what units are made with."""
        return self.largest_entry * math.sqrt(self.width) * (1.0 + 1e-6)

    @property
    def payoff_radius(self) -> float:
        """The l2 norm of the largest payoffs of one record: its matrix, and its offsets."""
        largest, cells = self.largest_entry, self.rows * self.columns
        if not self.offsets:
            return largest**2 * cells**0.5
        return 0.5 * (largest**4 * cells + largest**2 * (self.rows + self.columns)) ** 0.5

    @property
    def half_range(self) -> float:
        """L of both players: of u (v . y), and of (u (v . y) + p) / 2 with offsets."""
        spread = (self.entries[1] - self.entries[0]) / 2.0
        return spread * (self.largest_entry + 1.0) / 2.0 if self.offsets else spread * self.largest_entry

    @property
    def x(self) -> Player:
        return Player("x", vertices_of(Simplex(), self.rows), self.half_range)

    @property
    def y(self) -> Player:
        return Player("y", vertices_of(Simplex(), self.columns), self.half_range)

    def parts(self, features: Float[Array, " d"]) -> tuple[Array, Array, Array, Array]:
        """u, v, p, q of one record with their entries inside the bounds; p and q are zero without offsets."""
        kept = jnp.clip(features, *self.entries)
        m, k = self.rows, self.columns
        u, v = kept[:m], kept[m : m + k]
        if not self.offsets:
            return u, v, jnp.zeros_like(u), jnp.zeros_like(v)
        return u, v, kept[m + k : 2 * m + k], kept[2 * m + k :]

    def payoff(
        self, x: Float[Array, " p"], y: Float[Array, " q"], features: Float[Array, " d"], target: Any
    ) -> Any:
        del target
        u, v, p, q = self.parts(features)
        product = (u @ x) * (v @ y)
        return (product + p @ x - q @ y) / 2.0 if self.offsets else product

    def obstacle(self, public: Public) -> str | None:
        if public.d == self.width:
            return None
        what = "u, v, p and q" if self.offsets else "u and v"
        return f"a record needs {self.width:,} features for {what}, and has {public.d:,}"


class SaddleProblem(Game):
    """A saddle point of a payoff written by its user.

    Args:
        payoff: a JAX function `payoff(x, y, features, target) -> number` of one record, of strategies in coordinates.
        x: the set of the player who minimises: `Simplex()`, `L1Ball(radius)`, `Polytope(vertices)` or a small `Box`.
        y: the set of the player who maximises.
        sizes: coordinates of x and of y.
        half_ranges: L of x and of y, to which a record's gradient along the vertices is clipped, in its half-range.
            Default: the largest entry of a vertex, which is right for gradients with entries within 1. A larger one
            costs accuracy, a smaller one biases; neither costs privacy.
        clip: how: "entries" moves each entry of the centred gradient to the nearer end, "scale" shrinks all alike.
        curvatures: of f in x and in y, see `Player`; default: taken as linear. Utility only.
    """

    def __init__(
        self,
        payoff: Payoff,
        *,
        x: Constraint,
        y: Constraint,
        sizes: tuple[int, int],
        half_ranges: tuple[float, float] | None = None,
        clip: Clip = "entries",
        curvatures: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        if not callable(payoff):
            raise TypeError(
                f"payoff must be a function of (x, y, features, target), got {type(payoff).__name__}."
            )
        given: Any = sizes
        if len(given) != 2 or not all(_is_size(size) for size in given):
            raise ValueError(f"sizes must be two whole numbers, the coordinates of x and y, got {sizes!r}.")
        if clip not in ("entries", "scale"):
            raise ValueError(f"clip must be 'entries' or 'scale', got {clip!r}.")
        sets = (vertices_of(x, sizes[0]), vertices_of(y, sizes[1]))
        limits = (sets[0].largest, sets[1].largest) if half_ranges is None else half_ranges
        if len(limits) != 2 or not all(limit > 0 and math.isfinite(limit) for limit in limits):
            raise ValueError(f"half_ranges must be two positive numbers, for x and y, got {half_ranges!r}.")
        if len(curvatures) != 2 or not all(bend >= 0 for bend in curvatures):
            raise ValueError(f"curvatures must be two numbers of at least 0, got {curvatures!r}.")
        self._payoff, self.clip = payoff, clip
        self._x = Player("x", sets[0], float(limits[0]), float(curvatures[0]))
        self._y = Player("y", sets[1], float(limits[1]), float(curvatures[1]))

    @property
    def x(self) -> Player:
        return self._x

    @property
    def y(self) -> Player:
        return self._y

    @property
    def function(self) -> Payoff:
        """The payoff that was given."""
        return self._payoff

    def payoff(
        self, x: Float[Array, " p"], y: Float[Array, " q"], features: Float[Array, " d"], target: Any
    ) -> Any:
        return self._payoff(x, y, features, target)

    def _key(self) -> tuple[Any, ...]:
        return self._payoff, self._x, self._y, self.clip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SaddleProblem) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        sizes = f"{self._x.vertices.dimension} and {self._y.vertices.dimension} coordinates"
        return f"SaddleProblem({getattr(self._payoff, '__name__', 'payoff')}, {sizes})"


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 1
