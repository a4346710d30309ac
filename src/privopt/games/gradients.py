"""Where a player's gradient along the vertices comes from: the records, or payoffs that the curator holds."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import HiddenMean
from privopt.problems.saddle import BilinearGame, Game, Who
from privopt.queries.base import Query
from privopt.queries.payoff_means import PayoffGradient, PayoffMeans
from privopt.queries.player_gradient import PlayerGradient

Strategy = NDArray[np.float64]


@dataclass(frozen=True)
class Gradients:
    """The queries of one curator's units for both players' gradients, in the range norm.

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
        if hold and isinstance(game, BilinearGame):
            return cls(game, curator.hold_mean(PayoffMeans(game=game)))
        return cls(game)

    def of(self, who: Who, x: Strategy, y: Strategy) -> Query:
        """The gradient of f by x's weights on vertices, or of -f by y's, at strategies in coordinates."""
        if self.held is not None:
            return PayoffGradient(mean=self.held, who=who, play=jnp.asarray(y if who == "x" else x))
        half_range = self.game.players[who].half_range
        return PlayerGradient(
            game=self.game, who=who, x=jnp.asarray(x), y=jnp.asarray(y), half_range=half_range
        )
