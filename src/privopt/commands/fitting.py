"""`privopt fit`: the plan first, then the data, then the model and its report in a directory."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from privopt.commands import outputs, planning, screen
from privopt.commands.options import FitOptions
from privopt.commands.paying import Paying, account_for, resumable_in
from privopt.commands.planning import settled_for
from privopt.commands.screen import GIVE_TABLE, require_given
from privopt.commands.task import Estimator, Task, needed_options, opened, units_of
from privopt.estimators import saving
from privopt.planning.plan import Plan, own_lines, warnings_in
from privopt.report import stored
from privopt.report.kept import RELEASES_FILE
from privopt.report.report import PrivacyReport
from privopt.tables.table import Table
from privopt.verification.signatures import check_key


def run(
    files: Sequence[str],
    options: FitOptions,
    *,
    output: Path | None,
    overwrite: bool,
    sign_key: Path | None = None,
) -> None:
    """Fit a model and write its directory.

    Raises:
        Mistake, TableError, KeyProblem: something that was typed cannot be used; no record has been read.
    """
    require_given(
        {
            "TABLE": (list(files), GIVE_TABLE),
            "--output": (output, "the directory to write the model and its report to"),
            **needed_options(options),
        }
    )
    assert output is not None
    directory = saving.free_folder(output, overwrite=overwrite, name="--output", way="--overwrite")
    if sign_key is not None:
        check_key(sign_key)
    task = Task.of(options)
    paying = Paying(account_for(options.account, options.data_set))
    resumed = resumable_in(options.resume, options.random_state, output=directory)
    with outputs.reserved(directory), resumed:
        table, terminal = opened(files, task), screen.console()
        n, how_n = units_of(table, files, options.n, task.groups, terminal)
        table.placement = settled_for(task, n, table.placement)
        estimator = task.estimator(n).set_params(account=paying.account)
        plan = planning.announce(
            terminal,
            task,
            estimator,
            n,
            how_n,
            title="Plan, made before any record is read",
            on_account=paying.announce,
            placement=table.placement,
        )
        with paying.telling(terminal, plan):
            _fit(terminal, table, task, estimator, plan, paying)
            paying.fitted = True
            directory = outputs.written(
                terminal, "model", directory, lambda place: saving.write(estimator, place)
            )
            stored.write(saving.report_of(estimator), directory)
            if sign_key is not None:
                stored.sign_folder(directory, sign_key)
            _summarise(terminal, estimator.privacy_, directory, paying)


def _fit(
    terminal: Console, table: Table, task: Task, estimator: Estimator, plan: Plan, paying: Paying
) -> None:
    """Read the table and fit the model, its report in the words of the table."""
    with screen.release_bar(terminal, f"Fitting {task.model.title}", plan.releases) as advance:
        advance("table", 0)
        estimator.fit(table, groups=task.groups or None, observer=paying.observing(advance))
    by_n = task.options.delta == "auto"
    declared = (
        *estimator.privacy_.declared,
        "Ranges and levels of the columns, as given by the schema; cells outside were moved to the nearer end, "
        "unknown levels left out.",
        *(("The number of units n, by the choice of delta = 1 / n^2.",) if by_n else ()),
    )
    title = f"{task.model.title[:1].upper()}{task.model.title[1:]} of {task.target.column}"
    estimator.privacy_ = replace(estimator.privacy_, title=title, declared=declared)


def _summarise(terminal: Console, report: PrivacyReport, directory: Path, paying: Paying) -> None:
    """A few lines after the fit."""
    kept = directory / RELEASES_FILE
    terminal.print()
    screen.show_rows(
        terminal,
        "Done",
        [
            *screen.guarantee_rows(report),
            *own_lines(report.findings),
            *(("notice", sentence) for sentence in warnings_in(report.findings)),
            *paying.summary(),
            ("model", f"{directory / 'model.json'}, model.safetensors"),
            ("report", f"{directory / stored.REPORT_PAGE}, {stored.REPORT_DATA}"),
            *([("releases", f"{kept}, for privopt verify")] if kept.exists() else []),
            ("next", f"privopt predict {directory} TABLE --output predictions.parquet"),
        ],
    )
