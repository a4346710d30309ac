"""Models whose rows are kept as integers: near those of floats, replayed, and told of."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from privopt import LinearRegression, LogisticRegression, Units, losses, plan
from privopt.estimators.setup import Setup
from privopt.replays.check import replayed
from privopt.verification.files import verify
from privopt.verification.verdict import Finding

RNG = np.random.default_rng(0)
ROWS = RNG.uniform(-1, 1, (1500, 3))
LABELS = ROWS @ [1.0, -1.0, 0.5] > 0
TWO: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "bounds": (-1, 1), "classes": [0, 1]}


def test_a_model_of_eight_bits_is_near_that_of_floats_and_says_so() -> None:
    model = LogisticRegression(**TWO, random_state=1, storage="int8").fit(ROWS, LABELS)
    floats = LogisticRegression(**TWO, random_state=1).fit(ROWS, LABELS)
    assert np.linalg.norm(model.coef_ - floats.coef_) < 0.02 * np.linalg.norm(floats.coef_)
    assert not np.array_equal(model.coef_, floats.coef_)
    sentence = "Storage, chosen by the user: rows of 8-bit integers on a public grid, rounded so that none gets longer."
    assert sentence in model.privacy_.declared
    assert not any("Storage" in said for said in floats.privacy_.declared)
    assert model.plan_.public.storage == "int8"
    assert "rows of 8-bit integers" in model.privacy_.to_html()


def test_a_model_of_eight_bits_is_replayed(tmp_path: Path) -> None:
    secret = LogisticRegression(**TWO, storage="int8").fit(ROWS, LABELS)
    path = secret.privacy_.save(tmp_path / "report.json", keep_releases=True)
    (verdict,) = verify(path, replayed)
    assert verdict.finding is Finding.VERIFIED, verdict.checks


def test_a_plan_knows_how_much_memory_rows_take() -> None:
    common: dict[str, Any] = {"n": 1_000_000, "d": 50, "epsilon": 1.0, "delta": 1e-12}
    common["solver"] = "gradient-descent"
    by_storage = {
        storage: plan(losses.logistic, **common, storage=storage).default for storage in ("float32", "int8")
    }
    assert by_storage["float32"].memory_bytes - by_storage["int8"].memory_bytes >= 150_000_000
    assert by_storage["int8"].to_dict()["public"]["storage"] == "int8"
    assert by_storage["float32"].event == by_storage["int8"].event


def test_the_grid_of_a_model_spans_its_entries() -> None:
    model = LinearRegression(
        epsilon=1.0, delta=1e-6, bounds=(-1, 1), target_bounds=(0, 1), row_bound=40.0, storage="int8"
    )
    given = model._specification()
    setup = Setup.of(given, model._target(None), _records(model).shape(given.n, None))
    assert setup.public.entry_bound == 1.0
    stored = setup.units(_records(model))
    assert stored.public == setup.public
    assert np.max(np.abs(stored.private_features.take(slice(None))[:, :3] - ROWS)) < 1 / 127


def _records(model: Any) -> Any:
    return model._specification().records(model, ROWS, LABELS.astype(float), None, noise=None)


def test_a_format_that_cannot_be_is_refused_before_anything_is_charged() -> None:
    with pytest.raises(
        ValueError, match="storage must be 'float32', 'float64', 'int16' or 'int8', got 'int4'"
    ):
        LogisticRegression(**TWO, storage="int4").fit(ROWS, LABELS)
    with pytest.raises(ValueError, match="storage='int8' is for dense rows"):
        LogisticRegression(**TWO, storage="int8").fit(sparse.csr_array(ROWS), LABELS)
    with pytest.raises(ValueError, match="storage must be one of float32, float64, int16, int8, got 'text'"):
        plan(losses.logistic, n=100, d=3, epsilon=1.0, delta=1e-6, storage="text")


def test_units_of_every_storage_hold_the_same_constant() -> None:
    for storage in ("float32", "float64", "int16", "int8"):
        units = Units.from_arrays(ROWS, row_bound=2.0, intercept=-0.3, storage=storage)
        assert units.public.storage == storage
        assert units.public.row_bound == pytest.approx(np.hypot(2.0, 0.3), rel=1e-7)
