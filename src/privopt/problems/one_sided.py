"""One player's problem while the other stands still: a minimisation over the player's set."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from privopt.problems.constraints import Constraint, L1Ball, Polytope, Simplex
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem, PytreeLayout
from privopt.problems.saddle import Game, Who
from privopt.problems.vertices import CrossPolytopeVertices, ListedVertices, SimplexVertices, Vertices


@dataclass(frozen=True)
class OneSidedLoss:
    """What one player makes small, f or -f, against a fixed strategy of the other; equal by content.

    Attributes:
        game: the payoff of a record.
        who: the player who moves.
        fixed: the strategy of the other, in coordinates.
    """

    game: Game
    who: Who
    fixed: tuple[float, ...]

    def __call__(self, params: Any, features: Any, target: Any) -> Any:
        """The loss of one record."""
        other = jnp.asarray(self.fixed)
        if self.who == "x":
            return self.game.payoff(params, other, features, target)
        return -self.game.payoff(other, params, features, target)


def one_sided(game: Game, who: Who, fixed: ArrayLike) -> Problem:
    """The best answer of a player, as a problem.

    Args:
        game: the payoff.
        who: the player who answers.
        fixed: the strategy of the other, in coordinates.
    """
    vertices = game.players[who].vertices
    loss = OneSidedLoss(game, who, tuple(np.asarray(fixed, np.float64).tolist()))
    layout = PytreeLayout.of(np.zeros(vertices.dimension))
    return Problem(RecordLoss(loss), constraint=constraint_of(vertices), layout=layout)


def constraint_of(vertices: Vertices) -> Constraint:
    """The set that some vertices span.

    Raises:
        TypeError: they are of an unknown kind.
    """
    if isinstance(vertices, SimplexVertices):
        return Simplex(vertices.radius)
    if isinstance(vertices, CrossPolytopeVertices):
        return L1Ball(vertices.radius)
    if isinstance(vertices, ListedVertices):
        return Polytope(vertices.rows)
    raise TypeError(f"no set is known of {type(vertices).__name__}.")
