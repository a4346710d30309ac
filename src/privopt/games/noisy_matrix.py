"""The noisy matrix: release all payoffs once, and solve the game that they make."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from privopt.curator.base import Curator
from privopt.games.base import GameSolver
from privopt.games.rounds import outcome_of
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event
from privopt.mechanisms.additive import Gaussian
from privopt.planning import noisy_matrix as planning
from privopt.planning.forecast import Forecast
from privopt.planning.task import Task
from privopt.problems.matrix_games import equilibrium
from privopt.problems.saddle import BilinearGame, Game
from privopt.public import Public
from privopt.queries.payoff_means import PayoffMeans, unpacked
from privopt.result import Outcome
from privopt.solvers.fields import derived


@dataclass(frozen=True, kw_only=True)
class NoisyMatrix(GameSolver):
    """Add Gaussian noise to the mean payoffs of a bilinear game, and solve the noisy game exactly.

    Its noise is proportional to the norm of a record's whole matrix, so it is best for a few dozen pure strategies and
    useless for hundreds. The noisy payoffs are released, and may be used for anything.

    Attributes:
        noise_multiplier: standard deviation over the l2 sensitivity of the payoffs.
    Guarantee:
        One Gaussian release; what follows is post-processing.
    """

    name: ClassVar[str] = "noisy-matrix"

    noise_multiplier: float = derived(at_least=0, below=math.inf)

    @property
    def holds_payoffs(self) -> bool:
        """They are computed once."""
        return True

    def applicable(self, problem: Game, public: Public) -> str | None:
        """Matrix games that fit in memory."""
        return planning.obstacle(problem) or super().applicable(problem, public)

    def calibrated(self, task: Task[Game]) -> Self:
        """Noise set to the budget."""
        if self.is_set("noise_multiplier"):
            return self
        if not task.is_private:
            return self.with_(noise_multiplier=0.0)
        noise = calibrate(lambda z: Gaussian(z).event(), task.budget, task.public.relation)
        return self.with_(noise_multiplier=float(noise))

    def event(self, public: Public) -> Event:
        """One release."""
        del public
        return Gaussian(self.noise_multiplier).event()

    def releases(self) -> int:
        """One."""
        return 1

    def forecast(self, instance: Task[Game]) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Release and solve."""
        assert isinstance(game, BilinearGame)
        released = np.asarray(curator.release(PayoffMeans(game=game), Gaussian(self.noise_multiplier)))
        x, y = equilibrium(*unpacked(game, released))
        return outcome_of(game, {"x": x, "y": y})
