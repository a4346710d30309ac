"""`privopt fit`: the plan first, then the data, then the model and its report in a directory."""

from pathlib import Path

import numpy as np
from rich.console import Console
from scipy.sparse import issparse

from privopt.commands import model_directory, planning, screen
from privopt.commands.mistakes import Mistake
from privopt.commands.task import Options, Task
from privopt.report.report import PrivacyReport
from privopt.report.words import number
from privopt.tables import read_table, read_target, row_count, table_columns, user_keys


def run(table: Path, options: Options, *, output: Path | None, overwrite: bool) -> None:
    """Fit a model and write its directory.

    Raises:
        Mistake, TableError: something that was typed cannot be used; no record has been read.
    """
    directory = _free(output, overwrite=overwrite)
    task = Task.of(options)
    _check_header(table, task)
    n, how_n = _units(table, task)
    estimator = task.estimator(n)
    terminal = screen.console()
    plan = planning.announce(
        terminal, task, estimator, n, how_n, title="Plan, made before any record is read"
    )
    private_table = read_table(table, task.schema, columns=task.columns)
    private_features = task.encoder.fit(private_table).transform(private_table)
    private_target = read_target(private_table, task.schema, task.target.column)
    groups = None if options.group is None else user_keys(private_table, options.group)
    with screen.release_bar(terminal, f"Fitting {task.model.title}", plan.releases) as observer:
        estimator.fit(private_features, private_target, groups=groups, observer=observer)
    saved = model_directory.SavedModel.of(task, estimator, sparse=issparse(private_features))
    saved.write(directory)
    saved.write_report(directory)
    _summarise(terminal, saved.report, directory)


def _free(output: Path | None, *, overwrite: bool) -> Path:
    """The output directory, not in use yet.

    Raises:
        Mistake: it is missing, a file, or holds something.
    """
    if output is None:
        raise Mistake("give --output: the directory to write the model and its report to.")
    if output.exists() and not output.is_dir():
        raise Mistake(f"--output {str(output)!r} is a file: give a directory.")
    if not overwrite and output.is_dir() and any(output.iterdir()):
        raise Mistake(
            f"--output {str(output)!r} is not empty: give another directory, or --overwrite to replace its model."
        )
    return output


def _check_header(table: Path, task: Task) -> None:
    """Refuse a table that lacks a column, by its header alone."""
    present = table_columns(table)
    missing = [name for name in task.columns if name not in present]
    if missing:
        raise Mistake(f"the table {str(table)!r} has no column {missing[0]!r}, which the schema describes.")


def _units(table: Path, task: Task) -> tuple[int, str]:
    """The public number of units, and where it comes from.

    Privacy:
        Counted only under replace-one, where the number of records (or users) is public by definition.
    """
    group, n = task.options.group, task.options.n
    if n is not None:
        return n, "given by --n"
    if group is None:
        n, how = row_count(table), "the table's rows"
    else:
        public_keys = user_keys(read_table(table, task.schema, columns=[group]), group)
        n, how = len(np.unique(public_keys[~np.isnan(public_keys)])), f"counted in {group!r}"
    if n < 2:
        raise Mistake(
            f"the table {str(table)!r} has {n} {task.unit}s: a private mean needs at least 2, and useful ones many."
        )
    return n, how


def _summarise(terminal: Console, report: PrivacyReport, directory: Path) -> None:
    """A few lines after the fit."""
    guarantee = f"epsilon {number(report.epsilon)} at delta {number(report.delta, 3)}"
    terminal.print()
    screen.show_rows(
        terminal,
        "Done",
        [
            ("guarantee", guarantee if report.is_private else "none: NOT PRIVATE"),
            ("status", report.status),
            ("model", f"{directory / 'model.json'}, model.safetensors"),
            ("report", f"{directory / model_directory.REPORT_PAGE}, {model_directory.REPORT_DATA}"),
            ("next", f"privopt predict {directory} TABLE --output predictions.parquet"),
        ],
    )
