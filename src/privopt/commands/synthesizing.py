"""`privopt synthesize`: the plan first, then the data, then synthetic rows and the report beside them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from rich.console import Console

from privopt.commands import screen
from privopt.commands.options import MAX_RECORDS, SynthesisOptions
from privopt.commands.outputs import table_file, written
from privopt.commands.paying import Paying, account_for, resumable_in
from privopt.commands.screen import (
    GIVE_TABLE,
    Mistake,
    check_delta,
    public_arguments,
    require_given,
)
from privopt.commands.task import checked_budget, needed_options, units_of
from privopt.engine.placement import Placement
from privopt.estimators.synthetic_data import SyntheticData, SyntheticError
from privopt.planning.plan import Plan
from privopt.report import forms
from privopt.report.words import number, several
from privopt.tables.io import new_table
from privopt.tables.places import located
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
            "--output": (output, "the file to write the synthetic rows to"),
            **needed_options(options),
        }
    )
    assert options.schema is not None
    assert output is not None
    file = table_file(output, overwrite=overwrite)
    if sign_key is not None:
        check_key(sign_key)
    checked_budget(options)
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
    for group in options.group or []:
        schema.column(group)
    terminal = screen.console()
    n, how_n = units_of(table, files, options.n, tuple(options.group or ()), terminal)
    data = _estimator(schema, options, n).set_params(account=paying.account)
    plan = _announce(terminal, data, options, n, how_n, paying)
    with paying.telling(terminal, plan):
        with screen.release_bar(terminal, "Modelling the table", plan.releases) as advance:
            groups = tuple(options.group) if options.group else None
            data.fit(table, groups=groups, observer=paying.observing(advance))
        paying.fitted = True
        rows = data.sample(options.rows, random_state=options.random_state)
        file = written(terminal, "table", file, lambda place: _write(rows, data, place))
        _, facts = _reports(file)
        signature_beside(facts).unlink(missing_ok=True)  # of rows that stood here before
        if sign_key is not None:
            sign(signature_beside(facts), {"report": facts.read_bytes()}, sign_key)
        _summarise(terminal, data, len(rows), file, paying)


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
    screen.show_plan(terminal, "Plan, made before any record is read", rows, plan, options.random_state)
    return plan


def _write(rows: pd.DataFrame, data: SyntheticData, file: Path) -> None:
    """Write rows, and the reports beside them."""
    with new_table(file) as write:
        write(pa.Table.from_pandas(rows, preserve_index=False))
    for report in _reports(file):
        data.privacy_.save(report)


def _reports(file: Path) -> tuple[Path, Path]:
    """Where the page and the facts of the report stand."""
    return file.with_suffix(".report.html"), file.with_suffix(".report.json")


def _about(error: SyntheticError) -> str:
    """The error in words: where it is below its noise, no more than a bound is known."""
    if not error.released:
        return number(error.value, 3)
    noise = number(error.stddev, 2)
    if error.value < error.stddev:
        return f"below {number(2.0 * error.stddev, 2)} (noise {noise})"
    return f"{number(error.value, 3)} +- {noise}"


def _summarise(terminal: Console, data: SyntheticData, count: int, file: Path, paying: Paying) -> None:
    """A few lines after the fit."""
    lines, error, (page, facts) = screen.guarantee_rows(data.privacy_), data.error_, _reports(file)
    if np.isfinite(error.value):
        lines.append(("error", f"{_about(error)}: {error.meaning}"))
    lines += [
        *paying.summary(),
        ("rows", f"{several(count, 'row')} in {file}"),
        ("report", f"{page}, {facts.name}"),
    ]
    terminal.print()
    screen.show_rows(terminal, "Done", lines)
