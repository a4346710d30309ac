"""Whatever stands in a cell of a data frame, reading it fails for nobody and changes no other record."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support.odd_inputs.cells import EVERY_ODD, in_silence

from privopt.tables import TabularEncoder

EVERY_KIND: dict[str, tuple[dict[str, Any], Any]] = {
    "number": ({"kind": "num", "low": -1, "high": 1}, 0.5),
    "whole number": ({"kind": "num", "low": 0, "high": 9, "integer": True}, 5),
    "huge number": ({"kind": "num", "low": 2**60, "high": 2**60 + 9, "integer": True}, 2**60 + 5),
    "category": ({"kind": "cat", "levels": ["a", "1"]}, "a"),
    "flag": ({"kind": "flag"}, "yes"),
    "date": ({"kind": "date", "low": "2000-01-01", "high": "2020-01-01"}, "2010-01-01"),
    "pixels": ({"kind": "pixels", "size": 2, "low": 0, "high": 1}, [0, 1]),
    "set": ({"kind": "set", "size": 3}, [1, 2]),
}


@pytest.mark.later(
    "None-pixels",
    "file1-category",
    "file1-date",
    "file1-flag",
    "file1-huge number",
    "file1-number",
    "file1-set",
    "file1-whole number",
)
@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("file", [None, {"missing": ["NA", "-9"]}])
@in_silence()
def test_no_cell_of_a_frame_shows_by_an_exception_or_changes_another(kind: str, file: Any) -> None:
    described, good = EVERY_KIND[kind]
    schema = {"columns": {"v": described}} | ({} if file is None else {"file": file})
    encoder = TabularEncoder(schema, sparse_output=False)
    for name, odd in EVERY_ODD.items():
        private_cells = np.empty(5, dtype=object)
        for place in range(5):
            private_cells[place] = odd if place == 2 else good
        features = np.asarray(encoder.transform(pd.DataFrame({"v": pd.Series(private_cells, dtype=object)})))
        assert features.shape[0] == 5, name
        assert np.all(features[[0, 1, 3]] == features[4]), name
        assert np.all(np.isfinite(features)), name
