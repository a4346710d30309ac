"""Tables in, features out, models to files: everything around a private model that handles raw columns."""

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
