"""A solver of games: all mean payoffs are released once, then both players play multiplicative weights on them.

Solves min over x, max over y of x . (A y) + p . x - q . y for mean payoffs A, p, q.
Source: Freund, Schapire 1999, Adaptive game playing using multiplicative weights.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privopt.curator.base import Curator
from privopt.games.base import GameSolver
from privopt.games.rounds import outcome_of
from privopt.ledger.events import Event
from privopt.mechanisms.additive import Gaussian
from privopt.problems.saddle import BilinearGame, Game
from privopt.public import Public
from privopt.queries.payoffs import PayoffMeans, unpacked
from privopt.result import Outcome
from privopt.solvers.fields import derived, number


@dataclass(frozen=True, kw_only=True)
class WeightsGame(GameSolver):
    """Average strategies of T rounds on a noisy matrix.

    Attributes:
        noise_multiplier: noise standard deviation over the l2 sensitivity of all payoffs together.
        rounds: T; they read the released matrix only, and cost nothing.
    Guarantee:
        One Gaussian release.
    """

    name: ClassVar[str] = "weights-game"

    noise_multiplier: float = derived(at_least=0)
    rounds: int = number(500, at_least=1)

    def applicable(self, problem: Game, public: Public) -> str | None:
        """A game with a matrix of payoffs."""
        fits = isinstance(problem, BilinearGame)
        return super().applicable(problem, public) if fits else "its payoffs are no matrix"

    def event(self, public: Public) -> Event:
        """One Gaussian release."""
        del public
        return Gaussian(self.noise_multiplier).event()

    def releases(self) -> int:
        """One."""
        return 1

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Release the payoffs, then play."""
        assert isinstance(game, BilinearGame)
        released = curator.release(PayoffMeans(game=game), Gaussian(self.noise_multiplier))
        matrix, p, q = unpacked(game, np.asarray(released))
        payoffs = np.nan_to_num(matrix + p[:, None] - q[None, :])  # a released value need not be finite
        rate = np.sqrt(8.0 * np.log(max(payoffs.shape)) / self.rounds) / max(float(np.ptp(payoffs)), 1e-12)
        losses, gains = np.zeros(len(payoffs)), np.zeros(payoffs.shape[1])
        total_x, total_y = np.zeros_like(losses), np.zeros_like(gains)
        for _ in range(self.rounds):
            x, y = _softmax(-rate * losses), _softmax(rate * gains)
            losses, gains = losses + payoffs @ y, gains + x @ payoffs
            total_x, total_y = total_x + x, total_y + y
        return outcome_of(game, {"x": total_x / self.rounds, "y": total_y / self.rounds})


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()
