"""Tables in, features out, models to files: everything around a private model that handles raw columns.

A name is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privopt.tables.encoder import Block, TabularEncoder
    from privopt.tables.errors import TableError
    from privopt.tables.io import read_table, row_count, table_columns
    from privopt.tables.keys import user_keys
    from privopt.tables.model_files import load_model, save_model
    from privopt.tables.schema import ColumnSpec, Schema, TargetEncoding
    from privopt.tables.values import read_target

__all__ = [
    "Block",
    "ColumnSpec",
    "Schema",
    "TableError",
    "TabularEncoder",
    "TargetEncoding",
    "load_model",
    "read_table",
    "read_target",
    "row_count",
    "save_model",
    "table_columns",
    "user_keys",
]
_HOME = {
    "encoder": ("Block", "TabularEncoder"),
    "errors": ("TableError",),
    "io": ("read_table", "row_count", "table_columns"),
    "keys": ("user_keys",),
    "model_files": ("load_model", "save_model"),
    "schema": ("ColumnSpec", "Schema", "TargetEncoding"),
    "values": ("read_target",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
