"""A small model's directory as `privopt fit` writes one, without the command line."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd

from privopt import LogisticRegression
from privopt.commands import model_directory
from privopt.report.kept import RELEASES_FILE
from privopt.tables import TabularEncoder


def save_small_model(folder: Path) -> Path:
    """Fit a model of two columns and 300 records, and write its directory."""
    rows = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    column = {"kind": "num", "low": -1, "high": 1}
    encoder = TabularEncoder({"columns": {"a": column, "b": column, "y": {"kind": "flag"}}, "target": "y"})
    table = pd.DataFrame(rows, columns=["a", "b"])
    features = pd.DataFrame(encoder.fit(table).transform(table), columns=["a", "b"])
    model = LogisticRegression(epsilon=1, delta=1e-6, bounds=(-1, 1), classes=[0, 1])
    model.fit(features, rows[:, 0] > 0)
    report = dataclasses.replace(model.privacy_, model=model_directory._summary(model, encoder))
    saved = model_directory.SavedModel(
        encoder=encoder, estimator=model, target="y", report=report, sparse=False
    )
    saved.write(folder)
    report.save(folder / model_directory.REPORT_DATA)
    report.save_releases(folder / RELEASES_FILE)
    return folder
