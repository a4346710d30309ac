"""The benchmarks' loader: the documented sizes, the same cut for the same seed, users on one side."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.datasets import RECIPES, load
from scipy import sparse


@pytest.mark.parametrize(
    ("name", "sizes", "features", "classes"),
    [
        ("adult", (32_561, 16_281), 108, 2),
        ("german", (800, 200), 61, 2),
        ("compas", (5_771, 1_443), 16, 2),
        ("w8a", (39_799, 9_950), 300, 2),
        ("california", (16_512, 4_128), 13, 0),
    ],
)
def test_sizes_and_bounds(
    shared_data: Path, name: str, sizes: tuple[int, int], features: int, classes: int
) -> None:
    X_train, y_train, X_test, y_test, info = load(name, shared_data)
    assert (X_train.shape, X_test.shape) == ((sizes[0], features), (sizes[1], features))
    assert (len(y_train), len(y_test)) == sizes
    assert len(info.feature_names) == features
    assert len(info.classes or ()) == classes
    assert sparse.issparse(X_train) == (name == "w8a")
    assert set(np.unique(y_train)) == {0, 1} if classes else y_train.min() >= info.bounds[0]
    assert float(np.sqrt((X_test**2).sum(axis=1)).max()) <= info.row_norm_bound
    assert info.groups_train is None


def test_the_seed_fixes_the_cut(shared_data: Path) -> None:
    first, again, other = (load("german", shared_data, seed=seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert load("german", shared_data, train=50, test=20)[0].shape == (50, 61)


@pytest.mark.parametrize(("target", "rows"), [(None, 15_737), ("binexp", 20_190), ("mdvis", 20_190)])
def test_users_stay_on_one_side(shared_data: Path, target: str | None, rows: int) -> None:
    X_train, y_train, _, y_test, info = load("randhie", shared_data, target=target)
    assert len(y_train) + len(y_test) == rows
    assert len(info.groups_train) == len(y_train)
    assert not set(info.groups_train) & set(info.groups_test)
    assert not {"meddol", "mdvis", "binexp", "lnmeddol", "user"} & set(info.feature_names)
    assert (info.bounds is None) == (target == "binexp")
    assert np.isfinite(X_train).all()


def test_an_unknown_set_is_named(shared_data: Path) -> None:
    with pytest.raises(ValueError, match="no data set 'iris': use one of adult, covertype"):
        load("iris", shared_data)
    assert {"mnist", "kdd99", "fars"} <= RECIPES.keys()
