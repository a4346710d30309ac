"""Where a player's gradient along the vertices comes from: the records, or payoffs that the curator holds."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import HiddenMean
from privopt.later import jnp
from privopt.problems.saddle import BilinearGame, Game, Player, Who
from privopt.problems.vertices import SimplexVertices
from privopt.queries.base import Query
from privopt.queries.payoffs import PayoffGradient, PayoffMeans, PayoffSlope, PlayerGradient, PlayerSlope
from privopt.solvers.fields import check_fields, declared, derived

Strategy = NDArray[np.float64]


@dataclass(frozen=True)
class Gradients:
    """The queries of one curator's units for both players' gradients, in the range norm or in l2.

    Attributes:
        game: the payoff of a record.
        held: the mean payoffs of a bilinear game, behind the curator; None for other games.
    """

    game: Game
    held: HiddenMean | None = None

    @classmethod
    def on(cls, curator: Curator, game: Game, *, hold: bool = True) -> "Gradients":
        """Gradients on a curator's units; the payoffs of a bilinear game are read once and held, if asked for.

        To hold them costs one pass with all pairs of pure strategies, and makes every later step free of the data. A
        batch that serves for one step is better read as it is.
        """
        if hold and type(game) is BilinearGame:
            return cls(game, curator.hold_mean(PayoffMeans(game=game)))
        return cls(game)

    def of(self, who: Who, x: Strategy, y: Strategy) -> Query:
        """The gradient of f by x's weights on vertices, or of -f by y's, at strategies in coordinates."""
        if self.held is not None:
            return PayoffGradient(mean=self.held, who=who, play=_against(who, x, y))
        half_range = self.game.players[who].half_range
        return PlayerGradient(
            game=self.game, who=who, x=jnp.asarray(x), y=jnp.asarray(y), half_range=half_range
        )

    def scores(self, who: Who, x: Strategy, y: Strategy) -> Query:
        """The gradient turned: the vertex that answers best to the other strategy has the largest entry."""
        query: Any = self.of(who, x, y)
        return replace(query, negated=True)

    def along_vertices(self, who: Who, x: Strategy, y: Strategy, clip: float) -> Query:
        """The same gradient up to a number added to all its entries, in l2: each unit's is at most `clip` long.

        Args:
            who: whose gradient.
            x: a strategy, in coordinates.
            y: likewise.
            clip: largest l2 norm of a unit's gradient less its mean; from `plain_clip` on nothing is clipped, and held
                payoffs serve.
        """
        if self.held is not None and clip >= plain_clip(self.game.players[who]):
            return PayoffSlope(mean=self.held, who=who, play=_against(who, x, y))
        return PlayerSlope(
            game=self.game, who=who, x=jnp.asarray(x), y=jnp.asarray(y), clip=clip, along_vertices=True
        )

    def in_coordinates(self, who: Who, x: Strategy, y: Strategy, clip: float) -> Query:
        """The gradient in the player's coordinates, in l2: each unit's is at most `clip` long.

        On a simplex a number added to all entries moves no strategy: there it is the gradient along the vertices.
        """
        if isinstance(self.game.players[who].vertices, SimplexVertices):
            return self.along_vertices(who, x, y, clip)
        return PlayerSlope(game=self.game, who=who, x=jnp.asarray(x), y=jnp.asarray(y), clip=clip)


def _against(who: Who, x: Strategy, y: Strategy) -> Any:
    """The strategy that `who` plays against."""
    return np.asarray(y if who == "x" else x, np.float64)


def plain_clip(player: Player) -> float:
    """The l2 norm of the longest gradient along the vertices: entries within the half-range, less their mean."""
    return player.half_range * math.sqrt(player.vertices.count)


# ---- How a player of a game moves, and what of that is released: drawn vertices, or noisy gradients --------


@dataclass(frozen=True, kw_only=True)
class Move:
    """The settings of one player; what is left open is derived from public numbers.

    Attributes:
        scale: what multiplies the average gradient in the softmax that is played, before the schedule of the steps,
            in one over the unit of the payoff; 0 plays uniformly.
    """

    scale: float = derived(at_least=0, below=math.inf)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def open_fields(self) -> list[str]:
        """Which fields are not set."""
        return [
            name
            for name, field in declared(type(self)).items()
            if field.derived and getattr(self, name) is None
        ]


@dataclass(frozen=True, kw_only=True)
class Drawn(Move):
    """A player who plays averages of drawn vertices. The scores behind the draws stay with the curator.

    Attributes:
        draws: K, vertices drawn in each round.
    """

    draws: int = derived(at_least=1)


@dataclass(frozen=True, kw_only=True)
class Noised(Move):
    """A player who plays the softmax of an average of noisy gradients, which are what is released.

    Attributes:
        clip: C, the largest l2 norm of a unit's gradient along the vertices.
        noise_multiplier: standard deviation of each release over its sensitivity.
    """

    clip: float = derived(above=0)
    noise_multiplier: float = derived(at_least=0)
