"""Every solver of games by name, and the default choice."""

import math
from collections.abc import Callable
from typing import Any

from privopt import papers
from privopt.games import noisy_matrix
from privopt.games.base import GameSolver
from privopt.games.dual_averaging import NoisyExponentiatedGradient, SampledDualAveraging
from privopt.games.noisy_extragradient import NoisyExtragradient, SaddleGradientDescent
from privopt.games.noisy_matrix import NoisyMatrix
from privopt.planning import saddle
from privopt.planning.plan import figure
from privopt.planning.task import Task
from privopt.problems.saddle import BilinearGame, Game
from privopt.solvers.program import Choice, Program, Registry

MATRIX_WITHIN = (
    3.0  # times the typical gap of drawn vertices: noise that is known beats a fit to one generator
)
GRADIENTS_WITHIN = (
    1.6  # both as large as leaves the choices at 100 actions and more in docs/benchmarks-games.md
)
WITHIN_ELSEWHERE = 3.0  # of games without offsets or that bend, on which nothing was fitted

GAME_SOLVERS: dict[str, Callable[[], GameSolver]] = {
    "sampled-dual-averaging": SampledDualAveraging,
    "noisy-matrix": NoisyMatrix,
    "noisy-exponentiated-gradient": NoisyExponentiatedGradient,
    "saddle-gradient-descent": SaddleGradientDescent,
    "noisy-extragradient": NoisyExtragradient,
}
REGISTRY = Registry(
    GameSolver,
    "solver",
    "a solver of games",
    ("sampled-dual-averaging", "SampledDualAveraging()"),
    GAME_SOLVERS,
    papers.GAME_SOLVERS,
)
NAMES, named = REGISTRY.names, REGISTRY.named  # `plan` compares those of `GAME_SOLVERS`


def choose_game(solver: Program[Any] | str, task: Task[Game]) -> Choice[GameSolver]:
    """The solver meant by a name, an instance, or "auto", see `automatic_game`.

    Raises:
        TypeError: it is neither a name nor a solver of games.
        ValueError: an unknown name, or a solver that cannot play the game.
    """
    choice = REGISTRY.chosen(solver, lambda: automatic_game(task))
    choice.solver.check_applicable(task.problem, task.public)
    return choice


def automatic_game(task: Task[Game]) -> Choice[GameSolver]:
    """The default choice, from public numbers alone: typical gaps, see `planning.saddle`.

        no privacy, a matrix that fits in memory     the matrix itself, solved exactly
        no privacy, any other game                   exponentiated gradient, without noise
        delta = 0                                    sampled dual averaging: the others need Gaussian noise
        a matrix game without offsets that fits      the noisy matrix; descent and ascent where its typical gap is above
                                                     half of the largest possible one
        else, from
            1.8 times the noise in an entry          the noisy matrix, for a dozen actions
            a tenth of the next line                 noisy extragradient, if both players' curvatures are stated
            1.5 c L sqrt(2 m log m) / (n sqrt(2 rho))             noisy exponentiated gradient, for dozens
            0.13 L (log m_x + log m_y)^(3/4) / (n sqrt(rho))^(1/2)  sampled dual averaging, for all that is larger

    The noise of the first two does not depend on the records; how far drawn vertices end does, and 0.13 is a fit to
    one generator of games with offsets: on others they ended ten times farther (docs/benchmarks-games.md). So the
    better of the others is taken where its typical gap is at most 3 times (noisy gradients: 1.6 times) that of drawn
    vertices. Without offsets good strategies mix many actions, which averages the noise in the matrix: there it was
    ahead of drawn vertices up to 300 actions, however large the noise in an entry (docs/benchmarks-auto.md); where that
    is as large as the payoffs, descent stays nearer to the uniform strategies, which are then hard to beat.
    """
    matrix = noisy_matrix.predicted(task)
    if not task.is_private:
        if math.isfinite(matrix):
            return Choice(NoisyMatrix(), "without noise the matrix is solved exactly")
        return Choice(NoisyExponentiatedGradient(), "without noise nothing needs to be drawn")
    if task.budget.delta == 0:
        return Choice(SampledDualAveraging(), "with delta = 0 only draws of vertices have a price")
    unmeasured = isinstance(task.problem, BilinearGame) and not task.problem.offsets
    if unmeasured and math.isfinite(matrix):
        if matrix > saddle.trivial_gap(task.problem) / 2.0:
            return Choice(
                SaddleGradientDescent(),
                "noise in the matrix is as large as the payoffs, and few long steps stay nearer to uniform strategies",
            )
        return Choice(
            NoisyMatrix(),
            "without offsets good strategies mix many actions, which averages the noise in the matrix",
        )
    typical: dict[Callable[[], GameSolver], float] = {
        SampledDualAveraging: saddle.drawn_gap(task),
        NoisyExponentiatedGradient: saddle.noised_gap(task),
        NoisyMatrix: matrix,
    }
    if all(player.curvature > 0 for player in task.problem.players.values()):
        typical[NoisyExtragradient] = saddle.bent_gap(task)
    drawn = typical[SampledDualAveraging]
    within: dict[Callable[[], GameSolver], float] = {
        NoisyMatrix: MATRIX_WITHIN,
        NoisyExponentiatedGradient: WITHIN_ELSEWHERE if unmeasured else GRADIENTS_WITHIN,
        NoisyExtragradient: WITHIN_ELSEWHERE,
    }
    robust = [kind for kind, factor in within.items() if typical.get(kind, math.inf) <= factor * drawn]
    best = min(robust or [SampledDualAveraging], key=lambda kind: typical[kind])
    others = [
        f"{kind().title} {figure(gap)}"
        for kind, gap in typical.items()
        if kind is not best and gap < math.inf
    ]
    rest = " and ".join(others)
    least = typical[best] <= min(typical.values())
    why = "is the least" if least else "does not depend on the records as that of drawn vertices does"
    return Choice(
        best(),
        f"its typical gap on the games that were measured, {figure(typical[best])}, {why}; the others': {rest}",
    )
