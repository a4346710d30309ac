"""The benchmarks, from the command line.

    python -m benchmarks [WHAT]

WHAT is all, accuracy, prediction, steps, paper, lasso, games, vertices, sparse, groups, robust, correlated, kl,
nonsmooth, own_losses, panel, test_loss, auto, users, synthetic, speed, eager, planned or table. Results are JSON lines
in benchmarks/results/ (of a quick run in benchmarks/results/tmp/); `table` renders them into the pages
docs/benchmarks*.md and those beside the algorithms. Without a command everything is measured and the tables are
renewed.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import (
    auto,
    correlated,
    eager,
    games,
    groups,
    kl,
    kl_data,
    kl_methods,
    lasso,
    methods,
    nonsmooth,
    own_losses,
    own_losses_data,
    panel,
    panel_tables,
    panel_users,
    paper,
    planned,
    robust,
    sparse,
    speed,
    steps,
    synthetic,
    synthetic_tables,
    tables,
    test_loss,
    users,
    users_data,
    vertices,
)
from benchmarks.bars import verdicts
from benchmarks.cells import Task
from benchmarks.datasets import SHARED_DATA
from benchmarks.encoded import encode
from benchmarks.panel_contenders import RULES, VARIANTS
from benchmarks.processes import lines_of
from benchmarks.results import RESULTS, SCRATCH, Record, append, read, select

DATA = ("adult", "covertype", "mnist", "w8a")
EPSILONS = (0.1, 0.3, 1.0, 3.0)
QUICK_EPSILONS = (0.3, 1.0)
QUICK_ROWS = 5_000
USUAL_METHODS = (methods.PLAIN, *methods.PRIVATE)
SLOW = {"mnist": {"seeds": 3, "relations": ("replace-one",)}}  # of the baselines, see docs/benchmarks.md


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument(
        "what",
        nargs="?",
        default="all",
        choices=[
            "all",
            "accuracy",
            "prediction",
            "steps",
            "paper",
            "lasso",
            "games",
            "vertices",
            "sparse",
            "groups",
            "robust",
            "correlated",
            "kl",
            "nonsmooth",
            "own_losses",
            "panel",
            "test_loss",
            "auto",
            "users",
            "synthetic",
            "speed",
            "eager",
            "planned",
            "table",
        ],
    )
    command.add_argument(
        "--data",
        nargs="+",
        choices=tuple(
            dict.fromkeys(
                (
                    *DATA,
                    *tables.HELD_OUT,
                    *kl_data.DATA,
                    *own_losses_data.DATA,
                    *sparse.DATA,
                    *users_data.HELD_OUT,
                    *users_data.OTHER_LOSSES,
                )
            )
        ),
        help=f"default: the first four; for prediction the first seven; for kl {', '.join(kl_data.DATA)}",
    )
    command.add_argument(
        "--epsilon", nargs="+", type=float, help="default 0.1 0.3 1 3, quick 0.3 1; for kl 0.25 to 4"
    )
    command.add_argument(
        "--seeds", type=int, default=None, help="fits a cell; default 5, quick 2; for kl 1 to 8"
    )
    command.add_argument("--relation", default="both", choices=["both", *tables.RELATIONS])
    command.add_argument(
        "--method",
        nargs="+",
        default=USUAL_METHODS,
        choices=(
            methods.PLAIN,
            *methods.PRIVATE,
            methods.DESCENT,
            *kl_methods.METHODS,
            own_losses.TUNED,
            *users.METHODS,
        ),
    )
    command.add_argument(
        "--table",
        nargs="+",
        choices=(*users.TABLES, *synthetic.TABLES),
        default=None,
        help="users, synthetic: which tables",
    )
    command.add_argument(
        "--resume", action="store_true", help="kl, users: keep the cells that are already measured"
    )
    command.add_argument(
        "--quick", action="store_true", help="fewer rows, seeds and candidates; results not kept"
    )
    command.add_argument(
        "--half",
        default="choose",
        choices=["choose", "judge"],
        help="panel: judge is opened once a candidate",
    )
    command.add_argument(
        "--rule", nargs="*", default=[panel.BASE], choices=[*RULES], help=f"panel; default {panel.BASE}"
    )
    command.add_argument(
        "--kind", nargs="+", default=panel.KINDS, choices=panel.KINDS, help="panel: of targets"
    )
    command.add_argument(
        "--loss",
        nargs="+",
        choices=tuple(dict.fromkeys((*panel.LOSSES, panel_users.LOSS, *test_loss.MODELS))),
        help="panel; default: the usual one of each kind; test_loss: which models, default all",
    )
    command.add_argument(
        "--oracles", action="store_true", help="panel: measure the yardsticks that are missing"
    )
    command.add_argument(
        "--variants", action="store_true", help="panel: the landed rule with parts changed, instead of rules"
    )
    command.add_argument("--shared", type=Path, default=SHARED_DATA, help="the folder of the shared data")
    command.add_argument("--results", type=Path, default=None, help="where the JSON lines are")
    return command


def tasks(options: argparse.Namespace, data: Sequence[str]) -> Iterator[Task]:
    """What to measure, one process each; prepares the encoded data on the way."""
    seeds = _seeds(options)
    epsilons = options.epsilon or (QUICK_EPSILONS if options.quick else EPSILONS)
    relations = tables.RELATIONS if options.relation == "both" else (options.relation,)
    for name in data:
        place = str(encode(name, options.shared, SCRATCH, QUICK_ROWS if options.quick else None))
        for method in options.method:
            slow = SLOW.get(name, {}) if method in (methods.SAMPLED, methods.TUNED) else {}
            for relation in relations[:1] if method == methods.PLAIN else relations:
                if relation in slow.get("relations", relations):
                    yield Task(
                        encoded=place,
                        optima=str(SCRATCH),
                        method=method,
                        relation=relation,
                        epsilons=tuple(epsilons),
                        seeds=min(seeds, slow.get("seeds", seeds)),
                        quick=options.quick,
                    )


def measure_accuracy(options: argparse.Namespace, data: Sequence[str], folder: Path) -> None:
    """Fit everything, a process at a time."""
    for task in tasks(options, data):
        for record in lines_of(["-m", "benchmarks.cells", json.dumps(asdict(task))]):
            append(record, folder)
            _say(record)


def _say(record: Record) -> None:
    setting = f" {record['relation']} epsilon {record['epsilon']:g}" if "epsilon" in record else ""
    if "refused" in record:
        print(f"{record['data']:9} {record['method']}{setting}: refused, {record['refused']}", flush=True)
        return
    ratio = record.get("predicted_over_measured")
    print(
        f"{record['data']:9} {record['method']}{setting}: accuracy {record['accuracy']:.4f}, "
        + (f"excess {record['excess']:.4f}, " if "excess" in record else "")
        + f"fit {record['fit_s']:.2f} s, {record['memory_mb']:.0f} MB"
        + ("" if ratio is None else f", predicted / measured {ratio:.2g}"),
        flush=True,
    )


def _seeds(options: argparse.Namespace) -> int:
    return options.seeds or (2 if options.quick else 5)


def measure_kl(options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    """The comparison under the KL condition, in the cells that are asked for."""
    known = read(folder) if options.resume else []
    asked = tuple(method for method in options.method if method in kl_methods.METHODS)
    return kl.measure(
        options.shared,
        seeds=options.seeds,
        quick=options.quick,
        data=tuple(name for name in options.data or () if name in kl_data.DATA) or kl_data.DATA,
        epsilons=options.epsilon,
        methods=asked or kl_methods.METHODS,
        done={(one["data"], one["method"], one["epsilon"]) for one in select(known, benchmark="kl")},
    )


def measure_own_losses(options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    """Losses of a user's own, in the cells that are asked for."""
    known = select(read(folder), benchmark="own-losses") if options.resume else []
    asked = tuple(method for method in options.method if method in own_losses.METHODS)
    return own_losses.measure(
        options.shared,
        seeds=options.seeds,
        quick=options.quick,
        data=tuple(name for name in options.data or () if name in own_losses_data.DATA)
        or own_losses_data.DATA,
        epsilons=options.epsilon,
        methods=asked or own_losses.METHODS,
        done={(one["data"], one["method"], one["epsilon"]) for one in known},
    )


def measure_users(options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    """The tables on whole people that are asked for."""
    known = select(read(folder), benchmark="users") if options.resume else []
    asked = () if options.method == USUAL_METHODS else options.method
    named = tuple(method for method in asked if method in users.METHODS)
    return users.measure(
        options.shared,
        tables=tuple(name for name in options.table or () if name in users.TABLES) or users.TABLES,
        data=options.data,
        epsilons=options.epsilon,
        methods=named or None,
        seeds=options.seeds,
        quick=options.quick,
        done={(one["what"], one["data"], one["method"], one["epsilon"]) for one in known},
    )


def measure_panel(options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    """The rules that are asked for, on one half of the panel."""
    return panel.measure(
        half=options.half,
        rules=[*VARIANTS] if options.variants else options.rule,
        kinds=options.kind,
        losses=options.loss,
        oracles=options.oracles,
        quick=options.quick,
        known=read(folder),
    )


MEASURED: dict[str, Callable[[argparse.Namespace, Path], Iterator[Record]]] = {
    "steps": lambda options, _: steps.measure(options.shared, seeds=options.seeds or 2, quick=options.quick),
    "paper": lambda options, _: paper.measure(
        options.shared, SCRATCH, seeds=_seeds(options), quick=options.quick
    ),
    "groups": lambda options, _: groups.measure(options.shared, seeds=_seeds(options), quick=options.quick),
    "robust": lambda options, _: robust.measure(options.shared, seeds=_seeds(options), quick=options.quick),
    "lasso": lambda options, _: lasso.measure(options.shared, seeds=_seeds(options), quick=options.quick),
    "games": lambda options, _: games.measure(seeds=_seeds(options), quick=options.quick),
    "vertices": lambda options, _: vertices.measure(seeds=_seeds(options), quick=options.quick),
    "sparse": lambda options, _: sparse.measure(
        seeds=_seeds(options),
        quick=options.quick,
        data=[name for name in options.data or () if name in sparse.DATA],
    ),
    "correlated": lambda options, _: correlated.measure(
        options.shared, seeds=_seeds(options), quick=options.quick
    ),
    "kl": measure_kl,
    "nonsmooth": lambda options, _: nonsmooth.measure(
        options.shared, seeds=options.seeds or (1 if options.quick else 3), quick=options.quick
    ),
    "own_losses": measure_own_losses,
    "panel": measure_panel,
    "test_loss": lambda options, _: test_loss.measure(
        half=options.half,
        models=options.loss,
        epsilons=options.epsilon,
        seeds=options.seeds,
        quick=options.quick,
    ),
    "auto": lambda options, _: auto.measure(seeds=options.seeds, quick=options.quick),
    "users": measure_users,
    "synthetic": lambda options, _: synthetic.measure(
        [name for name in options.table or () if name in synthetic.TABLES],
        options.epsilon,
        options.seeds,
        options.quick,
    ),
    "speed": lambda options, _: speed.measure(options.shared, SCRATCH, quick=options.quick),
    "eager": lambda options, _: eager.measure(repeats=options.seeds or 5, quick=options.quick),
    "planned": lambda options, _: planned.measure(repeats=options.seeds or 5, quick=options.quick),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and render."""
    options = parser().parse_args(arguments)
    folder = options.results or (SCRATCH / "quick" if options.quick else RESULTS)
    if options.what in ("all", "accuracy"):
        measure_accuracy(options, options.data or DATA, folder)
    if options.what == "prediction" or (options.what == "all" and options.data is None):
        options.method, options.relation = (methods.DEFAULT,), tables.RELATIONS[0]
        rest = tables.HELD_OUT if options.what == "all" else (*DATA, *tables.HELD_OUT)
        measure_accuracy(options, options.data or rest, folder)
    for what, measured in MEASURED.items():
        if options.what in ("all", what):
            for record in measured(options, folder):
                append(record, folder)
                print(json.dumps(record), flush=True)
    records = read(folder)
    if options.what == "prediction":
        print(tables.prediction(records))
    if options.what == "panel":
        print(panel.report(records, options.half, options.rule))
    if options.what in ("all", "paper", "table") and not options.quick:
        paper.draw(records)
    if options.what in ("all", "table") and not options.quick:
        for page in (
            tables.PAGE,
            correlated.PAGE,
            games.PAGE,
            kl.PAGE,
            nonsmooth.PAGE,
            own_losses.PAGE,
            panel_tables.PAGE,
            auto.PAGE,
            users.PAGE,
            groups.PAGE,
            robust.PAGE,
            synthetic.PAGE,
        ):
            page.write_text(tables.render(records, page.read_text(encoding="utf-8")), encoding="utf-8")
    if not options.quick:  # the bars are for all training rows
        for made in (
            verdicts,
            correlated.verdicts,
            games.verdicts,
            kl.verdicts,
            nonsmooth.verdicts,
            own_losses.verdicts,
            panel_tables.verdicts,
            auto.verdicts,
            users.verdicts,
            groups.verdicts,
            robust.verdicts,
            synthetic_tables.verdicts,
        ):
            for verdict in made(records):
                print(verdict)
    return 0


if __name__ == "__main__":
    sys.exit(main())
