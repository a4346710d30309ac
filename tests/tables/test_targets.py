"""Targets and users, read off a table in the schema's terms."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from privopt.tables import Schema, TableError, read_target, user_keys

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
def test_every_user_has_one_key_and_a_record_without_one_belongs_to_nobody(people: list[object]) -> None:
    expected = [0, 1, 0, math.nan, math.nan]
    plain = pa.table({"person": people})
    encoded = pa.table({"person": plain["person"].dictionary_encode()})
    chunked = pa.concat_tables([plain[:2], plain[2:]])
    for table in (pd.DataFrame({"person": people}), plain, encoded, chunked):
        np.testing.assert_array_equal(user_keys(table, "person"), expected)
    mixed = pd.DataFrame({"person": pd.Series([7, "x", "7", None, math.nan], dtype=object)})
    np.testing.assert_array_equal(user_keys(mixed, "person"), expected)
    empty = pa.table({"person": pa.array(["", "x", "", None], pa.large_string())})
    np.testing.assert_array_equal(np.isnan(user_keys(empty, "person")), [True, False, True, True])
    assert np.isnan(user_keys(pa.table({"person": pa.nulls(3)}), "person")).all()
    assert len(user_keys(plain[:0], "person")) == 0
    with pytest.raises(TableError, match="cannot tell users apart"):
        user_keys(pa.table({"person": [[1]]}), "person")
