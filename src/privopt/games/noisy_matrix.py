"""The noisy matrix: release all payoffs once, and solve the game that they make."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from privopt.curator.base import Curator
from privopt.games.base import GameSolver
from privopt.games.rounds import outcome_of
from privopt.ledger.events import Event
from privopt.mechanisms.additive import Gaussian
from privopt.planning import saddle
from privopt.planning.task import Forecast, Task
from privopt.problems.saddle import BilinearGame, Game
from privopt.public import Public
from privopt.queries.payoffs import PayoffMeans, unpacked
from privopt.result import Outcome
from privopt.solvers.fields import derived

# ---- What the noisy matrix applies to, and its forecast, from public numbers -------------------------------
LARGEST = 10_000_000  # cells


def obstacle(game: Game) -> str | None:
    """Why the payoffs of a game cannot be released, or None."""
    if not isinstance(game, BilinearGame):
        return "its payoffs are no matrix"
    if game.rows * game.columns > LARGEST:
        return f"its matrix has {game.rows * game.columns:,} entries, more than {LARGEST:,}"
    return None


def predicted(task: Task[Game]) -> float:
    """The typical gap; infinite where the method does not apply."""
    game = task.problem
    if obstacle(game) is not None or not isinstance(game, BilinearGame):
        return float("inf")
    return saddle.matrix_gap(task, game.payoff_radius)


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
        return obstacle(problem) or super().applicable(problem, public)

    def obstacle(self, problem: Game, public: Public) -> str | None:
        """Its noise is that of any game: once configured it plays others as well."""
        return self.applicable(problem, public)

    def event(self, public: Public) -> Event:
        """One release."""
        del public
        return Gaussian(self.noise_multiplier).event()

    def releases(self) -> int:
        """One."""
        return 1

    def forecast(self, instance: Task[Game]) -> Forecast:
        """The typical gap."""
        return saddle.typical(instance, predicted(instance))

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Release and solve."""
        assert isinstance(game, BilinearGame)
        released = np.asarray(curator.release(PayoffMeans(game=game), Gaussian(self.noise_multiplier)))
        x, y = equilibrium(*unpacked(game, released))
        return outcome_of(game, {"x": x, "y": y})


# ---- Matrix games with known payoffs, solved: min over x, max over y of x . (A y) + p . x - q . y ----------
_linprog = cast(Any, linprog)  # its type information is incomplete
Vector = NDArray[np.float64]


def equilibrium(matrix: NDArray[np.float64], p: Vector, q: Vector) -> tuple[Vector, Vector]:
    """Optimal mixed strategies of both players, by linear programming.

    As both strategies sum to 1, the payoff is x . (A + p 1^T - 1 q^T) y. Payoffs that are no finite numbers give the
    uniform strategies.

    Args:
        matrix: A, (rows, columns).
        p: what each row adds.
        q: what each column takes away.
    Source:
        von Neumann 1928; the dual values of the program for x are y.
    """
    payoffs = matrix + p[:, None] - q[None, :]
    rows, columns = payoffs.shape
    scale = float(np.max(np.abs(payoffs)))
    uniform = np.full(rows, 1.0 / rows), np.full(columns, 1.0 / columns)
    if not np.isfinite(scale) or scale == 0.0:
        return uniform
    # Variables (x, v): minimise v where (payoffs^T x)_k <= v for every column k.
    bounds = np.hstack([payoffs.T / scale, -np.ones((columns, 1))])
    solved = _linprog(
        np.append(np.zeros(rows), 1.0),
        A_ub=bounds,
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None, :],
        b_eq=np.ones(1),
        bounds=[(0.0, None)] * rows + [(None, None)],
        method="highs",
    )
    if solved.status != 0:
        return uniform
    return _normalised(solved.x[:rows]), _normalised(-solved.ineqlin.marginals)


def _normalised(weights: Any) -> Vector:
    kept = np.maximum(np.asarray(weights, np.float64), 0.0)
    total = float(np.sum(kept))
    return kept / total if total > 0 else np.full(len(kept), 1.0 / len(kept))
