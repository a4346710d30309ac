"""The shared public data sets as arrays, encoded by their schemas' public bounds: what every benchmark trains on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from privopt.tables import Schema, TabularEncoder, read_table, read_target, user_keys

SHARED_DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a data set is cut into training and test rows, and which of its columns are no features.

    Attributes:
        exclude: columns left out, with the reason beside each recipe.
        train: the number of training rows after a shuffle; None takes `train_share` of the rows.
        test: the number of test rows; None takes the rest.
        train_share: the share of rows (or of users, where rows have users) for training.
    """

    exclude: tuple[str, ...] = ()
    train: int | None = None
    test: int | None = None
    train_share: float = 0.8


RECIPES = {
    "adult": Recipe(),
    "covertype": Recipe(train=200_000, test=50_000),
    "mnist": Recipe(),
    "w8a": Recipe(),
    "kdd99": Recipe(),
    "california": Recipe(),
    "randhie": Recipe(),
    "movietweetings": Recipe(),
    "clickbait": Recipe(),
    "hiva": Recipe(),
    # What happened later, and a score made to predict the target.
    "compas": Recipe(exclude=("is_recid", "decile_score", "score_text")),
    # `sex` repeats what `personal_sex` says.
    "german": Recipe(exclude=("sex",)),
    # Recorded for fatalities only, or after the outcome.
    "fars": Recipe(exclude=("race", "hispanic_origin", "taken_to_hospital")),
}


@dataclass(frozen=True, kw_only=True)
class Info:
    """What is public about a loaded data set, and whose records the rows are.

    Attributes:
        name: the data set's name.
        target: the column predicted.
        classes: the labels, or None for a number.
        bounds: the public range of a number to predict, or None for labels.
        feature_names: names of the encoded features.
        row_norm_bound: the largest l2 norm an encoded row can have.
        groups_train: one integer per training row and user, or None where a record is a unit.
        groups_test: the same for the test rows.
        encoder: the encoder that made the features.
    """

    name: str
    target: str
    classes: tuple[int, ...] | None
    bounds: tuple[float, float] | None
    feature_names: tuple[str, ...]
    row_norm_bound: float
    groups_train: NDArray[np.int64] | None
    groups_test: NDArray[np.int64] | None
    encoder: TabularEncoder


def load(
    name: str,
    shared: str | Path = SHARED_DATA,
    *,
    target: str | None = None,
    seed: int = 0,
    train: int | None = None,
    test: int | None = None,
    sparse_output: bool | str = "auto",
) -> tuple[Any, NDArray[Any], Any, NDArray[Any], Info]:
    """Read one data set, cut it and encode it.

    The cut is the set's own where it has one (adult, mnist), else a shuffle by `seed`; where rows have users, all rows
    of a user fall on one side. Rows whose numeric target is not recorded (randhie's `lnmeddol` at no spending) are
    dropped first: the population is then those with a recorded target.

    Args:
        name: one of `RECIPES`.
        shared: the folder with `schema.json` and the Parquet files.
        target: the column to predict, e.g. "binexp" or "mdvis" of randhie; None takes the schema's.
        seed: of the shuffle; public.
        train: at most this many training rows, instead of the recipe's.
        test: at most this many test rows, instead of the recipe's.
        sparse_output: as in `TabularEncoder`.

    Returns:
        (X_train, y_train, X_test, y_test, info): float32 features (CSR where the rows are sets) and a target that is
        int64 codes of `info.classes`, or float64 clipped to `info.bounds`.

    Raises:
        ValueError: there is no such data set.
    """
    if name not in RECIPES:
        raise ValueError(f"There is no data set {name!r}: use one of {', '.join(RECIPES)}.")
    recipe = RECIPES[name]
    schema = Schema.from_json(Path(shared) / "schema.json", name)
    encoding = schema.target_encoding(target)
    encoder = TabularEncoder(schema, target=target, exclude=recipe.exclude, sparse_output=sparse_output)
    kept = [column.name for column in schema.feature_columns(exclude=recipe.exclude, target=target)]
    kept += [column for column in (encoding.column, schema.user, schema.split) if column is not None]
    table = read_table(Path(shared) / f"{name}.parquet", schema, columns=kept)
    y = read_target(table, schema, target)
    if encoding.bounds is not None:
        recorded = np.isfinite(y)
        table, y = table.filter(pa.array(recorded)), np.clip(y[recorded], *encoding.bounds)
    classes = None
    if encoding.classes is not None:
        classes = tuple(range(len(encoding.classes)))
        y = _codes(y, encoding.classes)
    groups = None if schema.user is None else user_keys(table, schema.user).astype(np.int64)
    train_rows, test_rows = _cut(table, schema, recipe, groups, np.random.default_rng(seed))
    train_rows = train_rows[: recipe.train if train is None else train]
    test_rows = test_rows[: recipe.test if test is None else test]
    encoder.fit(table)
    info = Info(
        name=name,
        target=encoding.column,
        classes=classes,
        bounds=encoding.bounds,
        feature_names=tuple(encoder.get_feature_names_out()),
        row_norm_bound=encoder.row_norm_bound_,
        groups_train=None if groups is None else groups[train_rows],
        groups_test=None if groups is None else groups[test_rows],
        encoder=encoder,
    )
    X_train, X_test = (encoder.transform(table.take(pa.array(rows))) for rows in (train_rows, test_rows))
    return X_train, y[train_rows], X_test, y[test_rows], info


def _codes(labels: NDArray[Any], classes: tuple[Any, ...]) -> NDArray[np.int64]:
    """Each label's place among the classes; the shared sets have no other labels."""
    place = {label: code for code, label in enumerate(classes)}
    return np.asarray([place[label] for label in labels.tolist()], dtype=np.int64)


def _cut(
    table: Any,
    schema: Schema,
    recipe: Recipe,
    groups: NDArray[np.int64] | None,
    generator: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and test rows: the set's own split in its order, else shuffled, users kept whole."""
    if schema.split is not None:
        split = pc.cast(table.column(schema.split), pa.string()).to_numpy(zero_copy_only=False)
        return np.flatnonzero(split == "train"), np.flatnonzero(split == "test")
    order = generator.permutation(table.num_rows)
    if groups is None:
        first = round(recipe.train_share * len(order)) if recipe.train is None else recipe.train
        return order[:first], order[first:]
    users = generator.permutation(groups.max() + 1)
    chosen = np.isin(groups[order], users[: round(recipe.train_share * len(users))])
    return order[chosen], order[~chosen]
