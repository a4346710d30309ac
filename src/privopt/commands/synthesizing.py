"""`privopt synthesize`: the plan first, then the data, then synthetic rows and the report beside them."""

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from privopt.atomic_files import replace_file
from privopt.commands import screen
from privopt.commands.options import MAX_RECORDS, SynthesisOptions
from privopt.commands.paying import Paying, account_for, resumable_in
from privopt.commands.screen import (
    GIVE_TABLE,
    Mistake,
    check_delta,
    check_epsilon,
    public_arguments,
    require_given,
)
from privopt.commands.task import named, needed_options
from privopt.data.user_keys import user_count
from privopt.engine.placement import Placement
from privopt.estimators import table_source
from privopt.estimators.synthetic_data import SyntheticData, SyntheticError
from privopt.planning.plan import Plan
from privopt.report import forms
from privopt.report.words import number, several
from privopt.tables.io import PARQUET
from privopt.tables.places import located, shown_name
from privopt.tables.schema import Schema
from privopt.tables.table import Table
from privopt.verification.signatures import check_key, sign, signature_beside


def run(
    files: Sequence[str],
    options: SynthesisOptions,
    *,
    output: Path | None,
    overwrite: bool,
    sign_key: Path | None = None,
) -> None:
    """Model a table and write rows of the model.

    Raises:
        Mistake, TableError, KeyProblem: something that was typed cannot be used; no record has been read.
    """
    require_given(
        {
            "TABLE": (list(files), GIVE_TABLE),
            "--output": (output, "the Parquet file to write the synthetic rows to"),
            **needed_options(options),
        }
    )
    assert options.schema is not None
    file = _free(output, overwrite=overwrite)
    if sign_key is not None:
        check_key(sign_key)
    check_epsilon(options.epsilon)
    check_delta(options.delta, 2)
    schema = Schema.from_json(options.schema, options.schema_name)
    paying = Paying(account_for(options.account, options.data_set))
    with resumable_in(options.resume, options.random_state, output=file):
        _synthesise(files, schema, options, paying, file, sign_key)


def _synthesise(
    files: Sequence[str],
    schema: Schema,
    options: SynthesisOptions,
    paying: Paying,
    file: Path,
    sign_key: Path | None,
) -> None:
    """Model the table and write the rows."""
    table = Table(located(files), schema, target=None, placement=Placement())
    n, how_n = _units(table, files, schema, options)
    data = _estimator(schema, options, n).set_params(account=paying.account)
    terminal = screen.console()
    plan = _announce(terminal, data, options, n, how_n, paying)
    with paying.telling(terminal, plan):
        with screen.release_bar(terminal, "Modelling the table", plan.releases) as advance:
            groups = tuple(options.group) if options.group else None
            data.fit(table, groups=groups, observer=paying.observing(advance))
        paying.fitted = True
        rows = data.sample(options.rows, random_state=options.random_state)
        file, reports = _write(terminal, file, rows, data)
        signature_beside(reports[1]).unlink(missing_ok=True)  # of rows that stood here before
        if sign_key is not None:
            sign(signature_beside(reports[1]), {"report": reports[1].read_bytes()}, sign_key)
        _summarise(terminal, data, len(rows), file, reports, paying)


def _estimator(schema: Schema, options: SynthesisOptions, n: int) -> SyntheticData:
    """What was asked for, unfitted."""
    if options.max_records is not None and not options.group:
        raise Mistake("--max-records is about the records of a user: name the users' column with --group.")
    with public_arguments():
        return SyntheticData(
            schema,
            options.workload,
            epsilon=options.epsilon,
            delta=check_delta(options.delta, n)[0],
            relation=str(options.relation),
            n=options.n,
            method=options.method,
            engine=options.engine,  # pyright: ignore[reportArgumentType]  # refused where it is another word
            columns=options.column,
            bins=options.bins,
            random_state=options.random_state,
            max_records_per_user=MAX_RECORDS if options.max_records is None else options.max_records,
        )


def _units(table: Table, files: Sequence[str], schema: Schema, options: SynthesisOptions) -> tuple[int, str]:
    """The public number of units, and where it comes from.

    Privacy:
        Counted only under replace-one, where the number of records (or users) is public by definition.
    """
    if options.n is not None:
        if options.n < 2:
            raise Mistake(f"--n must be at least 2, got {options.n}: fewer hide nobody.")
        return options.n, "given by --n"
    if not options.group:
        n, how = table_source.rows_of(table), "the table's rows"
    else:
        for group in options.group:
            schema.column(group)
        n, how = user_count(table.user_count(options.group)), f"counted in {named(options.group)}"
    if n < 2:
        raise Mistake(
            f"the table {' '.join(map(shown_name, files))!r} has {n} units: at least 2 are needed, and "
            "many to be useful."
        )
    return n, how


def _announce(
    terminal: Console, data: SyntheticData, options: SynthesisOptions, n: int, how_n: str, paying: Paying
) -> Plan:
    """Print the plan and return it."""
    with public_arguments():
        plan = data.plan(n=n, by_user=bool(options.group))
    facts = screen.plan_facts(plan, n, how_n, check_delta(options.delta, n)[1]) | {
        "unit": "user" if options.group else "record",
        "columns": len(plan.public.levels),
        "cells": sum(plan.public.levels),
        "workload": options.workload,
    }
    rows = [*forms.rows("plan.j2", "synthesis", facts), *paying.announce(plan)]
    screen.show_rows(terminal, "Plan, made before any record is read", rows)
    for warning in screen.warnings(plan, options.random_state):
        screen.warn(terminal, warning)
    return plan


def _write(
    terminal: Console, file: Path, rows: pd.DataFrame, data: SyntheticData
) -> tuple[Path, tuple[Path, Path]]:
    """Write rows and reports; they are paid for, so that another place is better than none."""
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), buffer, compression="zstd")
    try:
        replace_file(file, buffer.getvalue())
    except OSError as error:
        file = Path(tempfile.mkdtemp(prefix="privopt-rows-")) / file.name
        reason = (error.strerror or "the system refused").lower()
        screen.warn(
            terminal,
            f"The file cannot be written: {reason}. The rows are paid for, and are in {file} instead.",
        )
        replace_file(file, buffer.getvalue())
    page, facts = file.with_suffix(".report.html"), file.with_suffix(".report.json")
    return file, (data.privacy_.save(page), data.privacy_.save(facts))


def _free(output: Path | None, *, overwrite: bool) -> Path:
    """The file to write, not there yet, in a folder that can be written to."""
    assert output is not None
    if output.suffix.lower() not in PARQUET:
        raise Mistake(f"--output {str(output)!r} must end in .parquet: rows are written as Parquet.")
    if output.exists() and not (overwrite and output.is_file()):
        raise Mistake(f"--output {str(output)!r} is there already: give another name, or --overwrite.")
    try:
        with tempfile.NamedTemporaryFile(dir=output.parent, prefix=".privopt-"):
            pass
    except OSError as error:
        reason = (error.strerror or "the system refused").lower()
        raise Mistake(f"--output {str(output)!r} cannot be written to: {reason}.") from None
    return output


def _about(error: SyntheticError) -> str:
    """The error in words: where it is below its noise, no more than a bound is known."""
    if not error.released:
        return number(error.value, 3)
    noise = number(error.stddev, 2)
    if error.value < error.stddev:
        return f"below {number(2.0 * error.stddev, 2)} (noise {noise})"
    return f"{number(error.value, 3)} +- {noise}"


def _summarise(
    terminal: Console, data: SyntheticData, count: int, file: Path, reports: tuple[Path, Path], paying: Paying
) -> None:
    """A few lines after the fit."""
    report, error = data.privacy_, data.error_
    guarantee = f"epsilon {number(report.epsilon)} at delta {number(report.delta, 3)}"
    lines = [
        ("guarantee", guarantee if report.is_private else "none: NOT PRIVATE"),
        ("status", report.status),
    ]
    if np.isfinite(error.value):
        lines.append(("error", f"{_about(error)}: {error.meaning}"))
    lines += [
        *paying.summary(),
        ("rows", f"{several(count, 'row')} in {file}"),
        ("report", f"{reports[0]}, {reports[1].name}"),
    ]
    terminal.print()
    screen.show_rows(terminal, "Done", lines)
