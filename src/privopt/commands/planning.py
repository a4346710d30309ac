"""`privopt plan`, and the plan that `privopt fit` announces."""

import contextlib
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from privopt.commands import screen
from privopt.commands.options import MAX_RECORDS, Options
from privopt.commands.paying import Paying, account_for
from privopt.commands.screen import Mistake, check_delta, require_given
from privopt.commands.task import Estimator, Task, named, needed_options, opened, placement_of, units_of
from privopt.data.storage import stored_dense
from privopt.engine.choose import exceeding, most_rows, needed_at_once, needed_bytes, reading_bytes, settled
from privopt.engine.on_ray.starting import cores
from privopt.engine.placement import Placement, lies_in_memory, memory_share
from privopt.planning.averaging import data_bytes, pass_seconds
from privopt.planning.plan import Plan, objective, promise, records
from privopt.plans import Plans
from privopt.public import Public
from privopt.report import forms
from privopt.report.words import size
from privopt.solvers.registry import SOLVERS


def run(files: Sequence[str], options: Options, *, as_json: bool = False, compare: bool = False) -> None:
    """Print what a fit would cost and achieve; of a table, where one is given, the units are counted at most.

    Args:
        files: of the table; none where `options.n` says how many units there are.
        options: of the task, the budget and the engine.
        as_json: whether all is printed as JSON, with what every other solver would do.
        compare: whether that is printed otherwise.
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
        n, how_n = units_of(opened(files, task), files, n, task.groups, terminal)
    assert n is not None
    estimator = task.estimator(n)
    if as_json:
        text = json.dumps(_document(task, estimator, n), indent=2, allow_nan=False)
        sys.stdout.write(text + "\n")
        return
    outlook = Paying(account_for(options.account, options.data_set, spends=False)).outlook
    more = forms.rows("plan.j2", "more", {}) if options.solver == "auto" and not compare else []
    announce(
        terminal,
        task,
        estimator,
        n,
        how_n,
        title="Plan, from public numbers alone",
        on_account=lambda plan: [*outlook(plan), *more],
        placement=settled_for(task, n, placement_of(options)),
    )
    _show_caps(terminal, task, n)
    if options.solver == "auto" and compare:
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
    facts = _facts(task, plan, n, how_n) | {
        "place": _place(task, plan, placement),
        "tenth": _tenth(task, estimator, plan),
    }
    rows = [*forms.rows("plan.j2", "fit", facts), *on_account(plan)]
    screen.show_plan(terminal, title, rows, plan, task.options.random_state)
    return plan


def _facts(task: Task, plan: Plan, n: int, how_n: str) -> dict[str, Any]:
    """What is said of a fit and its plan."""
    target, groups = task.target, task.groups if task.unit == "user" else ()
    return screen.plan_facts(plan, n, how_n, check_delta(task.options.delta, n)[1]) | {
        "groups": named(groups) if groups else "",
        "promise": promise(plan.public),
        "objective": objective(plan.public) if groups else "",
        "model": task.model.title,
        "quantile": task.quantile,
        "target": target.column,
        "classes": None if target.classes is None else [str(level) for level in target.classes],
        "bounds": target.bounds or (0.0, 0.0),
        "columns": len(task.encoder.blocks_),
        "features": task.encoder.n_features_out_,
        "user_column": task.schema.user,
        "split": task.schema.split,
    }


def _show_caps(terminal: Console, task: Task, n: int) -> None:
    """What protecting users costs beside protecting records, and what the cap on their records does."""
    prices = task.compare_caps(task.estimator(n), n)
    if prices:
        facts = [vars(price) | {"typical": records(price.typical_records)} for price in prices]
        title = "Records or users, at the same epsilon and delta (expected, rough)"
        screen.show_rows(terminal, title, forms.rows("plan.j2", "caps", facts))


def _show_others(terminal: Console, task: Task, estimator: Estimator, n: int) -> None:
    """What the other solvers would do, one line each."""
    others = _others(task, estimator, n)
    known = Plans(
        (task.plan(estimator.set_params(solver="auto"), n), *others),
        for_users=frozenset(other.solver for other in others if SOLVERS[other.solver]().is_for_users),
    )
    for heading, plans in known.others():
        facts = [screen.plan_facts(other, n, "", "") for other in plans]
        screen.show_rows(terminal, f"{heading} (--solver NAME)", forms.rows("plan.j2", "others", facts))


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
        "warnings": screen.warnings(plans[0], task.options.random_state),
        "plans": [plan.to_dict() for plan in plans],
        **({"caps": caps} if caps else {}),
        "place": asdict(Effort.of(plans[0], placement, len(task.columns))),
    }


# ------------------------------------------------------------------------------------------------------------
# What a plan says of the engine: where rows are kept, memory, seconds a pass, bytes read; and what a tenth
# would do.
# All of it follows from public numbers. A pass in memory is planned as `planning.averaging` does. Rates of other places
# are assumed, not measured on the machine at hand nor on another: a pass that reads a spool takes `STREAM_PASSES`
# passes in memory, or as long as a disk of `DISK_RATE` takes where the spool exceeds the share of memory; a round of a
# cluster takes `ROUND_PASSES` passes divided by its workers, as if each had one core, and `ROUND_SECONDS`. Passes and
# rounds are bars that the engines are to keep to: `benchmarks/scale.py` measures whether they do.


STREAM_PASSES, DISK_RATE = 1.3, 1e9  # bytes a second
ROUND_PASSES, ROUND_SECONDS = 1.2, 0.02
BUFFERS = 150 * 10**6  # bytes that a streamed fit is to take at most besides its share and `COLUMN_PAGES`
COLUMN_PAGES = (
    25 * 10**5
)  # bytes of pages and dictionary of a column of Parquet that pyarrow holds as it reads
TINY_FIT = 650 * 10**6  # bytes of `privopt fit` of a table of 2,000 rows: Python, JAX, what is compiled
FAR_BELOW = 1e-4  # an excess of the objective, per record, that hardly any use of a model tells from none
LEAST_TENTH = 1000


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a fit takes where its rows are kept.

    Attributes:
        engine: "memory", "stream" or "ray".
        rows: bytes of the stored rows, targets and norms.
        kept: the same with a linear map of them, which some solvers compute on.
        memory: bytes in this process, with those for reading and the points that are held; of a stream its share,
            `BUFFERS`, `COLUMN_PAGES` of each column and these points, of a cluster `BUFFERS` and these points alone.
        workers: of a cluster; one in the other places. A local cluster has as many as this machine has cores, where
            nothing says how many; of another's at least one.
        pass_seconds: of one pass.
        seconds: of all passes, and of what is done once.
        bytes_read: from the memory, the spool or the workers' memory in all passes.
    """

    engine: str
    rows: int
    kept: int
    memory: int
    workers: int
    pass_seconds: float
    seconds: float
    bytes_read: float

    @classmethod
    def of(cls, plan: Plan, placement: Placement, columns: int) -> "Effort":
        """That of a plan whose rows are kept as `settled_for` says, where so many columns of a table are read."""
        public = plan.public
        rows = data_bytes(public)
        kept = rows + (_view_bytes(public) if "whiten" in plan.solver else 0)
        one = min(pass_seconds(public, public.outputs), plan.seconds / max(plan.passes, 1.0))
        once = max(0.0, plan.seconds - one * plan.passes)  # loading, maps of the rows, releases
        memory = max(plan.memory_bytes, kept) + reading_bytes(
            math.ceil(public.n * public.typical_records), public.stored_entries
        )
        workers = 1
        if placement.engine == "stream":
            share = placement.memory or memory_share()
            cached = kept <= share
            one = max(STREAM_PASSES * one, 0.0 if cached else rows / DISK_RATE)
            memory = min(max(plan.memory_bytes, kept), share) + BUFFERS + columns * COLUMN_PAGES
        elif placement.engine == "ray":
            workers = placement.workers or (cores() if placement.address is None else 1)
            one, once = ROUND_PASSES * one / workers + ROUND_SECONDS, once / workers
            memory = BUFFERS
        return cls(
            engine=placement.engine,
            rows=rows,
            kept=kept,
            memory=memory + needed_at_once(plan, placement),
            workers=workers,
            pass_seconds=one,
            seconds=once + one * plan.passes,
            bytes_read=float(rows) * plan.passes,
        )


def settled_for(task: Task, n: int, placement: Placement) -> Placement:
    """Where the rows of a fit to n units are kept: what the plan says, and what the fit then does."""
    return settled(placement, *_sizes(task, n))


def require_held(plan: Plan, placement: Placement) -> None:
    """Refuse a plan that needs more of the units in this process than fits, where their rows lie elsewhere.

    Raises:
        Mistake: it does.
    """
    if (found := exceeding(plan, placement)) is None:
        return
    what, needed, limit = found
    more = "give more --memory, " if placement.engine == "stream" else ""
    raise Mistake(
        f"{plan.solver} holds {what} in this process, {size(needed)}, and with --engine {placement.engine} at most "
        f"{size(limit)} are: {more}take another --solver, or --engine memory."
    )


def _view_bytes(public: Public) -> int:
    """What a linear map of the rows takes; one of sparse rows that would be large is computed as it is asked for."""
    mapped = public.mapped(public.d, public.row_bound)
    return data_bytes(mapped) if stored_dense(mapped, computed=public.sparse) else 0


def _place(task: Task, plan: Plan, placement: Placement) -> dict[str, Any]:
    """Where the rows are kept, and what that takes."""
    effort = Effort.of(plan, placement, len(task.columns))
    spool = Path(placement.spool or tempfile.gettempdir())
    return asdict(effort) | {
        "needed": needed_bytes(*_sizes(task, plan.public.n)) if placement.chosen else None,
        "share": placement.memory or 0,
        "full_rows": task.encoder.is_sparse and task.encoder.row_entries is None,
        "at_least": placement.address is not None and placement.workers is None,
        "each": math.ceil(effort.kept / effort.workers),
        "spool": str(spool) if effort.engine == "stream" and lies_in_memory(spool) else None,
        "bytes_read": math.ceil(effort.bytes_read),
        "tiny_fit": TINY_FIT,
        "stream_passes": STREAM_PASSES,
        "round_passes": ROUND_PASSES,
    }


def _sizes(task: Task, n: int) -> tuple[int, int, str, int | None]:
    """The most rows that are stored, their features, their format, and the most entries of sparse ones."""
    cap = task.options.max_records
    most = most_rows(n, (MAX_RECORDS if cap is None else cap) if task.groups else None)
    return most, task.encoder.n_features_out_, str(task.options.storage), task.encoder.most_entries


def _tenth(task: Task, estimator: Estimator, plan: Plan) -> dict[str, Any] | None:
    """What a random tenth of the units would reach, where the predicted excess is far below need."""
    excess, tenth = plan.predicted_excess, plan.public.n // 10
    if excess is None or excess >= FAR_BELOW or tenth < LEAST_TENTH or not plan.budget.is_private:
        return None
    smaller = task.plan(estimator, tenth)
    reached = smaller.predicted_excess
    return None if reached is None else {"n": tenth, "excess": reached, "passes": smaller.passes}
