"""Every solver by name, and the default choice."""

from collections.abc import Callable

from privopt.errors import NotPriceable
from privopt.ledger.amounts import Budget
from privopt.problems.constraints import L1Ball, Product, Simplex
from privopt.problems.losses import Poisson
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.solvers.accelerated_mirror_descent import AcceleratedMirrorDescent
from privopt.solvers.base import Solver
from privopt.solvers.frank_wolfe import FrankWolfe
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.mirror_descent import MirrorDescent
from privopt.solvers.newton import DoubleNoiseNewton
from privopt.solvers.objective_perturbation import ObjectivePerturbation
from privopt.solvers.output_perturbation import OutputPerturbation
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent
from privopt.solvers.svrg import SVRG
from privopt.solvers.svrg_plus_plus import SVRGPlusPlus
from privopt.solvers.whitening import Whitening

SOLVERS: dict[str, Callable[[], Solver]] = {
    "whitening": Whitening,
    "gradient-descent": GradientDescent,
    "stochastic-gradient-descent": StochasticGradientDescent,
    "svrg": SVRG,
    "svrg-plus-plus": SVRGPlusPlus,
    "objective-perturbation": ObjectivePerturbation,
    "output-perturbation": OutputPerturbation,
    "accelerated-mirror-descent": AcceleratedMirrorDescent,
    "mirror-descent": MirrorDescent,
    "frank-wolfe": FrankWolfe,
    "newton": DoubleNoiseNewton,
}


def choose(solver: Solver | str, problem: Problem, public: Public, budget: Budget) -> Solver:
    """The solver meant by a name, an instance, or "auto", see `automatic`.

    Raises:
        ValueError: an unknown name, or a solver that cannot solve the problem.
    """
    if isinstance(solver, str):
        if solver != "auto" and solver not in SOLVERS:
            raise ValueError(f"solver must be 'auto', one of {sorted(SOLVERS)} or a Solver, got {solver!r}.")
        solver = automatic(problem, public, budget) if solver == "auto" else SOLVERS[solver]()
    solver.check_applicable(problem, public)
    return solver


def automatic(problem: Problem, public: Public, budget: Budget) -> Solver:
    """The default choice, from public numbers alone.

        a generalised-linear loss, a ridge or no penalty, no set          whitened gradient descent
        an l1 ball                                                        Frank-Wolfe
        an l1 ball on some of the coordinates, or a simplex               accelerated mirror descent
        a non-smooth penalty and a ridge on every coordinate, if stable   SVRG
        everything else, counts, or no privacy                            gradient descent

    Each was the most accurate of the applicable solvers in most of the measurements of docs/benchmarks.md. The Poisson
    loss has no constants of its own for whitening yet, and with borrowed ones it lost to plain descent. Objective
    perturbation behind the same whitening is about as good where a strong ridge is wanted, and its running time depends
    on the data, so it is never chosen.
    """
    if not budget.is_private:
        return GradientDescent()
    constraint, smooth = problem.constraint, problem.regulariser.is_smooth
    wanted: list[Solver] = [] if isinstance(problem.loss, Poisson) else [Whitening()]
    if isinstance(constraint, L1Ball):
        wanted.append(FrankWolfe())
    if isinstance(constraint, L1Ball | Product | Simplex):
        wanted.append(AcceleratedMirrorDescent())
    for solver in wanted:
        if solver.applicable(problem, public) is None:
            return solver
    if not smooth and problem.regulariser.strong_convexity > 0:
        reduced = SVRG()
        if reduced.applicable(problem, public) is None and _is_stable(reduced, problem, public, budget):
            return reduced
    return GradientDescent()


def _is_stable(solver: SVRG, problem: Problem, public: Public, budget: Budget) -> bool:
    """Whether variance reduction can be priced and would not fall back to gradient descent."""
    try:
        return solver.configure(problem, public, budget).fallback is None
    except NotPriceable:
        return False
