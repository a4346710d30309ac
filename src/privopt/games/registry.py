"""Every solver of games by name, and the default choice."""

from collections.abc import Callable
from typing import Any, NamedTuple

from privopt.games.base import GameSolver
from privopt.games.best_response import BestResponse
from privopt.games.bias_reduced_mirror_descent import BiasReducedMirrorDescent
from privopt.games.boosted_saddle import BoostedSaddle
from privopt.games.noisy_exponentiated_gradient import NoisyExponentiatedGradient
from privopt.games.noisy_matrix import NoisyMatrix
from privopt.games.saddle_gradient_descent import SaddleGradientDescent
from privopt.games.saddle_mirror_descent import SaddleMirrorDescent
from privopt.games.sampled_dual_averaging import SampledDualAveraging
from privopt.planning.task import Task
from privopt.problems.saddle import Game

GAME_SOLVERS: dict[str, Callable[[], GameSolver]] = {
    "sampled-dual-averaging": SampledDualAveraging,
    "noisy-matrix": NoisyMatrix,
    "noisy-exponentiated-gradient": NoisyExponentiatedGradient,
    "saddle-gradient-descent": SaddleGradientDescent,
    "best-response": BestResponse,
    "saddle-mirror-descent": SaddleMirrorDescent,
    "bias-reduced-mirror-descent": BiasReducedMirrorDescent,
    "boosted-saddle": BoostedSaddle,
}


class GameChoice(NamedTuple):
    """A solver, and why "auto" took it: the end of a sentence after "because"; empty where the user named it."""

    solver: GameSolver
    reason: str = ""


def choose_game(solver: GameSolver | str, task: Task[Game]) -> GameChoice:
    """The solver meant by a name, an instance, or "auto", see `automatic_game`.

    Raises:
        TypeError: it is neither a name nor a solver of games.
        ValueError: an unknown name, or a solver that cannot play the game.
    """
    given: Any = solver
    if not isinstance(given, str | GameSolver):
        what = given.__name__ + " itself" if isinstance(given, type) else type(given).__name__
        raise TypeError(
            f"solver must be 'auto', a name such as 'sampled-dual-averaging', or a solver of games like "
            f"SampledDualAveraging(), got {what}."
        )
    if isinstance(solver, str) and solver != "auto" and solver not in GAME_SOLVERS:
        raise ValueError(f"solver must be 'auto', one of {sorted(GAME_SOLVERS)} or a solver, got {solver!r}.")
    if solver == "auto":
        choice = automatic_game(task)
    else:
        choice = GameChoice(GAME_SOLVERS[solver]() if isinstance(solver, str) else solver)
    choice.solver.check_applicable(task.problem, task.public)
    return choice


def automatic_game(task: Task[Game]) -> GameChoice:
    """The default choice."""
    del task
    return GameChoice(SampledDualAveraging(), "")
