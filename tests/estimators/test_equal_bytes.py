"""Every estimator has one transcript and one model, to the byte, wherever its units lie and in any order."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support.configured_estimators import EVERY_ESTIMATOR, ROWS, configured, toy_data
from tests.support.spooled import spooled

import privopt
from privopt import (
    FairClassifier,
    LogisticRegression,
    PrivateSearchCV,
    Ridge,
    SyntheticData,
    Units,
    losses,
    minimax,
    minimize,
    user_mean,
)
from privopt.curator.local import LocalCurator
from privopt.engine.in_process import InProcessEngine
from privopt.engine.protocol import Engine
from privopt.ledger.amounts import Budget
from privopt.problems.saddle import BilinearGame
from privopt.solvers.worst_group_descent import WorstGroupDescent

pytest.importorskip("ray")

from tests.support.sharded import sharded

SMALL = 32  # units of a part: 8 parts of records, 3 of users
USERS = np.arange(ROWS) % (ROWS // 3)
GROUPS = np.random.default_rng(2).choice(["a", "b"], ROWS)
BUDGET = Budget(1.0, 1e-6)
SCHEMA = {
    "columns": {
        "age": {"kind": "num", "low": 0, "high": 99},
        "sex": {"kind": "cat", "levels": ["f", "m"]},
        "ill": {"kind": "flag"},
    }
}
PLACES: dict[str, Callable[[Units, Path], Engine]] = {
    "streamed": spooled,
    **{
        f"{workers} workers": lambda units, _, workers=workers: sharded(
            units, workers=workers, backwards=workers == 3
        )
        for workers in (1, 2, 3, 8)
    },
}


def model(kind: Any, groups: Any = None, **changes: Any) -> bytes:
    """What an estimator has learnt."""
    found = configured(kind, random_state=3, **changes).fit(*toy_data(kind), groups=groups)
    return found.coef_.tobytes() + np.asarray(found.intercept_).tobytes()


def fair(**changes: Any) -> bytes:
    features, labels = toy_data()
    given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "bounds": (-1.0, 1.0), "classes": [0, 1]}
    estimator = FairClassifier(
        **given | changes,
        sensitive_values=["a", "b"],
        shares=[0.5, 0.5],
        solver=WorstGroupDescent(steps=4),
        random_state=3,
        report_groups=0.2,
    )
    found = estimator.fit(features, labels, sensitive_features=GROUPS)
    return found.coef_.tobytes() + np.asarray(found.group_losses_).tobytes()


def search(groups: Any = None, **changes: Any) -> bytes:
    inner = configured(LogisticRegression, epsilon=None, delta=None, **changes)
    asked = PrivateSearchCV(inner, {"alpha": [0.01, 1.0]}, epsilon=1.0, delta=1e-6, random_state=3)
    found = asked.fit(*toy_data(), groups=groups)
    return found.best_estimator_.coef_.tobytes() + str(found.best_params_).encode()


def synthetic(groups: Any = None) -> bytes:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.integers(0, 100, ROWS),
            "sex": rng.choice(["f", "m"], ROWS),
            "ill": rng.integers(0, 2, ROWS),
        }
    )
    asked = SyntheticData(SCHEMA, "2-way", epsilon=1.0, delta=1e-6, bins=3, random_state=3)
    return asked.fit(table, groups=groups).sample(50, random_state=0).to_csv().encode()


def minimised(**stored: Any) -> bytes:
    features, labels = toy_data()
    units = Units.from_arrays(features, labels, classes=[0, 1], row_bound=1.0, **stored)
    return np.asarray(minimize(losses.logistic, units, budget=BUDGET, random_state=3).params).tobytes()


def played() -> bytes:
    units = Units.from_arrays(np.random.default_rng(0).choice([-1.0, 1.0, 0.3], (ROWS, 5)), row_bound=4.0)
    found = minimax(BilinearGame(rows=2, columns=3), units, budget=BUDGET, random_state=3)
    return np.concatenate(found.params).tobytes()


def averaged() -> bytes:
    rows = toy_data()[0]
    return np.asarray(
        user_mean(rows, USERS, bound=2.0, epsilon=1.0, delta=1e-6, random_state=3).value
    ).tobytes()


FITS: dict[str, Callable[[], bytes]] = {
    **{kind.__name__: lambda kind=kind: model(kind) for kind in EVERY_ESTIMATOR},
    **{
        f"{kind.__name__}, users": lambda kind=kind: model(kind, USERS, max_records_per_user=2)
        for kind in EVERY_ESTIMATOR
    },
    "LogisticRegression, default solver": lambda: model(LogisticRegression, solver="auto"),
    "LogisticRegression, private strength": lambda: model(LogisticRegression, alpha="private"),
    "LogisticRegression, loose bounds": lambda: model(
        LogisticRegression, bounds=None, loose_bounds=(-50.0, 50.0)
    ),
    "LogisticRegression, users, default solver": lambda: model(LogisticRegression, USERS, solver="auto"),
    **{
        f"{kind.__name__}, {storage}": lambda kind=kind, storage=storage: model(kind, storage=storage)
        for kind in (LogisticRegression, Ridge)
        for storage in ("float64", "int16", "int8")
    },
    "LogisticRegression, int8, default solver": lambda: model(
        LogisticRegression, solver="auto", storage="int8"
    ),
    "FairClassifier": fair,
    "FairClassifier, int8": lambda: fair(storage="int8"),
    "PrivateSearchCV": search,
    "PrivateSearchCV, users, int16": lambda: search(USERS, storage="int16"),
    "SyntheticData": synthetic,
    "SyntheticData, users": lambda: synthetic(USERS),
    "minimize": minimised,
    "minimize, int16": lambda: minimised(storage="int16"),
    "minimax": played,
    "user_mean": averaged,
}
AT_ONCE = ("LogisticRegression", "SyntheticData", "user_mean")
# Functions of a curator that somebody else has opened, and what computes from public numbers alone.
OF_NO_UNITS = {
    "certify",
    "clip_from",
    "double_precision",
    "load",
    "losses",
    "plan",
    "resumable",
    "select_stationary",
}


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", SMALL)
    monkeypatch.setattr("privopt.data.user_parts.MEAN_USERS", SMALL)


def fitted(fit: Callable[[], bytes], make: Callable[[Units], Engine]) -> tuple[bytes, list[str], int]:
    """The model and the transcripts of all curators that engines were made for, of how many parts at most."""
    transcripts: list[Any] = []
    parts = [0]

    def placed(units: Units, name: str) -> Engine:
        assert name == "fast"
        engine = make(units)
        parts.append(len(engine._private_ranges))
        return engine

    opened = LocalCurator.__init__

    def noted(curator: LocalCurator, *arguments: Any, **options: Any) -> None:
        opened(curator, *arguments, **options)
        if not any(curator.transcript is known for known in transcripts):
            transcripts.append(curator.transcript)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privopt.curator.local.engine_on", placed)
        patch.setattr(LocalCurator, "__init__", noted)
        found = fit()
    return found, [transcript.to_json(values=True) for transcript in transcripts], max(parts)


@pytest.mark.at_once("SyntheticData")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in AT_ONCE else (pytest.mark.audit,)) for name in FITS]
)
def test_every_estimator_is_the_same_in_every_place(name: str, tmp_path: Path) -> None:
    expected = fitted(FITS[name], InProcessEngine)
    assert expected[2] > 2
    assert any(expected[1])
    for place, made in PLACES.items():
        assert fitted(FITS[name], lambda units, made=made: made(units, tmp_path)) == expected, place


def test_everything_public_that_looks_at_units_is_tried() -> None:
    """A new estimator, or another function of data, is missed here until it is in `FITS`."""
    public = {name: getattr(privopt, name) for name in privopt.__all__}
    estimators = {name for name, each in public.items() if inspect.isclass(each) and hasattr(each, "fit")}
    functions = {name for name, each in public.items() if inspect.isfunction(each)}
    tried = {name.split(",")[0] for name in FITS}
    assert (estimators | functions) - OF_NO_UNITS - {"TabularEncoder"} == tried
