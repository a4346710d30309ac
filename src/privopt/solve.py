"""`minimize` and `plan`: the two functions of the solver interface."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from privopt.curator.base import Observer
from privopt.data.storage import Derived
from privopt.data.units import Units
from privopt.declared_facts import declared_of_problem
from privopt.engine.protocol import Engine, EngineName
from privopt.errors import tells_what_was_spent
from privopt.later import deferred, is_of
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseName, NoiseSource
from privopt.named_arguments import refuses_unknown
from privopt.planning.plan import Plan
from privopt.planning.task import Instance
from privopt.plans import Plans, all_plans
from privopt.precision import in_float64
from privopt.problems.black_box import BlackBox
from privopt.problems.losses import GLMLoss, RecordLoss
from privopt.problems.problem import Problem
from privopt.problems.saddle import BilinearGame, Game
from privopt.public import DEFAULT_WEIGHTING, Public, Relation, Weighting, of_users
from privopt.queries.safeguards import require_pure_loss
from privopt.replays.recipes import recipe_of
from privopt.result import Result
from privopt.solve_arguments import check_loss, flat_start, posed_problem
from privopt.solve_runs import AskedUnits, announced, rehearse_program, run_program
from privopt.solvers.base import Solver
from privopt.solvers.registry import SOLVERS, choose
from privopt.tables.table import Table

if TYPE_CHECKING:
    from privopt.games.base import GameSolver
    from privopt.solvers.warm_start import with_warm_start
else:
    with_warm_start = deferred("privopt.solvers.warm_start", "with_warm_start")

__all__ = ["Loss", "Plans", "minimize", "plan"]

Loss = GLMLoss | RecordLoss | BlackBox | Problem | Callable[..., Any]


@refuses_unknown
def plan(
    problem: Loss | Game,
    *,
    n: int,
    d: int,
    epsilon: float,
    delta: float,
    relation: Relation | str = Relation.REPLACE_ONE,
    row_bound: float | None = None,
    entry_bound: float | None = None,
    max_records_per_user: int | None = None,
    user_weighting: Weighting = DEFAULT_WEIGHTING,
    typical_records: float | None = None,
    storage: str = "float32",
    row_entries: int | None = None,
    solver: "Solver | GameSolver | str | None" = None,
    start: Any = None,
) -> Plans:
    """Say what a solve would cost and achieve, from public numbers alone.

    Args:
        problem: a loss, a `BlackBox`, a `Problem` with regulariser and constraint set, or a function, as for
            `minimize`; or a game, as for `minimax`.
        n: public number of units.
        d: features of a record, the intercept included.
        epsilon: privacy budget; infinite for no privacy.
        delta: privacy budget.
        relation: the neighbouring relation.
        row_bound: largest l2 norm of a feature row; default 1, for a `BilinearGame` the length of its longest row.
        entry_bound: largest entry of a feature row, if it is known to be smaller.
        max_records_per_user: public cap on the records of a user that are used; then the privacy unit is a user, even
            at a cap of 1. Default: a record is the unit.
        user_weighting: of users, see `Units.from_arrays`.
        typical_records: of users, likewise.
        storage: the format of the stored rows, likewise.
        row_entries: the most entries of a row that are not zero, the intercept included, where rows will be sparse;
            None of dense ones.
        solver: only this one; default: every solver that can solve the problem.
        start: parameters of the right structure; required for a function and a `BlackBox`, ignored otherwise.
    Returns:
        Price, number of releases, data passes, memory, time and predicted excess, one `Plan` a solver.
    Raises:
        ValueError: an argument is out of its range.
    """
    budget = Budget(epsilon, delta)
    users: dict[str, Any] = {}
    if max_records_per_user is not None:
        users = of_users(max_records_per_user, user_weighting, typical_records)
    longest = problem.row_bound if isinstance(problem, BilinearGame) else 1.0
    public = Public(
        n=n,
        d=d,
        relation=Relation.parse(relation),
        row_bound=longest if row_bound is None else row_bound,
        entry_bound=entry_bound,
        storage=storage,
        sparse=row_entries is not None,
        row_entries=row_entries,
        **users,
    )
    if isinstance(problem, Game):
        from privopt.solve_games import plan_game  # late: for games alone

        return plan_game(problem, public, budget, solver)
    if is_of(solver, "privopt.games.base", "GameSolver"):
        title = cast("GameSolver", solver).title
        raise TypeError(
            f"{title} plays games, and the problem is none: give a Solver such as GradientDescent()."
        )
    solver = cast("Solver | str | None", solver)
    problem = posed_problem(problem, start)
    public = replace(public, outputs=problem.loss.outputs)
    own = isinstance(problem.loss, BlackBox)
    check_loss(problem, public, flat_start(problem, start, public) if own else None)
    instance = Instance(problem, public, budget)
    default, reason = choose("auto" if solver is None else solver, instance)
    others = (with_warm_start(make(), problem.loss) for make in (SOLVERS.values() if solver is None else ()))
    comparable = (other for other in others if other.weighs_groups == default.weighs_groups)
    return all_plans(default, reason, comparable, instance)


@tells_what_was_spent
@refuses_unknown
def minimize(
    problem: Loss,
    units: Units | Engine | Table,
    *,
    budget: Budget,
    solver: Solver | str = "auto",
    start: Any = None,
    account: Account | None = None,
    random_state: int | None = None,
    observer: Observer | None = None,
    engine: EngineName = "fast",
    noise: NoiseName = "exact",
    groups: str | Sequence[str] | None = None,
    relation: Relation | str | None = None,
    max_records_per_user: int | None = None,
) -> Result:
    """Minimise a mean loss over private units.

    Args:
        problem: a loss of `privopt.problems.losses`, a `Problem`, a JAX function
            `loss(params, features, target) -> scalar` of one record, with `start` its parameters (any pytree), or a
            `BlackBox`, which is not differentiated.
        units: the data, see `Units.from_arrays`; an engine on them, such as `Table.engine` gives; or a `Table`, whose
            records are read as its schema describes them, and are the units unless there are `groups`.
        budget: the (epsilon, delta) of this solve.
        solver: "auto", a name, or a configured solver.
        start: public or released starting point; required for a function and a `BlackBox`.
        account: a budget shared with other solves; charged for the whole plan before the data is read. Default: the
            account that the environment or the project's file names, if there is one.
        random_state: a seed: reproducible, and *not private*.
        observer: called with (name, count) after releases and (what, 0) before a long stage.
        engine: "fast", or "reference": every query by one plain path without compiled kernels, for checks and audits.
        noise: "exact", or "float": all noise in 64-bit floating point, for comparisons only; the report marks it.
        groups: of a `Table`, the column or columns that say whose record a row is; then a unit is a user.
        relation: of a `Table`, the neighbouring relation; default: replace-one.
        max_records_per_user: of a `Table` with `groups`, the public cap on the records of a user that are used.
    Returns:
        The released parameters, status, transcript, and the plan that was announced.
    Raises:
        ValueError, TypeError: an argument is not usable, or the loss has effects such as a callback.
        BudgetExceeded: the account cannot pay; no data has been read.
    """
    asked = AskedUnits(groups=groups, relation=relation, max_records_per_user=max_records_per_user)

    def solve(data: Units | Engine) -> Result:
        source, public = NoiseSource.named(noise, random_state), data.public
        with in_float64():
            stated, first, configured, plan = posed(problem, start, public, budget, solver)
            require_pure_loss(stated.loss, stated.parameter_shape(public), public)
            result = run_program(
                configured,
                lambda curator: configured.solve(curator, stated, first),
                data,
                public,
                plan,
                noise=source,
                account=account,
                observer=observer,
                engine=engine,
                of={**parts_of(stated), "start": first, "solver": configured},
                ends=_ends_with(configured, stated, public),
            )
            return result._replace(
                params=stated.unravel(result.params),
                recipe=recipe_of(stated, public, budget, solver, first),
                declared=declared_of_problem(stated, first, public),
            )

    return asked.solved(
        units,
        budget,
        account,
        observer,
        planned=lambda public: posed(problem, start, public, budget, solver).plan,
        solve=solve,
    )


def rehearse(
    solver: Solver, problem: Problem, data: Units | Engine, public: Public, budget: Budget
) -> Derived:
    """Refuse what a run of a solver could not do, before anything is paid for, see `rehearse_program`.

    Args:
        solver: as it will run.
        problem: what is minimised.
        data: the units, or an engine.
        public: what is public about the units that the solver will see.
        budget: what the run may cost.
    Returns:
        What it makes of the units.
    """
    ends = _ends_with(solver, problem, public)
    return rehearse_program(
        solver,
        lambda curator: solver.solve(curator, problem),
        data,
        public,
        budget,
        solver.event(public),
        ends,
    )


def _ends_with(solver: Solver, problem: Problem, public: Public) -> Callable[[Result], None]:
    """Refuses a solver of the user's own that ends with parameters of another shape than the problem's."""

    def check(trial: Result) -> None:
        shape, due = np.shape(trial.params), problem.parameter_shape(public)
        if shape != due:
            raise ValueError(
                f"{solver.title} ends with parameters of shape {shape}, and the problem has {due}."
            )

    return check


def parts_of(problem: Problem) -> dict[str, Any]:
    """What is minimised, by the names that a user knows its parts by; for a run that is to be resumed."""
    return {
        "loss": problem.loss,
        "penalty": problem.regulariser,
        "constraint": problem.constraint,
        "layout of parameters": problem.layout,
    }


class Posed(NamedTuple):
    """What is solved, by whom, and what it will cost.

    Attributes:
        problem: what is minimised.
        first: the starting point, flat; None for none.
        solver: configured.
        plan: of its run.
    """

    problem: Problem
    first: Any
    solver: Solver
    plan: Plan


def posed(problem: Loss, start: Any, public: Public, budget: Budget, solver: Solver | str) -> Posed:
    """A problem with its solver and plan, from public quantities alone.

    Raises:
        ValueError, TypeError: an argument is not usable.
    """
    with in_float64():
        problem = posed_problem(problem, start)
        first = flat_start(problem, start, public)
        check_loss(problem, public, first)
        return Posed(problem, first, *announce(problem, public, budget, solver))


def announce(problem: Problem, public: Public, budget: Budget, solver: Solver | str) -> tuple[Solver, Plan]:
    """The configured solver, and the plan of its run, from public quantities alone."""
    instance = Instance(problem, public, budget)
    return announced(choose(solver, instance), instance)
