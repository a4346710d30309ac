"""Every solver by name, and the default choice."""

from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.solvers.base import Solver
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent

SOLVERS: dict[str, type[Solver]] = {
    "gradient-descent": GradientDescent,
    "stochastic-gradient-descent": StochasticGradientDescent,
}


def choose(solver: Solver | str, problem: Problem, public: Public) -> Solver:
    """The solver meant by a name, an instance, or "auto".

    "auto" is full-batch gradient descent: at equal privacy it had the lowest excess in our measurements wherever a
    pass over the data is affordable.

    Raises:
        ValueError: an unknown name, or a solver that cannot solve the problem.
    """
    if isinstance(solver, str):
        if solver != "auto" and solver not in SOLVERS:
            raise ValueError(f"solver must be 'auto', one of {sorted(SOLVERS)} or a Solver, got {solver!r}.")
        solver = GradientDescent() if solver == "auto" else SOLVERS[solver]()
    obstacle = solver.applicable(problem, public)
    if obstacle is not None:
        raise ValueError(f"{solver.name} cannot solve this problem: {obstacle}.")
    return solver
