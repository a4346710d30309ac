"""The tables of docs/benchmarks-panel.md, rendered from the JSON lines, and the bars that rules are held to."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks import panel_rows
from benchmarks.bars import Verdict
from benchmarks.panel import BASE, PEERS
from benchmarks.panel_cells import EPSILONS
from benchmarks.panel_problems import Half
from benchmarks.panel_statistics import (
    TOLERATED,
    CellKey,
    Ratio,
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

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks-panel.md"
MOST_OF_LANDED, MOST_OF_A_TABLE, MOST_OF_A_CELL = 0.85, 1.15, 1.5
MOST_OF_PEER, MOST_OF_PEER_IN_A_CELL = 0.5, 1.25

RULES_HEAD = (
    "rule, loss",
    "cells",
    "over the best tuned peer",
    "over the best T",
    f"over {BASE}",
    f"cells worse than {BASE}",
    "cells above the constant model",
)
TABLES_HEAD = (
    "rule, loss, table",
    "cells",
    "over the best tuned peer",
    *(f"epsilon {one:g}" for one in EPSILONS),
    "worst cell",
    f"over {BASE}",
    "over the constant model",
    "above it",
)
WORST_HEAD = ("rule, loss, problem", "epsilon", "over the best tuned peer", "over the constant model")
VARIANTS_HEAD = (
    "rule",
    "cells",
    f"over {BASE}",
    "worst table",
    "worst cell",
    "cells worse",
    "cells above the constant model",
)
TEST_LOSS_HEAD = (
    "rule",
    "cells",
    f"excess of the test loss over that of {BASE}",
    "worst table",
    "best table",
    "cells worse",
)
OPENINGS_HEAD = (
    "opening",
    "rule",
    f"over {BASE}",
    "over the best tuned peer",
    "cells above the constant model",
)
SHOWN_WORST = 8
CANDIDATES = ("calibrated", "posterior", "halfway")


def _kinds_of_run(records: Sequence[Record], half: Half) -> Iterator[tuple[str, str, dict[CellKey, Record]]]:
    """Every rule and loss that a half was measured with, and its cells; logistic loss of several classes is softmax."""
    panel = select(records, benchmark="panel", half=half)
    for name, what, kind in dict.fromkeys((one["method"], one["what"], one["kind"]) for one in panel):
        loss = "softmax" if kind == "classes" else what
        yield name, loss, by_cell(panel, method=name, what=what, kind=kind)


def _peers(records: Sequence[Record], half: Half) -> dict[CellKey, Record]:
    return best_peer(records, PEERS, benchmark="panel-oracles", half=half)


def _base(records: Sequence[Record], half: Half) -> dict[CellKey, Record]:
    return by_cell(records, benchmark="panel", half=half, method=BASE)


def _mean(found: Sequence[Ratio]) -> str:
    return str(overall(found)) if found else ""


def rule_rows(records: Sequence[Record], half: Half) -> list[list[str]]:
    """One row a rule and loss: geometric means, tables weighing alike, with their intervals."""
    peers, base = _peers(records, half), _base(records, half)
    steps = by_cell(records, benchmark="panel-oracles", half=half, method="best T")
    rows: list[list[str]] = []
    for name, what, cells in _kinds_of_run(records, half):
        over_base = [] if name == BASE else ratios(cells, base)
        rows.append(
            [
                f"{name}, {what}",
                f"{len(cells)}",
                *(_mean(one) for one in (ratios(cells, peers), ratios(cells, steps), over_base)),
                f"{100 * share_above(over_base, 1.0).value:.0f} %" if over_base else "",
                f"{sum(one.ratio > TOLERATED for one in against_constant(cells))}",
            ]
        )
    return rows


def table_rows(records: Sequence[Record], half: Half) -> list[list[str]]:
    """One row a rule, loss and table."""
    peers, base = _peers(records, half), _base(records, half)
    rows: list[list[str]] = []
    for name, what, cells in _kinds_of_run(records, half):
        over_peer = by_table(ratios(cells, peers))
        over_base = {} if name == BASE else by_table(ratios(cells, base))
        for table, constant in by_table(against_constant(cells)).items():
            those = over_peer.get(table, [])
            rows.append(
                [
                    f"{name}, {what}, {table}",
                    f"{len(constant)}",
                    *(
                        _short([one for one in those if epsilon in (None, one.epsilon)])
                        for epsilon in (None, *EPSILONS)
                    ),
                    f"{max(one.ratio for one in those):.2f}" if those else "",
                    _short(over_base.get(table, [])),
                    _short(constant),
                    f"{sum(one.ratio > TOLERATED for one in constant)}",
                ]
            )
    return rows


def worst_rows(records: Sequence[Record], half: Half) -> list[list[str]]:
    """The cells of each rule and loss that are worst against the best tuned peer or the constant model."""
    rows: list[list[str]] = []
    for name, what, cells in _kinds_of_run(records, half):
        over_peer = {(one.data, one.epsilon): one for one in ratios(cells, _peers(records, half))}
        constant = {(one.data, one.epsilon): one for one in against_constant(cells)}
        worst = sorted(over_peer, key=lambda cell: -over_peer[cell].ratio)[:SHOWN_WORST]
        above = [cell for cell, one in constant.items() if one.ratio > TOLERATED and cell not in worst]
        for cell in (*worst, *above):
            peer = over_peer.get(cell)
            rows.append(
                [
                    f"{name}, {what}, {cell[0]}",
                    f"{cell[1]:g}",
                    "" if peer is None else f"{peer.ratio:.2f} +- {peer.error:.2f}",
                    f"{constant[cell].ratio:.2f}",
                ]
            )
    return rows


def variant_rows(records: Sequence[Record]) -> list[list[str]]:
    """One row a candidate for two classes or variant of the landed rule, on the half there is to choose on."""
    candidates = select(records, benchmark="panel", half="choose", what="logistic")
    found, base = [*candidates, *select(records, benchmark="panel-variants")], _base(records, "choose")
    rows: list[list[str]] = []
    for name in dict.fromkeys((*CANDIDATES, *(one["method"] for one in found))):
        cells = by_cell(found, method=name)
        over = ratios(cells, base)
        if name in (BASE, "default") or not over:
            continue
        means, worst = table_means(over), max(over, key=lambda one: one.ratio)
        table = max(means, key=means.__getitem__)
        rows.append(
            [
                name,
                f"{len(over)}",
                str(overall(over)),
                f"{table} {means[table]:.2f}",
                f"{worst.data}, epsilon {worst.epsilon:g}: {worst.ratio:.2f}",
                f"{100 * share_above(over, 1.0).value:.0f} %",
                f"{sum(one.ratio > TOLERATED for one in against_constant(cells))}",
            ]
        )
    return rows


def test_loss_rows(records: Sequence[Record]) -> list[list[str]]:
    """One row a rule whose test loss was measured beside that of the rule of before, on two classes."""
    found = [
        {
            **one,
            "what": panel_rows.NAME,
            "excess": max(one["loss"] - one["least"], panel_rows.LEAST_EXCESS),
            "excesses": [],
        }
        for one in select(records, benchmark=panel_rows.NAME)
    ]
    rows: list[list[str]] = []
    for name, method in (
        ("calibrated", panel_rows.CALIBRATED),
        ("halfway", panel_rows.HALFWAY),
        ("its smaller ridge alone", panel_rows.SMALL_RIDGE),
    ):
        over = ratios(by_cell(found, method=method), by_cell(found, method=panel_rows.OWN))
        if over:
            tables = sorted(table_means(over).items(), key=lambda one: one[1])
            best, worst = (f"{table} {mean:.2f}" for table, mean in (tables[0], tables[-1]))
            worse = f"{100 * share_above(over, 1.0).value:.0f} %"
            rows.append([name, f"{len(over)}", str(overall(over)), worst, best, worse])
    return rows


def opening_rows(records: Sequence[Record]) -> list[list[str]]:
    """Every opening of the judging half."""
    return [
        [
            f"{one['rows']}",
            f"{', '.join((one['method'], *one.get('losses', ())))}: {one['rule']}",
            one.get(f"over {BASE}", {}).get("mean", ""),
            one.get("over the best tuned peer", {}).get("mean", ""),
            str(one.get("cells above the constant model", "")),
        ]
        for one in select(records, benchmark="panel-openings")
    ]


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """What a rule must reach on the judging half, and that no half has cells above the constant model."""
    found: list[Verdict] = []

    def bar(words: str, measured: float, most: float) -> None:
        found.append(Verdict(f"panel, {words}", measured, f"at most {most:g}", measured <= most))

    for name, what, cells in _kinds_of_run(records, "judge"):
        peer = ratios(cells, _peers(records, "judge"))
        if peer:
            bar(f"{name}, {what}: over the best tuned peer", overall(peer).value, MOST_OF_PEER)
            bar(
                f"{name}, {what}: the same, worst cell",
                max(one.ratio for one in peer),
                MOST_OF_PEER_IN_A_CELL,
            )
        base = [] if name == BASE else ratios(cells, _base(records, "judge"))
        if base:
            bar(f"{name}, {what}: over {BASE}", overall(base).value, MOST_OF_LANDED)
            bar(f"{name}, {what}: the same, worst table", max(table_means(base).values()), MOST_OF_A_TABLE)
            bar(f"{name}, {what}: the same, worst cell", max(one.ratio for one in base), MOST_OF_A_CELL)
    halves: tuple[Half, ...] = ("judge", "choose")
    for half in halves:
        for name, what, cells in _kinds_of_run(records, half):
            above = sum(one.ratio > TOLERATED for one in against_constant(cells))
            bar(f"{name}, {what}, half to {half}: cells above {TOLERATED} of the constant model", above, 0)
    return found


def _short(found: Sequence[Ratio]) -> str:
    return f"{geometric_mean(found):.2f}" if found else ""


Head = Callable[[Sequence[Record]], Sequence[str]]
Rows = Callable[[Sequence[Record]], list[list[str]]]
TABLES: dict[str, tuple[Head, Rows]] = {
    **{
        f"panel-{half}{suffix}": (lambda _, head=head: head, partial(rows, half=half))
        for half in ("judge", "choose")
        for suffix, head, rows in (
            ("", RULES_HEAD, rule_rows),
            ("-tables", TABLES_HEAD, table_rows),
            ("-worst", WORST_HEAD, worst_rows),
        )
    },
    "panel-variants": (lambda _: VARIANTS_HEAD, variant_rows),
    "panel-test-loss": (lambda _: TEST_LOSS_HEAD, test_loss_rows),
    "panel-openings": (lambda _: OPENINGS_HEAD, opening_rows),
}
