"""`privopt plan`, and the plan that `privopt fit` announces."""

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from privopt.commands import screen
from privopt.commands.mistakes import check_delta, require_given
from privopt.commands.options import Options
from privopt.commands.paying import Paying, account_for
from privopt.commands.placing import Effort, place_rows, require_held, settled_for, tenth_rows
from privopt.commands.tables import opened, placement_of, units_of
from privopt.commands.task import Estimator, Task, named, needed_options
from privopt.engine.placement import Placement
from privopt.planning import user_words
from privopt.planning.plan import Plan
from privopt.planning.user_caps import CapPrice
from privopt.plans import Plans
from privopt.public import Relation
from privopt.report.words import number, several, several_or
from privopt.solvers.registry import SOLVERS

MEANING = {
    Relation.REPLACE_ONE: "replace-one: its data may be replaced by any other",
    Relation.ADD_OR_REMOVE_ONE: "add-or-remove-one: it may be there or not",
}
PUBLIC_NUMBER = {
    Relation.REPLACE_ONE: "under replace-one their number is public",
    Relation.ADD_OR_REMOVE_ONE: "a public number that is not exceeded; how many there are stays private",
}


def run(files: Sequence[str], options: Options, *, as_json: bool = False) -> None:
    """Print what a fit would cost and achieve; of a table, where one is given, the units are counted at most.

    Raises:
        Mistake, TableError: something that was typed cannot be used.
    """
    needed = needed_options(options)
    if "--n" not in needed:
        known = options.n if options.n is not None else list(files)
        needed["--n"] = (
            known,
            "the public number of records (of users with --group), or the table, to have them counted",
        )
    require_given(needed)
    task = Task.of(options)
    terminal = Console(stderr=True) if as_json else screen.console()
    n, how_n = options.n, "given by --n"
    if files:
        n, how_n = units_of(opened(files, task), files, task, terminal)
    assert n is not None
    estimator = task.estimator(n)
    if as_json:
        text = json.dumps(_document(task, estimator, n), indent=2, allow_nan=False)
        sys.stdout.write(text + "\n")
        return
    announce(
        terminal,
        task,
        estimator,
        n,
        how_n,
        title="Plan, from public numbers alone",
        on_account=Paying(account_for(options.account, options.data_set, spends=False)).outlook,
        placement=settled_for(task, n, placement_of(options)),
    )
    _show_caps(terminal, task, n)
    if options.solver == "auto":
        _show_others(terminal, task, estimator, n)


def announce(
    terminal: Console,
    task: Task,
    estimator: Estimator,
    n: int,
    how_n: str,
    *,
    title: str,
    on_account: Callable[[Plan], list[tuple[str, str]]],
    placement: Placement,
) -> Plan:
    """Print the plan of a fit to n units, with what `on_account` says of paying for it, and return it."""
    plan = task.plan(estimator, n)
    require_held(plan, placement)
    placed = [*place_rows(task, plan, placement), *tenth_rows(task, estimator, plan)]
    screen.show_rows(terminal, title, [*_rows(task, plan, n, how_n), *placed, *on_account(plan)])
    for warning in _warnings(task, plan):
        screen.warn(terminal, warning)
    return plan


def _warnings(task: Task, plan: Plan) -> list[str]:
    """Why a fit by this plan would not be private."""
    seed = task.options.random_state
    by_seed = [] if seed is None else [screen.NOT_PRIVATE_SEED.format(seed=seed)]
    return by_seed + ([] if plan.budget.is_private else [screen.NOT_PRIVATE_EPSILON])


def _rows(task: Task, plan: Plan, n: int, how_n: str) -> list[tuple[str, str]]:
    """The plan as labelled lines."""
    user, relation = task.schema.user, plan.public.relation
    protected = "one record"
    if task.unit == "user":
        protected = f"one user ({named(task.groups)}): {user_words.promise(plan.public)};"
    rows = [
        ("protected", f"{protected} among {n:,}; {MEANING[relation]}"),
        *([("objective", user_words.objective(plan.public))] if task.unit == "user" else []),
        ("n", f"{n:,} {task.unit}s, {how_n}; {PUBLIC_NUMBER[relation]}"),
        ("price", screen.price_row(plan, check_delta(task.options.delta, n)[1])),
        ("model", _model(task)),
        ("solver", plan.solver + (f", chosen because {plan.reason.rstrip('.')}" if plan.reason else "")),
        ("effort", screen.passes_row(plan)),
        *screen.promises(plan),
    ]
    if task.unit == "record" and user is not None:
        rows.append(
            (
                "note",
                f"The schema says that {user!r} names users. Without --group {user} a user's records are protected one "
                "by one, not together.",
            )
        )
    if task.schema.split is not None:
        rows.append(
            (
                "note",
                f"Every row is fitted, whatever {task.schema.split!r} says: leave test rows out of the table.",
            )
        )
    return rows + [("note", notice) for notice in plan.notices if plan.budget.is_private]


def _model(task: Task) -> str:
    """The model, its target and its features."""
    target = task.target
    if target.classes is not None:
        labels = ", ".join(map(str, target.classes[:6])) + (" ..." if len(target.classes) > 6 else "")
        domain = f"classes {labels}"
    else:
        low, high = target.bounds or (0.0, 0.0)
        domain = f"from {number(low)} to {number(high)}"
    level = "" if task.quantile is None else f" at {task.quantile:g}"
    columns = len(task.encoder.blocks_)
    return (
        f"{task.model.title}{level} of {target.column!r} ({domain}) from {columns} columns, "
        f"{task.encoder.n_features_out_:,} features"
    )


def _show_caps(terminal: Console, task: Task, n: int) -> None:
    """What protecting users costs beside protecting records, and what the cap on their records does."""
    rows = [_cap_row(price) for price in task.compare_caps(task.estimator(n), n)]
    if rows:
        rows.append(
            (
                "note",
                "A larger cap costs time and no privacy; records that a person does not have do not help.",
            )
        )
        screen.show_rows(terminal, "Records or users, at the same epsilon and delta (expected, rough)", rows)


def _cap_row(price: CapPrice) -> tuple[str, str]:
    """One way to count units as a labelled line."""
    noise = f"noise of one mean {number(price.noise, 2)} of the largest contribution"
    expected = f"excess {number(price.excess, 2)}; {noise}"
    if price.cap is None:
        typical = user_words.records(price.typical_records)
        return (
            "records",
            f"{expected}. Protects one record of {price.units:,}; a person with {typical} would have epsilon "
            f"{number(price.epsilon_of_person, 2)}, not the one above",
        )
    kept = f"{user_words.records(price.typical_records)} of a typical person used"
    least = "" if price.units >= price.smallest_n else f". TOO FEW: needs {price.smallest_n:,} users"
    return f"cap {price.cap:,}", f"{expected}; {kept}{least}"


def _show_others(terminal: Console, task: Task, estimator: Estimator, n: int) -> None:
    """What the other solvers would do, one line each."""
    others = _others(task, estimator, n)
    known = Plans(
        (task.plan(estimator.set_params(solver="auto"), n), *others),
        for_users=frozenset(other.solver for other in others if SOLVERS[other.solver]().is_for_users),
    )
    for heading, plans in known.others():
        rows = [(other.solver, _short(other)) for other in plans]
        screen.show_rows(terminal, f"{heading} (--solver NAME)", rows)


def _short(plan: Plan) -> str:
    most = "at most " if plan.adaptive else ""
    bound = "" if plan.bound is None else f"; {plan.bound.sentence}"
    effort = f"{most}{several(plan.releases, 'release')}, {several_or(plan.passes, 'pass')}"
    return f"{effort}; {screen.excess_row(plan)}{bound}"


def _others(task: Task, estimator: Estimator, n: int) -> list[Plan]:
    """The plans of the solvers that can solve the problem and were not chosen, under the names of --solver."""
    chosen, plans = task.plan(estimator, n), list[Plan]()
    for name in SOLVERS:
        with contextlib.suppress(ValueError):  # it cannot solve this problem
            other = task.plan(estimator.set_params(solver=name), n)
            if other.solver != chosen.solver:
                plans.append(replace(other, solver=name))
    return plans


def _document(task: Task, estimator: Estimator, n: int) -> dict[str, Any]:
    """The plans as JSON values, the one that a fit would follow first."""
    plans = [task.plan(estimator, n)]
    placement = settled_for(task, n, placement_of(task.options))
    require_held(plans[0], placement)
    if task.options.solver == "auto":
        plans += _others(task, estimator, n)
    caps = [price.to_dict() for price in task.compare_caps(task.estimator(n), n)]
    return {
        "chosen": plans[0].solver,
        "warnings": _warnings(task, plans[0]),
        "plans": [plan.to_dict() for plan in plans],
        **({"caps": caps} if caps else {}),
        "place": Effort.of(plans[0], placement, len(task.columns)).to_dict(),
    }
