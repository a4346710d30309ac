"""The declared groups of a classifier, which of them a record is in, and targets that say label and group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import narwhals as nw
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privopt.data import cells
from privopt.data.containers import arrow_columns, as_frame
from privopt.errors import ArgumentError
from privopt.estimators import arguments
from privopt.problems import losses
from privopt.problems.grouped_loss import GroupedLoss, check_shares
from privopt.public import real

Objective = Literal["worst", "cvar"]
PRIVATE = "private"
OBJECTIVES = ("worst", "cvar")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Groups:
    """The declared groups.

    Attributes:
        values: of the sensitive features, one a group; empty where all records are one group.
        shares: each group's share of the records; None where they are to be released.
        floor, cap: see `GroupedLoss`.
        alpha: of CVaR; None for the worst group.
    """

    values: tuple[Any, ...]
    shares: tuple[float, ...] | None
    floor: float
    cap: float
    alpha: float | None

    @classmethod
    def of(cls, values: Any, shares: Any, *, objective: Any, alpha: Any, floor: Any, cap: Any) -> "Groups":
        """The groups that an estimator was given.

        Raises:
            TypeError, ValueError: an argument is missing, of another type or out of its range.
        """
        if objective not in OBJECTIVES:
            raise ValueError(f"objective must be 'worst' or 'cvar', got {objective!r}.")
        if objective == "cvar" and alpha is None:
            raise ValueError(
                "cvar_alpha is missing: objective='cvar' needs the worst share of the records that counts, such as 0.3."
            )
        if alpha is not None and objective == "worst":
            raise ValueError(
                f"cvar_alpha={alpha!r} was given with objective='worst': it is for objective='cvar'."
            )
        if alpha is not None and not 0 < real("cvar_alpha", alpha) <= 1:
            raise ValueError(
                f"cvar_alpha must be in (0, 1], got {alpha!r}: it is the worst share of the records that counts."
            )
        known = _values(values)
        return cls(
            values=known,
            shares=_shares(shares, known),
            floor=arguments.fraction("share_floor", floor, "the smallest share that losses are divided by"),
            cap=arguments.positive(
                "loss_cap", cap, "the largest loss of a record that its group's loss counts"
            ),
            alpha=None if alpha is None else float(alpha),
        )

    @property
    def count(self) -> int:
        """How many groups there are."""
        return max(1, len(self.values))

    def alone(self) -> "Groups":
        """All records as one group, where no sensitive features were given."""
        return Groups(values=(), shares=(1.0,), floor=self.floor, cap=self.cap, alpha=self.alpha)

    @property
    def loss(self) -> GroupedLoss:
        """The logistic loss by group."""
        shares = (1.0,) if self.count == 1 else self.shares
        return GroupedLoss(losses.logistic, self.count, shares, self.floor, self.cap, self.alpha)

    @property
    def names(self) -> tuple[str, ...]:
        """The groups in words."""
        return tuple(
            " / ".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in self.values
        )

    def declared(self) -> str:
        """What was declared of them, in sentences."""
        if not self.values:
            return "Groups: no sensitive features were given, so all records are one group."
        listed = ", ".join(self.names)
        if self.shares is None:
            shares = (
                "Their shares of the records were released by a noisy histogram, which the budget paid for."
            )
        else:
            shares = f"Their shares, given by the user: {', '.join(f'{share:g}' for share in self.shares)}."
        return (
            f"Groups, given by the user: {listed}. A record of no such group counts as nothing. {shares} Which group a "
            "record is in is private: a replaced record may be in another one. Released were noisy sums over all "
            "records, by group, in every step; no group's own loss is reported unless the budget paid for it."
        )


def coded_targets(
    private_labels: NDArray[Any], private_groups: NDArray[np.int64], classes: Sequence[Any]
) -> NDArray[np.float64]:
    """`(g + 1) label` with label -1 or +1; NaN where the label or the group is none of those declared."""
    private_codes = cells.label_codes(private_labels, classes)
    private_known = (private_codes >= 0) & (private_groups >= 0)
    private_targets = (private_groups + 1.0) * (2.0 * private_codes - 1.0)
    return np.where(private_known, private_targets, np.nan)


def sensitive_codes(X: Any, private_features: Any, groups: Groups, rows: int) -> NDArray[np.int64]:
    """The group of each record.

    Args:
        X: the features of the fit, of which columns may be named if it is a data frame.
        private_features: values, or the name of a column of X, or a tuple of names; None for one group. A tuple is
            names, whatever it holds.
        groups: those declared.
        rows: how many records there are.
    Raises:
        TypeError, ValueError: no values were declared, or there is no such column, or a shape is wrong.
    """
    if private_features is None:
        return np.zeros(rows, np.int64)
    if isinstance(private_features, str):
        private_features = _named(X, (private_features,))
    elif isinstance(private_features, tuple):
        private_features = _named(X, private_features)
    if not groups.values:
        raise ValueError(
            "sensitive_values is missing: give the groups that may occur, such as sensitive_values=['Female', 'Male'], "
            "and their shares of the records. Which groups occur is a fact about the data; reading it off them is not "
            "private."
        )
    return group_codes(private_features, groups.values, rows)


def _named(X: Any, names: tuple[Any, ...]) -> Any:
    """Columns of a data frame, by name. None is quoted: a tuple may be of values, by mistake."""
    frame = X if isinstance(X, pd.DataFrame) else as_frame(X, "X")
    if not isinstance(frame, pd.DataFrame | nw.DataFrame):
        raise TypeError(
            "sensitive_features is text or a tuple, that is names of columns, but X is no data frame: give the values "
            "themselves, one for each row, as a list or an array."
        )
    if not names or any(name not in frame.columns for name in names):
        known = ", ".join(map(str, frame.columns[:20]))
        raise ValueError(
            f"sensitive_features names a column that X does not have; it has {known}. Values are given as a list or an "
            "array, not as a tuple."
        )
    return X[list(names)] if frame is X else {name: frame[name].to_list() for name in names}


def _values(values: Any) -> tuple[Any, ...]:
    """The declared values, as a tuple of values or of tuples."""
    if values is None:
        return ()
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise TypeError(f"sensitive_values must be a list of values, got {values!r}.")
    listed = [
        tuple(value) if isinstance(value, list | tuple | np.ndarray) else value
        for value in (values.tolist() if isinstance(values, np.ndarray) else list(values))
    ]
    try:
        different = len(set(listed)) == len(listed)
    except TypeError:
        raise TypeError(f"sensitive_values must be values that can be compared, got {listed!r}.") from None
    if not listed or not different or any(value != value for value in listed):
        raise ValueError(f"sensitive_values must be at least one value, all different, got {listed!r}.")
    if len({len(value) if isinstance(value, tuple) else 1 for value in listed}) != 1:
        raise ValueError(
            f"sensitive_values must all be single values, or tuples of as many values, got {listed!r}."
        )
    return tuple(listed)


def _shares(shares: Any, values: tuple[Any, ...]) -> tuple[float, ...] | None:
    """The shares, None where they are to be released."""
    if not values:
        if shares is not None and not isinstance(shares, str):
            raise ValueError(
                f"shares were given without sensitive_values: say which groups the shares {shares!r} are of."
            )
        return (1.0,)
    if isinstance(shares, str) and shares == PRIVATE:
        return None
    if shares is None:
        if len(values) == 1:
            return (1.0,)
        raise ValueError(
            f"shares is missing: give the share of all records that each of the {len(values)} groups has, known "
            "without looking at these data (such as a census), or shares='private', which spends a part of the budget "
            "on estimating them."
        )
    if isinstance(shares, str) or not hasattr(shares, "__iter__"):
        raise TypeError(f"shares must be a list of numbers or 'private', got {shares!r}.")
    listed = tuple(real("shares", share) for share in shares)
    check_shares(listed, len(values))
    return listed


# ---- Which of the declared groups a record is in: sensitive features as numbers. PRIVATE -------------------
# A record's value is the value of one column, or the tuple of several. Values are read as labels are, see
# `cells.label_codes`: 1, 1.0 and "1" are one, and so are "Female" and " female". What is missing or not declared is no
# group, and nothing raises because of it.
Codes = NDArray[np.int64]


def group_codes(private_features: Any, values: Sequence[Any], rows: int) -> Codes:
    """The place of each record's group among the declared values; -1 for a record that is in none of them.

    Args:
        private_features: (rows,) values, or (rows, k) for values of k columns together: an array, a series, a data
            frame, a list or a dictionary of columns.
        values: the declared groups: values, or tuples of k of them. Public.
        rows: how many records there are.
    Raises:
        ArgumentError: there is not one value for each record, or not as many columns as the declared values have.
    """
    widths = {len(value) if isinstance(value, tuple) else 1 for value in values}
    as_frame(private_features, "sensitive_features")  # which refuses one whose rows are not there yet
    private_columns = _columns(private_features, max(widths))
    if not private_columns or any(len(private_column) != rows for private_column in private_columns):
        raise ArgumentError(
            "sensitive_features must have shape (rows,), one value for each row of features, or (rows, k) for values "
            "of k columns together: give as many values as rows."
        )
    count = len(private_columns)
    if widths != {count}:
        raise ArgumentError(
            f"sensitive_features has {count} columns and sensitive_values says otherwise: with several columns every "
            "value is a tuple of one value a column, such as ('Female', 'Black')."
        )
    keys = [value if isinstance(value, tuple) else (value,) for value in values]
    known = [list(dict.fromkeys(column)) for column in zip(*keys, strict=True)]
    places = {
        tuple(column.index(one) for column, one in zip(known, key, strict=True)): code
        for code, key in enumerate(keys)
    }
    private_codes = [
        cells.label_codes(np.fromiter(private_column, object, rows), column).tolist()
        for private_column, column in zip(private_columns, known, strict=True)
    ]
    return np.fromiter((places.get(key, -1) for key in zip(*private_codes, strict=True)), np.int64, rows)


def _columns(private_features: Any, width: int) -> list[list[Any]]:
    """The columns as lists of Python values; looks at types and shapes only.

    A list is read row by row: as values, or as rows of the `width` that the declared values have. A row of another kind
    is in no group, whichever row it is.
    """
    private_arrow = arrow_columns(private_features)
    if private_arrow is not None:
        return [_cells(private_column) for private_column in private_arrow]
    private_features = cells.unmasked(private_features, labels=True)
    if isinstance(private_features, Mapping):
        return [_cells(private_column) for private_column in private_features.values()]
    if isinstance(private_features, pd.DataFrame):
        return [_cells(private_features.iloc[:, place]) for place in range(private_features.shape[1])]
    if hasattr(private_features, "dtype") or hasattr(private_features, "__array__"):
        dimensions = np.ndim(private_features)
        if dimensions == 1:
            return [_cells(private_features)]
        if dimensions == 2:
            private_array = np.asarray(private_features, dtype=object)
            return [_cells(private_array[:, place]) for place in range(private_array.shape[1])]
        return []
    private_rows = [_row(private_row, width) for private_row in private_features]
    return [[private_row[place] for private_row in private_rows] for place in range(width)]


def _row(private_row: Any, width: int) -> Any:
    """The cells of one row of a list; None for each where it has another number of them."""
    if width == 1:
        return (private_row,)
    try:
        private_cells = list(private_row) if isinstance(private_row, list | tuple) else []
    except Exception:  # it fails when it is looked at
        private_cells = []
    return private_cells if len(private_cells) == width else (None,) * width


def _cells(private_column: Any) -> list[Any]:
    """The cells of a column, each by itself: no cell settles the type of another."""
    private_column = cells.uncategorised(private_column)
    if hasattr(private_column, "dtype") or hasattr(private_column, "__array__"):
        return np.asarray(private_column, dtype=object).tolist()
    return list(private_column)
