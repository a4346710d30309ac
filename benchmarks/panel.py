"""The panel: rules for the default, compared on many problems of tables that they were not chosen on.

    python -m benchmarks panel [--half choose|judge] [--rule NAME ...] [--kind KIND ...] [--loss LOSS ...]
                               [--oracles] [--variants] [--quick]

`panel_problems` has the problems and the two halves, `panel_cells` runs all seeds of a cell at once with the releases
of the library, `panel_rules` has the rules. Measured is the mean loss on the training rows above the non-private least,
at epsilon 0.1, 0.3, 1 and 3, delta = 1 / n^2, replace-one, ten seeds that all rules share. `--oracles` first
adds what is missing of the yardsticks of `panel_oracles`; `--rule` without a name runs them alone. The rule `default`
is run on users as well; `--variants` runs those of `panel_contenders` instead of rules. The judging half is there to
judge on: a rule opens it by `--half judge` alone, once a candidate, and every opening is a line of
results/panel-openings.jsonl.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, get_args

import numpy as np

from benchmarks import panel_users
from benchmarks.panel_cells import EPSILONS, Cell, Model
from benchmarks.panel_contenders import RULES, VARIANTS
from benchmarks.panel_oracles import ORACLES, asked_of
from benchmarks.panel_problems import PROBLEMS, Half, Kind, PanelProblem, arrays
from benchmarks.panel_statistics import (
    TOLERATED,
    against_constant,
    best_peer,
    by_cell,
    by_table,
    geometric_mean,
    overall,
    ratios,
    share_above,
    table_means,
)
from benchmarks.results import Record, select

KINDS: tuple[Kind, ...] = get_args(Kind)
LOSSES: tuple[Model, ...] = get_args(Model)
USUAL_LOSS: dict[Kind, Model] = {
    "two classes": "logistic",
    "classes": "logistic",
    "numbers": "squared",
    "counts": "poisson",
}
OTHER_LOSSES: dict[Kind, tuple[Model, ...]] = {"two classes": ("hinge",), "numbers": ("huber", "quantile")}
BASE = "landed"
SEEDS = 10
QUICK = {"seeds": 3, "epsilons": (0.3, 1.0), "most_numbers": 200_000}


def losses_of(kind: Kind) -> tuple[Model, ...]:
    """The losses that a kind of target can be fitted by, the usual one first."""
    return (USUAL_LOSS[kind], *OTHER_LOSSES.get(kind, ()))


def measure(
    *,
    half: Half = "choose",
    rules: Sequence[str] = (BASE,),
    kinds: Sequence[Kind] = KINDS,
    losses: Sequence[str] | None = None,
    oracles: bool = False,
    quick: bool = False,
    known: Sequence[Record] = (),
    problems: Sequence[PanelProblem] = PROBLEMS,
) -> Iterator[Record]:
    """One record a cell and rule; on the judging half, the line of the opening before and after them.

    Args:
        half: which tables.
        rules: names in `RULES`, or in `VARIANTS`, which run on two classes; none of them opens nothing.
        kinds: of targets.
        losses: the usual one of each kind if None, whole users included.
        oracles: whether missing yardsticks are measured as well.
        quick: few seeds and budgets, small problems alone.
        known: records of before: yardsticks that are there are not measured again.
        problems: among which.

    Raises:
        ValueError: a variant on the judging half.
    """
    if half == "judge" and not VARIANTS.keys().isdisjoint(rules):
        raise ValueError("Variants stay on the half there is to choose on: they are no candidates.")
    opened = (
        [_opening(name, kinds, losses, known, k) for k, name in enumerate(rules)] if half == "judge" else []
    )
    yield from opened
    found: list[Record] = []
    for cell, what in cells(half, kinds, losses, quick, problems):
        identity = _identity(cell, what)
        if oracles:
            for name in asked_of(cell, {one["method"] for one in select(known, **identity)}):
                yield _measured(identity, cell, name, "panel-oracles")
        for name in rules:
            if name in RULES or (cell.problem.kind, what) == ("two classes", "logistic"):
                found.append(_measured(identity, cell, name, "panel" if name in RULES else "panel-variants"))
                yield found[-1]
    if panel_users.RULE in rules and panel_users.LOSS in (losses or (panel_users.LOSS,)):
        for record in _by_user(half, kinds, quick, problems):
            found.append(record)
            yield record
    for line in opened:
        yield line | headline(found, known, line["method"], half)


def _by_user(
    half: Half, kinds: Sequence[Kind], quick: bool, problems: Sequence[PanelProblem]
) -> Iterator[Record]:
    for problem in problems:
        if problem.half == half and problem.users and problem.kind in kinds:
            for epsilon in QUICK["epsilons"] if quick else EPSILONS:
                seeds = panel_users.QUICK_SEEDS if quick else panel_users.SEEDS
                yield panel_users.measure(problem, arrays(problem), epsilon, seeds)


def cells(
    half: Half,
    kinds: Sequence[Kind],
    losses: Sequence[str] | None,
    quick: bool,
    problems: Sequence[PanelProblem] = PROBLEMS,
) -> Iterator[tuple[Cell, Model]]:
    """The cells that are asked for, with their loss; problems whose unit is a user are not among them."""
    for problem in problems:
        if problem.half != half or problem.kind not in kinds or problem.users:
            continue
        stored = arrays(problem)
        if quick and stored.features.size > QUICK["most_numbers"]:
            continue
        for what in losses_of(problem.kind):
            if what not in (losses or losses_of(problem.kind)[:1]):
                continue
            for epsilon in QUICK["epsilons"] if quick else EPSILONS:
                model = None if what == USUAL_LOSS[problem.kind] else what
                seeds = QUICK["seeds"] if quick else SEEDS
                yield Cell(problem, stored, epsilon, seeds=seeds, model=model), what


def _identity(cell: Cell, what: Model) -> Record:
    problem = cell.problem
    return {
        "half": problem.half,
        "table": problem.table,
        "data": problem.name,
        "kind": problem.kind,
        "what": what,
        "epsilon": cell.epsilon,
    }


def _measured(identity: Record, cell: Cell, name: str, benchmark: str) -> Record:
    begun, setting = time.perf_counter(), {}
    if benchmark != "panel-oracles":
        excess = cell.excess((RULES | VARIANTS)[name](cell))
        constant = cell.constant_excess
        setting = {"constant": float(np.mean(constant)), "constants": constant.tolist()}
    else:
        chosen, excess = ORACLES[name](cell)
        setting = {"setting": asdict(chosen)}
    return {
        "benchmark": benchmark,
        **identity,
        "method": name,
        "excess": float(np.mean(excess)),
        "sd": float(np.std(excess, ddof=1)) if len(excess) > 1 else 0.0,
        "seeds": len(excess),
        "excesses": excess.tolist(),
        **setting,
        "best": cell.best,
        "n": cell.n,
        "d": cell.d,
        "seconds": time.perf_counter() - begun,
    }


def _opening(
    name: str, kinds: Sequence[Kind], losses: Sequence[str] | None, known: Sequence[Record], k: int
) -> Record:
    """What is written down before anything of the judging half is seen."""
    words = (RULES[name].__doc__ or "").partition("\n")[0]
    number = len(select(known, benchmark="panel-openings")) + k + 1
    return {
        "benchmark": "panel-openings",
        "rows": number,
        "method": name,
        "rule": words,
        "kinds": list(kinds),
        **({"losses": list(losses)} if losses else {}),
    }


def headline(found: Sequence[Record], known: Sequence[Record], name: str, half: Half) -> Record:
    """What an opening says of what it found: over the rule of before, the best tuned peer and the constant model."""
    of = by_cell(found, method=name)
    base = by_cell([*select(known, benchmark="panel", half=half), *found], method=BASE)
    compared = {
        f"over {BASE}": ratios(of, base),
        "over the best tuned peer": ratios(of, best_peer(known, PEERS, half=half)),
    }
    said: Record = {"cells": len(of)}
    for words, those in compared.items():
        if those and words != f"over {name}":
            worst = max(those, key=lambda one: one.ratio)
            means = table_means(those)
            table = max(means, key=means.__getitem__)
            said[words] = {
                "mean": str(overall(those)),
                "worst table": f"{table} {means[table]:.2f}",
                "worst cell": f"{worst.data}, epsilon {worst.epsilon:g}: {worst.ratio:.2f}",
            }
    constant = [one for one in against_constant(of) if one.ratio > TOLERATED]
    return said | {"cells above the constant model": len(constant)}


PEERS = tuple(name for name in ORACLES if name != "best T")


def report(records: Sequence[Record], half: Half, names: Sequence[str]) -> str:
    """What was measured, to read: each rule against the rule of before, the peers and the constant model."""
    lines: list[str] = []
    panel = select(records, benchmark="panel", half=half)
    for name in names:
        for what in dict.fromkeys(one["what"] for one in select(panel, method=name)):
            of = by_cell(panel, method=name, what=what)
            compared: dict[str, Any] = {
                BASE: by_cell(panel, method=BASE, what=what) if name != BASE else {},
                "best tuned peer": best_peer(records, PEERS, half=half),
                "best T in hindsight": by_cell(records, benchmark="panel-oracles", method="best T"),
            }
            for words, base in compared.items():
                lines += _compared(f"{name}, {what}, {half}: excess over that of {words}", ratios(of, base))
            lines += _compared(
                f"{name}, {what}, {half}: excess over the constant model's", against_constant(of)
            )
    return "\n".join(lines)


def _compared(title: str, found: Any) -> list[str]:
    if not found:
        return []
    lines = [title, f"  {'table':16} cells   mean   worst  worse  over 1.05"]
    for table, those in by_table(found).items():
        worst = max(those, key=lambda one: one.ratio)
        worse = np.mean([one.ratio > 1.0 for one in those])
        above = sum(one.ratio > TOLERATED for one in those)
        lines.append(
            f"  {table:16} {len(those):5} {geometric_mean(those):6.3f} {worst.ratio:7.3f} {worse:6.2f} {above:10}"
            f"   worst: {worst.data}, epsilon {worst.epsilon:g} (+- {worst.error:.2f})"
        )
    above = share_above(found, TOLERATED)
    lines.append(
        f"  all: mean {overall(found)}, worse in {share_above(found, 1.0)} of the cells, above 1.05 in {above}\n"
    )
    return lines
