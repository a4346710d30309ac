"""What a solver of saddle points is: a program over a curator that gives back a strategy for each player."""

import abc
from dataclasses import dataclass, field
from typing import Any, Self

from privopt.curator.base import Curator
from privopt.planning.averaging import OWN_PARAMETER_SECONDS, OWN_SECONDS, RELEASE_SECONDS
from privopt.problems.saddle import BilinearGame, Game, Player
from privopt.public import Public
from privopt.result import Outcome, Result
from privopt.solvers.program import Program

_CELL_SECONDS = 4e-10  # an entry of a held payoff matrix in a product with a play
_SUM_SECONDS = 6e-11  # an entry of one record's payoffs in the sum that is held


@dataclass(frozen=True, kw_only=True)
class GameSolver(Program[Game]):
    """A program that plays a game; `run` gives back (x, y), a strategy for each player in coordinates.

    Attributes:
        players: of the game that it was configured for.
    """

    players: tuple[Player, ...] = field(default=(), repr=False)

    @abc.abstractmethod
    def run(self, curator: Curator, game: Game) -> Outcome:
        """The program: arithmetic on releases."""

    @property
    def makes(self) -> tuple[int, int]:
        """Blocks: no game maps the rows."""
        return 1, 0

    def applicable(self, problem: Game, public: Public) -> str | None:
        """Whatever can be played on such records."""
        return problem.obstacle(public)

    def obstacle(self, problem: Game, public: Public) -> str | None:
        """`applicable`; once configured, another game than the one it was configured for."""
        if self.players and self.players != (problem.x, problem.y):
            return "it was configured for another game; configure it for this one"
        return self.applicable(problem, public)

    def filled(self, instance: Any) -> Self:
        """See `Program.filled`."""
        return super().filled(instance).with_(players=(instance.problem.x, instance.problem.y))

    @property
    def holds_payoffs(self) -> bool:
        """Whether the mean payoffs of a bilinear game are computed once, and rounds work on those."""
        return False

    def evaluations(self) -> float:
        """How often a player's gradient is computed on all units; by default once a pass."""
        return self.passes()

    def seconds(self, problem: Game, public: Public) -> float:
        """Rough time of a run of this configured program on data that are loaded."""
        records = public.n * public.typical_records
        if self.holds_payoffs and isinstance(problem, BilinearGame):
            cells = problem.rows * problem.columns
            return (
                cells * (records * _SUM_SECONDS + self.evaluations() * _CELL_SECONDS)
                + self._release_seconds()
            )
        sizes = problem.x.vertices.dimension + problem.y.vertices.dimension
        step = records * (OWN_SECONDS + sizes * OWN_PARAMETER_SECONDS)
        return self.evaluations() * step + self._release_seconds()

    def _release_seconds(self) -> float:
        return self.releases() * RELEASE_SECONDS

    def solve(self, curator: Curator, game: Game) -> Result:
        """Play the game.

        Args:
            curator: answers the releases.
            game: the payoff of a record and both players' sets.
        Returns:
            `params` is (x, y), NumPy arrays in the sets' coordinates.
        Raises:
            ValueError: the program was not configured, or cannot play this game.
            BudgetExceeded, PlanMismatch: the curator refused a release.
        """
        self.check_applicable(game, curator.public)
        return self.concluded(curator, game, lambda: self.run(curator, game))
