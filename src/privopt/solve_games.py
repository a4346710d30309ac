"""`minimax`: saddle points of a mean payoff over private units, and the plans of the solvers for them."""

from collections.abc import Sequence
from typing import Any

from privopt.curator.base import Observer
from privopt.data.units import Units
from privopt.declared_facts import declared_of_game
from privopt.engine.protocol import Engine, EngineName
from privopt.errors import tells_what_was_spent
from privopt.games.base import GameSolver
from privopt.games.registry import GAME_SOLVERS, choose_game
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseName, NoiseSource
from privopt.named_arguments import refuses_unknown
from privopt.planning.plan import Plan
from privopt.planning.task import Task
from privopt.plans import Plans, all_plans
from privopt.precision import in_float64
from privopt.problems.saddle import Game
from privopt.public import Public, Relation
from privopt.queries.safeguards import require_pure_payoff
from privopt.result import Result
from privopt.solve_arguments import check_game
from privopt.solve_runs import AskedUnits, announced, run_program
from privopt.solvers.program import Program
from privopt.tables.table import Table


@tells_what_was_spent
@refuses_unknown
def minimax(
    game: Game,
    units: Units | Engine | Table,
    *,
    budget: Budget,
    solver: GameSolver | str = "auto",
    account: Account | None = None,
    random_state: int | None = None,
    observer: Observer | None = None,
    engine: EngineName = "fast",
    noise: NoiseName = "exact",
    groups: str | Sequence[str] | None = None,
    relation: Relation | str | None = None,
    max_records_per_user: int | None = None,
) -> Result:
    """Find a saddle point of a mean payoff over private units: min over x, max over y.

    Args:
        game: a `BilinearGame`, or a `SaddleProblem` with a payoff of your own.
        units: the data, see `Units.from_arrays`; an engine on them, such as `Table.engine` gives; or a `Table`, as for
            `minimize`.
        budget: the (epsilon, delta) of this solve.
        solver: "auto", a name, or a solver of games.
        account: a budget shared with other solves; charged for the whole plan before the data is read.
        random_state: a seed: reproducible, and *not private*.
        observer: called with (name, count) after releases and (what, 0) before a long stage.
        engine: "fast", or "reference": every query by one plain path without compiled kernels, for checks and audits.
        noise: "exact", or "float": all noise in 64-bit floating point, for comparisons only; the report marks it.
        groups: of a `Table`, see `minimize`, as for what follows.
        relation: of a `Table`.
        max_records_per_user: of a `Table`.
    Returns:
        `params` is (x, y); with status, transcript, findings (which vertices are mixed) and the plan.
    Raises:
        ValueError, TypeError: an argument is not usable, or the payoff has effects such as a callback.
        BudgetExceeded: the account cannot pay; no data has been read.
    """
    asked = AskedUnits(groups=groups, relation=relation, max_records_per_user=max_records_per_user)

    def solve(data: Units | Engine) -> Result:
        source, public = NoiseSource.named(noise, random_state), data.public
        with in_float64():
            configured, plan = posed_game(game, public, budget, solver)
            require_pure_payoff(game, public)
            result = run_program(
                configured,
                lambda curator: configured.solve(curator, game),
                data,
                public,
                plan,
                noise=source,
                account=account,
                observer=observer,
                engine=engine,
                of={"game": game, "solver": configured},
            )
            return result._replace(declared=declared_of_game(game, public))

    return asked.solved(
        units,
        budget,
        account,
        observer,
        planned=lambda public: posed_game(game, public, budget, solver)[1],
        solve=solve,
    )


def posed_game(
    game: Game, public: Public, budget: Budget, solver: GameSolver | str
) -> tuple[GameSolver, Plan]:
    """The configured solver of a game, and the plan of its run, from public quantities alone.

    Raises:
        ValueError, TypeError: an argument is not usable.
    """
    with in_float64():
        check_game(game, public)
        task = Task(game, public, budget)
        return announced(choose_game(solver, task), task)


def plan_game(game: Game, public: Public, budget: Budget, solver: Program[Any] | str | None) -> Plans:
    """What playing a game would cost and achieve; see `privopt.plan`.

    Args:
        game: what is played.
        public: the public side of the data.
        budget: of the solve.
        solver: only this one; None for every solver that can play it.
    Raises:
        ValueError, TypeError: an argument is not usable.
    """
    check_game(game, public)
    task = Task(game, public, budget)
    default, reason = choose_game("auto" if solver is None else solver, task)
    return all_plans(default, reason, (make() for make in GAME_SOLVERS.values() if solver is None), task)
