"""What the minimisers that draw vertices have in common: which problems they solve, public bounds, and their noise.

The unit of their scores is that of `queries.scores`: slopes of the loss along the vertices over twice the reach
D of the polytope, half of whose largest range is C / 2, C the clip.
"""

import math
from typing import TYPE_CHECKING, TypeVar

from privopt.ledger.curves import zcdp_rho_budget
from privopt.mechanisms.vertex_stream import VertexStream
from privopt.planning import descent_theory, mirror_geometry
from privopt.planning.task import Instance
from privopt.problems.constraints import L1Ball, Simplex
from privopt.problems.glm import GLMLoss
from privopt.problems.problem import Problem
from privopt.problems.vertices import Vertices, reach, vertices_of
from privopt.public import Public

if TYPE_CHECKING:
    from privopt.solvers.vertices import VertexSolver

Stream = TypeVar("Stream", bound=VertexStream)
WORSE_THAN_VERTEX_ANYTIME = (
    "measured, this solver was worse than vertex-anytime in one pass everywhere: it is here for comparison, and as a "
    "part of other solvers."
)
# Clip over the largest slope of the loss. On sparse generated signs 0.3 was a little better, on the parities of
# randhie, whose labels are mostly of one kind, much worse: it makes the parameters too long.
SLOPE_SHARE = 0.5
NO_ENTRY_BOUND = (
    "the entries of a row are bounded by the row bound {:.3g} only: state `entry_bound` if they are known to be "
    "smaller, since the noise is proportional to it."
)
TYPICAL_MEANING = "typical of the two problems it was measured on, within a factor of 3 there"
FEWEST_FRANK_WOLFE, MOST_FRANK_WOLFE = 5, 500
CHOICES = 100  # among which a pure epsilon is divided where steps are derived from it


def polytope(problem: Problem, public: Public) -> Vertices:
    """The vertices of a problem's constraint set.

    Raises:
        ValueError: it has none that can be listed, or is a set of another size.
    """
    return vertices_of(problem.constraint, math.prod(problem.parameter_shape(public)))


def obstacle(
    problem: Problem, public: Public, given: Vertices | None, *, balanced: bool = False
) -> str | None:
    """Why vertices cannot be drawn for a problem, or None if they can.

    Args:
        problem: loss, regulariser and constraint set.
        public: sizes.
        given: the vertices that the solver was made for, if it was.
        balanced: whether gradients are to be shortened without regard to the target.
    """
    if balanced and not (isinstance(problem.loss, GLMLoss) and problem.loss.balances):
        return f"the {problem.loss.name} loss has no balanced clip: use balanced=False"
    if not problem.regulariser.is_smooth:
        return (
            f"{problem.regulariser!r} is not smooth, and slopes along vertices would not show it: use Ridge or no "
            "penalty, since the constraint set already bounds the parameters"
        )
    try:
        found = polytope(problem, public)
    except ValueError:
        return (
            f"it draws vertices of an l1 ball, a simplex or a polytope, and the set is {problem.constraint!r}: use "
            "L1Ball(radius), Simplex(radius) or Polytope(vertices)"
        )
    if given is not None and given != found:
        return f"it was made for {given!r}, and the set has {found!r}: leave `vertices` open"
    return None


def signal(instance: Instance, count: int) -> float:
    """n sqrt(rho) / log m, what one exponential choice among m vertices can tell apart, for the whole budget."""
    return instance.public.n * math.sqrt(rho_of(instance)) / log_count(count)


def rho_of(instance: Instance) -> float:
    """About what all draws may cost, in zCDP; infinite without noise."""
    budget = instance.budget
    rho = zcdp_rho_budget(budget.epsilon, budget.delta)
    return rho if rho > 0.0 else budget.epsilon**2 / (8.0 * CHOICES)  # delta is 0: choices divide epsilon


def log_count(count: int) -> float:
    """log m, at least log 2."""
    return math.log(max(count, 2))


def frank_wolfe_steps(instance: Instance, count: int) -> int:
    """T_FW = 0.7 (n sqrt(rho) / log m)^(2/3) between 5 and 500: the preset that steps are derived from.

    Source:
        Talwar, Thakurta, Zhang 2015, with the constant measured on generated sparse data.
    """
    steps = round(0.7 * min(signal(instance, count), 1e12) ** (2.0 / 3.0))
    return min(max(steps, FEWEST_FRANK_WOLFE), MOST_FRANK_WOLFE)


def priced(stream: Stream, noise_multiplier: float) -> Stream:
    """The stream with its temperatures scaled so that all draws together cost rho = 1 / (2 z^2).

    Args:
        stream: of any scale; left alone where no draw costs anything.
        noise_multiplier: z, above 0.
    """
    rho = stream.rho()
    return stream if rho == 0.0 else stream.scaled(math.sqrt(0.5 / rho) / noise_multiplier)


def spent(solver: "VertexSolver") -> float:
    """rho of a configured solver's draws; infinite without noise."""
    return math.inf if solver.noise_multiplier == 0 else 0.5 / solver.noise_multiplier**2


def half_range(solver: "VertexSolver") -> float:
    """L: the largest slope along a vertex, in the loss's unit, of a gradient within the clip."""
    return reach(solver.vertices) * solver.clip


def curvature(solver: "VertexSolver", instance: Instance) -> float:
    """L1 R^2: the smoothness of the objective over weights on the vertices, in the l1 norm."""
    body = instance.problem.constraint
    if isinstance(body, L1Ball | Simplex):
        return mirror_geometry.smoothness(instance, solver.entry_bound)
    entry = mirror_geometry.largest_entry(instance, solver.entry_bound) / instance.public.row_bound
    largest = reach(solver.vertices)
    return max(
        descent_theory.smoothness(instance) * (largest * entry) ** 2,
        mirror_geometry.SMALLEST_SMOOTHNESS,
    )


def require_units(public: Public, batches: int) -> None:
    """Refuse more disjoint batches than there are pairs of units.

    Raises:
        ValueError: there are.
    """
    if batches > public.n // 2:
        raise ValueError(
            f"{batches} disjoint batches of n = {public.n} units were asked for, and each needs 2 units: take at most "
            f"{public.n // 2 + 1} steps."
        )


def missing_bound(solver: "VertexSolver", instance: Instance) -> tuple[str, ...]:
    """What to note where nothing is known of the entries of a row."""
    public = instance.public
    if solver.entry_bound is not None or public.entry_bound is not None or public.d == 1:
        return ()
    return (NO_ENTRY_BOUND.format(public.row_bound),)


def typical(solver: "VertexSolver", instance: Instance, constant: float) -> float:
    """constant * L (log(m)^(3/2) / (n sqrt(rho)))^(1/2), the law of theory with a constant that was measured.

    Args:
        solver: with vertices, clip and noise multiplier.
        instance: what is public.
        constant: of the method, on the two problems of `python -m benchmarks vertices` at the default clip.
    """
    worth = instance.public.n * math.sqrt(spent(solver))
    spread = log_count(solver.vertices.count) ** 1.5 / worth
    return constant * half_range(solver) * math.sqrt(spread)
