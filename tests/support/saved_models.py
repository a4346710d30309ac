"""A small model's folder as `save` writes one."""

from pathlib import Path

import numpy as np
import pandas as pd

from privopt import LogisticRegression, Table

_COLUMN = {"kind": "num", "low": -1, "high": 1}
SCHEMA = {"columns": {"a": _COLUMN, "b": _COLUMN, "y": {"kind": "flag"}}, "target": "y"}


def save_small_model(folder: Path, *, of_table: bool = False) -> Path:
    """Fit a model of two columns and 300 records, features or a table in a file beside the folder, and write it."""
    rows = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    features, target = pd.DataFrame(rows, columns=["a", "b"]), rows[:, 0] > 0
    model = LogisticRegression(epsilon=1, delta=1e-6, bounds=(-1, 1), classes=[0, 1])
    if not of_table:
        return model.fit(features, target).save(folder)
    features.assign(y=target).to_parquet(folder.with_suffix(".parquet"))
    return model.fit(Table.open(folder.with_suffix(".parquet"), SCHEMA)).save(folder)
