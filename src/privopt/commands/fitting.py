"""`privopt fit`: the plan first, then the data, then the model and its report in a directory."""

import contextlib
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

from rich.console import Console

from privopt.commands import model_directory, planning, screen
from privopt.commands.options import FitOptions
from privopt.commands.paying import Paying, account_for, resumable_in
from privopt.commands.planning import settled_for
from privopt.commands.screen import GIVE_TABLE, Mistake, require_given
from privopt.commands.task import Estimator, Task, needed_options, opened, units_of
from privopt.errors import PrivoptError
from privopt.planning.plan import Plan, own_lines, warnings_in
from privopt.report import stored
from privopt.report.kept import RELEASES_FILE
from privopt.report.report import PrivacyReport
from privopt.report.words import number
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
    directory = _free(output, overwrite=overwrite)
    if sign_key is not None:
        check_key(sign_key)
    task = Task.of(options)
    paying = Paying(account_for(options.account, options.data_set))
    resumed = resumable_in(options.resume, options.random_state, output=directory)
    with _reserved(directory), resumed:
        table, terminal = opened(files, task), screen.console()
        n, how_n = units_of(table, files, task, terminal)
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
            saved = _fitted(terminal, table, task, estimator, plan, paying)
            paying.fitted = True
            try:
                saved.write(directory)
            except PrivoptError as error:  # it is paid for: another place is better than none
                directory = Path(tempfile.mkdtemp(prefix="privopt-model-"))
                screen.warn(
                    terminal, f"{error} The model is paid for, and is written to {directory} instead."
                )
                saved.write(directory)
            stored.write(saved.report, directory)
            if sign_key is not None:
                saved.sign(directory, sign_key)
            _summarise(terminal, saved.report, directory, paying)


def _fitted(
    terminal: Console, table: Table, task: Task, estimator: Estimator, plan: Plan, paying: Paying
) -> model_directory.SavedModel:
    """Read the table and fit the model."""
    with screen.release_bar(terminal, f"Fitting {task.model.title}", plan.releases) as advance:
        advance("table", 0)
        groups = task.groups or None
        estimator.fit(table, groups=groups, observer=paying.observing(advance))
    return model_directory.SavedModel.of(task, estimator, sparse=task.encoder.is_sparse)


@contextlib.contextmanager
def _reserved(directory: Path) -> Generator[None]:
    """Write to the directory before anything is read; on failure nothing new is left."""
    new = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=directory, prefix=".privopt-") as file:
                file.write(b"room for a model")
        except OSError as error:
            reason = (error.strerror or "the system refused").lower()
            raise Mistake(f"--output {str(directory)!r} cannot be written to: {reason}.") from None
        yield
    except BaseException:
        for each in new:
            with contextlib.suppress(OSError):  # not made, or in use by now
                each.rmdir()
        raise


def _free(output: Path | None, *, overwrite: bool) -> Path:
    """The output directory, not in use yet."""
    assert output is not None
    if output.exists() and not output.is_dir():
        raise Mistake(f"--output {str(output)!r} is a file: give a directory.")
    if not overwrite and output.is_dir() and any(output.iterdir()):
        raise Mistake(
            f"--output {str(output)!r} is not empty: give another directory, or --overwrite to replace its model."
        )
    return output


def _summarise(terminal: Console, report: PrivacyReport, directory: Path, paying: Paying) -> None:
    """A few lines after the fit."""
    guarantee = f"epsilon {number(report.epsilon)} at delta {number(report.delta, 3)}"
    terminal.print()
    screen.show_rows(
        terminal,
        "Done",
        [
            ("guarantee", guarantee if report.is_private else "none: NOT PRIVATE"),
            ("status", report.status),
            *own_lines(report.findings),
            *(("notice", sentence) for sentence in warnings_in(report.findings)),
            *paying.summary(),
            ("model", f"{directory / 'model.json'}, model.safetensors"),
            ("report", f"{directory / stored.REPORT_PAGE}, {stored.REPORT_DATA}"),
            *(
                [("releases", f"{directory / RELEASES_FILE}, for privopt verify")]
                if (directory / RELEASES_FILE).exists()
                else []
            ),
            ("next", f"privopt predict {directory} TABLE --output predictions.parquet"),
        ],
    )
