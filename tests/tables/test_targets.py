"""Targets and users, read off a table in the schema's terms."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from privopt.tables import Schema, TableError, group_codes, read_target

SCHEMA = Schema.from_json(
    {
        "target": "y",
        "columns": {
            "y": {"kind": "flag"},
            "digit": {"kind": "cat", "levels": ["0", "1", "10"]},
            "cost": {"kind": "num", "low": 0, "high": 10, "log1p": True},
            "person": {"kind": "id"},
        },
    }
)


def test_flags_levels_and_numbers() -> None:
    table = pd.DataFrame({"y": [1, 0, None], "digit": [10, 0, 5], "cost": [3.5, 99, math.inf]})
    assert np.array_equal(read_target(table, SCHEMA), [1.0, 0.0, math.nan], equal_nan=True)
    assert read_target(table, SCHEMA, "digit").tolist() == ["10", "0", ""]
    assert np.array_equal(read_target(table, SCHEMA, "cost"), [3.5, 99.0, math.nan], equal_nan=True)
    assert np.array_equal(table["cost"], [3.5, 99, math.inf])
    with pytest.raises(TableError, match="has no column 'y'"):
        read_target(table.drop(columns="y"), SCHEMA)


@pytest.mark.parametrize("people", [[7, 3, 7, None, None], ["x", "y", "x", None, None]])
def test_every_user_is_one_code_and_all_unknown_ones_are_one_user(people: list[object]) -> None:
    for table in (pd.DataFrame({"person": people}), pa.table({"person": people})):
        assert group_codes(table, "person").tolist() == [0, 1, 0, 2, 2]
    mixed = pd.DataFrame({"person": pd.Series([7, "x", "7", None, math.nan], dtype=object)})
    assert group_codes(mixed, "person").tolist() == [0, 1, 0, 2, 2]
    with pytest.raises(TableError, match="cannot tell users apart"):
        group_codes(pa.table({"person": [[1]]}), "person")
