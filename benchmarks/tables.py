"""The tables of the documentation, rendered from the JSON lines."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import (
    auto,
    correlated,
    games,
    groups,
    inventory,
    kl,
    lasso,
    methods,
    nonsmooth,
    own_losses,
    panel_tables,
    paper,
    robust,
    sparse,
    steps,
    synthetic_tables,
    test_loss,
    users,
    users_tables,
    vertices,
)
from benchmarks.bars import Verdict, verdicts
from benchmarks.results import Record, select

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
MARK = re.compile(
    r"(?P<open><!-- table: (?P<name>[\w-]+) -->\n).*?(?P<close><!-- end of table -->)", re.DOTALL
)
RELATIONS = ("replace-one", "add-or-remove-one")
CHOSEN_ON = (
    "adult",
    "covertype",
    "hiva",
    "mnist",
    "w8a",
)  # the library's constants were chosen with these in sight
HELD_OUT = ("clickbait", "hiva", "movietweetings")  # hiva was looked at once, for how V counts directions


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; numbers to the right."""
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def text(value: float | None, digits: int = 4) -> str:
    """A number for a table."""
    return "" if value is None else f"{value:.{digits}f}"


def short(value: float | None) -> str:
    """A number of any size for a table."""
    return "" if value is None else f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"


def accuracy(records: Sequence[Record], relation: str) -> str:
    """Test accuracy of every method."""
    head = ["data", "epsilon", "default", "sd", methods.SAMPLED, methods.TUNED, methods.PLAIN, "optimum"]
    rows = []
    for record in _private(records, methods.DEFAULT, relation):
        if record["data"] in HELD_OUT:
            continue
        others = [_other(records, record, name) for name in (methods.SAMPLED, methods.TUNED)]
        plain = (select(records, data=record["data"], method=methods.PLAIN) or [{}])[0]
        values = [*(_cell(one) for one in (*others, plain)), text(plain.get("optimum_accuracy"))]
        rows.append(
            [
                record["data"],
                f"{record['epsilon']:g}",
                text(record["accuracy"]),
                text(record["accuracy_sd"]),
                *values,
            ]
        )
    return table(head, rows)


def excess(records: Sequence[Record], relation: str) -> str:
    """Excess of the mean training loss, time and memory."""
    head = ["data", "epsilon", "excess, default", methods.SAMPLED, methods.TUNED, "fit s"]
    head += [
        f"{methods.SAMPLED} fit s",
        f"{methods.PLAIN} fit s",
        "MB",
        "MB added",
        f"{methods.PLAIN} MB added",
    ]
    rows = []
    for record in _private(records, methods.DEFAULT, relation):
        if record["data"] in HELD_OUT:
            continue
        sampled, tuned = (_other(records, record, name) for name in (methods.SAMPLED, methods.TUNED))
        plain = (select(records, data=record["data"], method=methods.PLAIN) or [{}])[0]
        rows.append(
            [
                record["data"],
                f"{record['epsilon']:g}",
                *(text(one.get("excess")) for one in (record, sampled, tuned)),
                *(short(one.get("fit_s")) for one in (record, sampled, plain)),
                *(text(value, 0) for value in (record["memory_mb"], record["memory_added_mb"])),
                text(plain.get("memory_added_mb"), 0),
            ]
        )
    return table(head, rows)


def prediction(records: Sequence[Record]) -> str:
    """The plan's predicted excess against the measured one."""
    head = ["data", "epsilon", "predicted", "measured", "predicted / measured", "constants chosen on it"]
    rows = [
        [
            record["data"],
            f"{record['epsilon']:g}",
            short(record["predicted_excess"]),
            short(record["objective_excess"]),
            short(record["predicted_over_measured"]),
            "yes" if record["data"] in CHOSEN_ON else "no",
        ]
        for record in _private(records, methods.DEFAULT, RELATIONS[0])
    ]
    return table(head, rows)


def speed(records: Sequence[Record]) -> str:
    """Pass, fit, compilation and import times."""
    rows: list[list[str]] = []
    for one in select(records, benchmark="speed", what="pass"):
        size = f"{one['rows']:,} x {one['columns']}"
        label = f"fused gradient pass, {size}, {one['threads']} thread{'s' * (one['threads'] > 1)}"
        rows.append(
            [
                label,
                f"{one['pass_ms']:.1f} ms",
                f"NumPy sum {one['numpy_sum_ms']:.1f} ms",
                short(one["ratio"]),
            ]
        )
    for one in select(records, benchmark="speed", what="fit"):
        label = f"private fit, Covertype {one['rows']:,} x {one['columns']}, epsilon {one['epsilon']:g}"
        other = f"scikit-learn {one['scikit_learn_s']:.2f} s"
        rows.append([label, f"{one['fit_s']:.2f} s", other, short(one["ratio"])])
    for what in ("first fit on a machine", "first fit in a process"):
        for one in select(records, benchmark="speed", what=what):
            other = f"second fit {one['second_fit_s']:.2f} s"
            counts = f"{one['first_fit_compilations']} compilations, {one['second_fit_compilations']} in the second"
            label = f"{what} ({counts})"
            rows.append([label, f"{one['first_fit_s']:.2f} s", other, ""])
    imports = [one for one in select(records, benchmark="speed") if "import " in one["what"]]
    rows += [[f"`{one['what']}`", f"{one['seconds']:.2f} s", "", ""] for one in imports]
    return table(["what", "time", "against", "ratio"], rows)


def bars(found: Iterable[Verdict]) -> str:
    """What was asked for and what was reached."""
    rows = [[one.what, f"{one.measured:.4g}", one.asked, "yes" if one.met else "**no**"] for one in found]
    return table(["bar", "measured", "asked", "met"], rows)


def render(records: Sequence[Record], page: str) -> str:
    """A page with every marked table renewed."""
    made = {
        "bars": lambda: bars(verdicts(records)),
        "prediction": lambda: prediction(records),
        "paper": lambda: table(
            ["method", "passes", *(f"gap, epsilon {one:g}" for one in paper.EPSILONS)],
            paper.table_rows(records),
        ),
        "steps": lambda: table(steps.HEAD, steps.table_rows(records)),
        "lasso": lambda: table(lasso.HEAD, lasso.table_rows(records)),
        "games-bars": lambda: bars(games.verdicts(records)),
        "games": lambda: table(games.HEAD, games.table_rows(records)),
        "games-runs": lambda: table(games.SETTINGS_HEAD, games.setting_rows(records)),
        "vertices": lambda: table(vertices.HEAD, vertices.table_rows(records)),
        "sparse": lambda: table(sparse.HEAD, sparse.table_rows(records)),
        "robust-bars": lambda: bars(robust.verdicts(records)),
        "robust": lambda: table(robust.HEAD, robust.table_rows(records)),
        "groups-bars": lambda: bars(groups.verdicts(records)),
        "groups": lambda: table(groups.HEAD, groups.table_rows(records)),
        "correlated-bars": lambda: bars(correlated.verdicts(records)),
        "correlated": lambda: table(*correlated.rows(records)),
        "correlated-noise": lambda: table(*correlated.noise_rows(records)),
        "kl-bars": lambda: bars(kl.verdicts(records)),
        "kl": lambda: table(kl.HEAD, kl.table_rows(records)),
        "kl-worse": lambda: table(kl.WORSE_HEAD, kl.worse_rows(records)),
        "own-losses-bars": lambda: bars(own_losses.verdicts(records)),
        "own-losses": lambda: table(own_losses.HEAD, own_losses.table_rows(records)),
        "own-losses-ratios": lambda: table(own_losses.RATIO_HEAD, own_losses.ratio_rows(records)),
        "kl-runs": lambda: table(kl.RUNS_HEAD, kl.setting_rows(records)),
        "nonsmooth-bars": lambda: bars(nonsmooth.verdicts(records)),
        "nonsmooth-randhie": lambda: table(nonsmooth.HEAD, nonsmooth.table_rows(records, "randhie")),
        "nonsmooth-inventory": lambda: table(inventory.HEAD, inventory.table_rows(records)),
        "nonsmooth-flipped": lambda: table(nonsmooth.SIZE_HEAD, nonsmooth.table_rows(records, "flipped")),
        "speed": lambda: speed(records),
        "test-loss": lambda: table(test_loss.HEAD, test_loss.table_rows(records)),
        "auto-bars": lambda: bars(auto.verdicts(records)),
        "auto": lambda: table(auto.HEAD, auto.table_rows(records)),
        "auto-rivals": lambda: table(auto.RIVAL_HEAD, auto.rival_rows(records)),
        "panel-bars": lambda: bars(panel_tables.verdicts(records)),
        "synthetic-bars": lambda: bars(synthetic_tables.verdicts(records)),
        "users-bars": lambda: bars(users.verdicts(records)),
        **{
            name: lambda made=made: table(made[0](records), made[1](records))
            for name, made in (
                *users_tables.TABLES.items(),
                *synthetic_tables.TABLES.items(),
                *panel_tables.TABLES.items(),
            )
        },
        **{f"accuracy-{relation}": lambda r=relation: accuracy(records, r) for relation in RELATIONS},
        **{f"excess-{relation}": lambda r=relation: excess(records, r) for relation in RELATIONS},
    }
    return MARK.sub(lambda found: f"{found['open']}\n{made[found['name']]()}\n\n{found['close']}", page)


def _cell(record: Record) -> str:
    """A record's accuracy, or that no accountant prices it."""
    return "not priced" if "refused" in record else text(record.get("accuracy"))


def _private(records: Sequence[Record], method: str, relation: str) -> list[Record]:
    chosen = select(records, benchmark="accuracy", method=method, relation=relation)
    return sorted(chosen, key=lambda one: (one["data"], one["epsilon"]))


def _other(records: Sequence[Record], record: Record, method: str) -> Record:
    same = {key: record[key] for key in ("benchmark", "data", "relation", "epsilon")}
    return (select(records, **same, method=method) or [{}])[0]
