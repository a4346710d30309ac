"""What a user must say in public before a private fit, and the sentences that ask for it.

Everything is checked from the arguments and the shapes alone; no feature and no target is looked at.
"""

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, validate_data

from privopt.data import cells
from privopt.data.containers import check_column, check_features
from privopt.errors import ArgumentError
from privopt.estimators.scaling import FeatureScaling, with_indicators
from privopt.estimators.table_arguments import column_names
from privopt.ledger.amounts import Budget
from privopt.public import Relation, real
from privopt.tables.values import check_missing as check_missing_rule

FROM_Y = "from_y"


def checked_budget(epsilon: Any, delta: Any, n: int | None) -> Budget:
    """The (epsilon, delta) of a fit.

    Args:
        epsilon: what the user gave.
        delta: what the user gave; not needed with an infinite epsilon.
        n: the public number of units for the advice, None if not known yet.
    Raises:
        ValueError, TypeError: one of them is missing or out of its range.
    """
    if epsilon is None:
        raise ValueError(
            "epsilon is missing: give the privacy budget of this fit, a bound on how much the model may reveal about "
            "one unit. 1 is a common choice, smaller is more private, math.inf fits without any privacy."
        )
    epsilon = real("epsilon", epsilon)
    if delta is None:
        if epsilon == math.inf:
            return Budget(epsilon, 0.0)
        hint = "1 / n**2" if n is None else f"1 / n**2 = {1 / n**2:.1e} for n = {n}"
        limit = "1 / n" if n is None else f"1 / n = {1 / n:.1e}"
        raise ValueError(
            f"delta is missing: give the probability with which the epsilon bound may fail. A good choice is {hint}; "
            f"it should be well below {limit}, because a probability of 1 / n may publish one unit whole."
        )
    delta = real("delta", delta)
    if math.isfinite(epsilon) and delta == 0:
        raise ValueError(
            "delta must be above 0, got 0: the noise is Gaussian, which no epsilon covers alone. Give a number well "
            "below 1 / n, such as 1 / n**2."
        )
    return Budget(epsilon, delta)


def missing_bounds(name: str) -> ValueError:
    """The error for features without bounds."""
    return ValueError(
        f"bounds is missing: {name} needs bounds=(low, high), the range of the features as two numbers or two arrays "
        "with one entry a feature. It must be public, known without looking at these data; values outside are moved "
        "to the nearer end. TabularEncoder's features have (-1, 1). If only a loose range is known, give it as "
        "loose_bounds=(low, high): bounds within it are then estimated privately, for a share of the budget "
        "(scale_share, 5 %). Reading them off the data is not private."
    )


def missing_target_bounds(name: str) -> ValueError:
    """The error for a regression without target bounds."""
    return ValueError(
        f"target_bounds is missing: {name} needs target_bounds=(low, high), the range of the target. It must be "
        "public, known without looking at these data; targets outside are moved to the nearer end. loose_bounds "
        "estimates the range of features only: give a range that the target's meaning allows."
    )


def missing_classes(name: str) -> ValueError:
    """The error for a classification without labels."""
    return ValueError(
        f"classes is missing: {name} needs the list of labels, such as classes=[0, 1]. Which labels occur is a fact "
        "about the data. Say classes='from_y' to declare that it is public; the report will print that."
    )


def positive(name: str, value: Any, meaning: str, *, zero: bool = False) -> float:
    """A positive finite number (or 0 where `zero`).

    Raises:
        TypeError, ValueError: it is something else.
    """
    amount = real(name, value)
    if not (math.isfinite(amount) and (amount > 0 or (zero and amount == 0))):
        least = "at least 0" if zero else "positive"
        raise ValueError(f"{name} must be {least} and finite, got {value!r}: it is {meaning}.")
    return amount


def labels_of(classes: Any) -> NDArray[Any]:
    """The declared labels, sorted where they can be, as scikit-learn's tools expect.

    Raises:
        TypeError, ValueError: they are no list of at least two different labels.
    """
    if isinstance(classes, str) or np.ndim(classes) != 1:
        raise TypeError(f"classes must be a list of labels or 'from_y', got {classes!r}.")
    array = np.asarray(classes)
    if array.dtype.kind in "US" and not all(isinstance(label, str | bytes) for label in classes):
        plain = [label.item() if isinstance(label, np.generic) else label for label in classes]
        array = np.asarray(plain, dtype=object)  # NumPy would turn numbers beside text into text
    try:
        labels = np.unique(array)
    except TypeError:  # labels of several types have no order
        labels = array
    if len(array) < 2 or len(labels) != len(array):
        raise ValueError(
            f"classes must be at least two different labels, got {array.tolist()!r}: a model of one class is constant."
        )
    return labels


def labels_from(public_targets: NDArray[Any]) -> NDArray[Any]:
    """The labels that occur, read off the targets because the user declared them public; missing ones left out.

    Raises:
        ValueError: there are fewer than two, or they are measurements rather than labels.
    """
    present = public_targets[~np.asarray(pd.isna(public_targets))]
    try:
        labels = np.unique(present)
    except Exception:  # whatever labels that cannot be compared raise
        raise ValueError(
            "Unknown label type: the labels in y have several types; give classes=[...] instead of 'from_y'."
        ) from None
    labels = np.asarray(labels.tolist())
    if labels.dtype.kind == "f" and np.any(labels != np.floor(labels)):
        raise ValueError(
            "Unknown label type: classes='from_y' was given a continuous target. Use a regressor, or give the labels "
            "as classes=[...]."
        )
    if len(labels) < 2:
        raise ValueError(
            f"classes='from_y' found {len(labels)} class in y (n_samples = {len(public_targets)}), and a classifier "
            "needs two: give all labels that may occur as classes=[...]."
        )
    return labels


def check_switch(name: str, value: Any) -> None:
    """Refuse what is neither True nor False.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}.")


def check_missing(missing: Any, indicator: Any) -> None:
    """Refuse a rule for missing features that does not exist, or columns without the rule that uses them.

    Raises:
        TypeError, ValueError: it is one.
    """
    check_missing_rule(missing)
    if indicator is None:
        return
    if isinstance(indicator, str) or not isinstance(indicator, list | tuple | np.ndarray):
        raise TypeError(f"indicator must be a list of columns, their numbers or names, got {indicator!r}.")
    if missing != "indicator":
        raise ValueError(
            f"indicator={list(indicator)!r} names columns that get a feature of 0 and 1, which missing={missing!r} "
            "does not add: give missing='indicator'."
        )


def read_labels(y: Any, classes: NDArray[Any]) -> Any:
    """Labels to compare with predictions, as the classes that they write; as they are where one of them writes none."""
    check_column(y, "y", "one target")
    try:
        private_labels = cells.targets(y, labels=True)
        if private_labels.dtype.kind == classes.dtype.kind:
            return y
        private_codes = cells.label_codes(private_labels, classes.tolist())
    except (TypeError, ValueError):  # they are no labels, which is said where they are compared
        return y
    return classes[private_codes] if private_codes.min(initial=0) >= 0 else y


def indicator_columns(estimator: Any) -> list[int]:
    """The positions of the columns of plain features that get a feature of 0 and 1.

    Raises:
        ValueError: they are not named, not there, or named twice.
    """
    if estimator.missing != "indicator" or estimator.encoder_ is not None:
        return []
    if estimator.indicator is None:
        raise ArgumentError(
            "missing='indicator' needs indicator=[...] for plain features: the columns that may be missing, by number, "
            "or by name with a data frame. Which they are must be public, so it is not read off the data."
        )
    names: list[Any] = list(getattr(estimator, "feature_names_in_", ()))
    places: list[int] = []
    for one in estimator.indicator:
        if isinstance(one, str) and one in names:
            places.append(names.index(one))
        elif (
            isinstance(one, int | np.integer)
            and not isinstance(one, bool)
            and 0 <= one < estimator.n_features_in_
        ):
            places.append(int(one))
        else:
            raise ArgumentError(
                f"indicator names the column {one!r}, which is not there: give numbers from 0 to "
                f"{estimator.n_features_in_ - 1}{', or names of columns' if names else ''}."
            )
    if len(set(places)) < len(places):
        raise ArgumentError(f"indicator names a column twice: {list(estimator.indicator)!r}.")
    return places


def names_with_indicators(estimator: Any) -> Any:
    """The names of plain features and of the columns of 0 and 1 behind them; None where no names are known."""
    names: Any = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return None
    places = indicator_columns(estimator)
    return [*names, *(f"{names[place]} missing" for place in places)] if places else names


def with_named_indicators(estimator: Any, private_features: Any) -> Any:
    """Features with the columns of 0 and 1 that the estimator was asked for."""
    return with_indicators(private_features, indicator_columns(estimator))


def features_to_predict(estimator: Any, X: Any) -> Any:
    """Features checked against those of the fit, with the middle of its bounds in the place of each that is missing."""
    features = with_named_indicators(estimator, checked_features(estimator, X, least=0, reset=False))
    return FeatureScaling(*estimator.bounds_, centered=False).without_missing(features)


def fraction(name: str, value: Any, meaning: str) -> float:
    """A number strictly between 0 and 1.

    Raises:
        TypeError, ValueError: it is something else.
    """
    share = real(name, value)
    if not 0 < share < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value!r}: it is {meaning}.")
    return share


def as_range(name: str, bounds: Any) -> tuple[float, float]:
    """A pair of finite numbers low < high.

    Raises:
        TypeError, ValueError: it is something else.
    """
    try:
        low, high = bounds
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a pair (low, high), got {bounds!r}.") from None
    low, high = real(f"{name}[0]", low), real(f"{name}[1]", high)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{name} must be two finite numbers (low, high) with low < high, got {bounds!r}.")
    return low, high


def planned_units(n: int | None) -> int:
    """The number of units of a plan.

    Raises:
        ValueError: neither the plan nor the estimator was given one.
    """
    if n is None:
        raise ValueError("n is missing: give the public number of units, of users if by_user=True.")
    return n


def check_count(n: int | None, relation: Relation) -> None:
    """Refuse a missing number of units where it is private.

    Raises:
        ValueError: n is missing under add-or-remove-one.
    """
    if n is None and relation is Relation.ADD_OR_REMOVE_ONE:
        raise ValueError(
            "n is missing: under add-or-remove-one the number of units is private. Give a public nominal number "
            "that no data set exceeds, or use relation='replace-one', which takes the number as public."
        )


def checked_features(estimator: BaseEstimator, X: Any, *, least: int, reset: bool) -> Any:
    """Features as numbers, their names and number noted (`reset`) or compared with those of the fit.

    Raises:
        ValueError, TypeError: a shape or a type is wrong, or there are fewer than `least` rows.
    """
    check_features(X, "X")
    names = column_names(X)
    private_features = cells.matrix(X)
    if private_features.ndim != 2:  # scikit-learn's sentence would print the cells
        raise ArgumentError(
            f"Expected 2D array, got {private_features.ndim}D array instead. "
            "Reshape your data to (rows, features): X[:, None] for a single feature, X[None, :] for a single row."
        )
    options: dict[str, Any] = {"accept_sparse": "csr", "ensure_all_finite": False, "dtype": None}
    private_features = check_array(
        private_features, **options, ensure_min_samples=least, estimator=estimator, input_name="X"
    )
    private_named: Any = private_features if names is None else pd.DataFrame(columns=names)
    validate_data(estimator, private_named, reset=reset, skip_check_array=True)
    return private_features
