"""`privopt check`: how well a schema fits a table, counted exactly, for the holder of the data."""

import json
from collections.abc import Sequence

import typer

from privopt.commands.options import CheckOptions
from privopt.commands.screen import GIVE_TABLE, require_given
from privopt.printable import printable
from privopt.tables.diagnosis import diagnose
from privopt.tables.places import located
from privopt.tables.row_blocks import RowBlocks, checked_headers
from privopt.tables.schema import Schema

ROWS_AT_ONCE = 2**14


def run(files: Sequence[str], options: CheckOptions, *, as_json: bool) -> None:
    """Print the diagnosis of a table.

    Raises:
        Mistake, TableError: something that was typed cannot be used, or the table lacks a column.
        DataUnavailable: a file has changed meanwhile.
    """
    meaning = "a JSON file with the public range or levels of every column to be looked at"
    require_given({"TABLE": (files, GIVE_TABLE), "--schema": (options.schema, meaning)})
    assert options.schema is not None
    schema, place = Schema.from_json(options.schema, options.schema_name), located(files)
    checked_headers(place, schema, schema.names)
    blocks = RowBlocks(place, schema, schema.names, most=ROWS_AT_ONCE, counted={}, as_texts=True)
    tables = [blocks.empty()] if not blocks.rows else blocks.read(0, blocks.rows)
    found = diagnose(tables, schema.columns)
    if as_json:
        typer.echo(json.dumps(found.to_dict(show_values=options.show_values), indent=2))
        return
    for line in found.text(show_values=options.show_values).splitlines():
        typer.echo(printable(line))
