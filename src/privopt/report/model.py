"""The released quantities of a fitted model, as a report shows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.json_values import json_value
from privopt.later import jax
from privopt.planning.plan import Picture, line

if TYPE_CHECKING:
    from privopt.ledger.default_account import Statement

MOST_ROWS = 40
BARE = "They are the parameters as the loss takes them, for rows and targets as they were given."


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """What was fitted. Every number here was released, or computed from released numbers and public ones.

    Attributes:
        name: such as "LogisticRegression".
        features: names of the columns, one for each coefficient of an output.
        coefficients: one row for each output.
        intercepts: one for each output; empty if the model has none.
        outputs: names of the outputs, such as the classes; empty for a single output.
        meaning: what the numbers are and in which units, in sentences.
        details: other released or public facts, in words.
    """

    name: str
    features: tuple[str, ...]
    coefficients: tuple[tuple[float, ...], ...]
    intercepts: tuple[float, ...] = ()
    outputs: tuple[str, ...] = ()
    meaning: str = ""
    details: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        coefficients: ArrayLike,
        *,
        features: Sequence[str] | None = None,
        intercept: ArrayLike | None = None,
        classes: Sequence[Any] | None = None,
        meaning: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> "ModelSummary":
        """Describe a linear model in scikit-learn's shapes.

        Args:
            name: what the model is called.
            coefficients: (d,) or (outputs, d).
            features: d names; default x0, x1, ...
            intercept: a number or (outputs,).
            classes: the classes in the order of the rows; two classes share one row.
            meaning: what the numbers are and in which units.
            details: other facts to print.
        Raises:
            ValueError: the numbers of features, classes or intercepts do not fit the coefficients.
        """
        matrix: NDArray[np.float64] = np.atleast_2d(np.asarray(coefficients, np.float64))
        if matrix.ndim != 2:
            raise ValueError(f"coefficients must have one or two dimensions, got {matrix.ndim}.")
        rows, width = matrix.shape
        names = (
            tuple(f"x{column}" for column in range(width)) if features is None else tuple(map(str, features))
        )
        if len(names) != width:
            raise ValueError(f"features must be {width} names, one for each coefficient, got {len(names)}.")
        intercepts = () if intercept is None else tuple(float(b) for b in np.ravel(np.asarray(intercept)))
        if len(intercepts) not in (0, rows):
            raise ValueError(f"intercept must be {rows} numbers, one for each output, got {len(intercepts)}.")
        outputs = () if classes is None else tuple(map(str, classes))
        if rows == 1 and len(outputs) == 2:
            outputs = (f"{outputs[1]} against {outputs[0]}",)
        if outputs and len(outputs) != rows:
            raise ValueError(f"classes must be {rows} names, one for each row, got {len(outputs)}.")
        return cls(
            name=name,
            features=names,
            coefficients=tuple(tuple(float(value) for value in row) for row in matrix),
            intercepts=intercepts,
            outputs=outputs,
            meaning=meaning,
            details=details,
        )

    @classmethod
    def of_params(cls, params: Any) -> "ModelSummary":
        """Describe bare parameters: an array or a pytree of arrays, as one list of numbers."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(params)
        names: list[str] = []
        values: list[float] = []
        for path, leaf in leaves:
            array = np.asarray(leaf, np.float64)
            key = jax.tree_util.keystr(path).lstrip(".") or "params"
            names += [f"{key}[{', '.join(map(str, at))}]" if at else key for at in np.ndindex(array.shape)]
            values += [float(value) for value in array.ravel()]
        return cls(name="parameters", features=tuple(names), coefficients=(tuple(values),), meaning=BARE)

    @property
    def size(self) -> int:
        """The number of released coefficients and intercepts."""
        return sum(len(row) for row in self.coefficients) + len(self.intercepts)

    def largest(self, most: int = MOST_ROWS) -> list[tuple[str, tuple[float, ...]]]:
        """Features with their coefficients, the intercept first, then by falling largest absolute value."""
        matrix = np.asarray(self.coefficients, np.float64).reshape(len(self.coefficients), len(self.features))
        finite = np.where(np.isfinite(matrix), np.abs(matrix), np.inf)
        order = np.argsort(-finite.max(axis=0, initial=0.0), kind="stable")[:most]
        rows = [(self.features[column], tuple(float(v) for v in matrix[:, column])) for column in order]
        return [("(intercept)", self.intercepts), *rows] if self.intercepts else rows

    def facts(self) -> dict[str, Any]:
        """What a table of the largest numbers needs; its headings are empty where the outputs have no names."""
        return {
            "name": self.name,
            "size": self.size,
            "features": len(self.features),
            "most": MOST_ROWS,
            "headings": self.outputs,
            "outputs": len(self.coefficients),
            "rows": self.largest(),
        }

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return json_value({**vars(self), "details": self.details or {}})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelSummary":
        """Rebuild a summary from what `to_dict` gave."""
        return cls(
            name=values["name"],
            features=tuple(values["features"]),
            coefficients=tuple(tuple(float(value) for value in row) for row in values["coefficients"]),
            intercepts=tuple(float(value) for value in values["intercepts"]),
            outputs=tuple(values["outputs"]),
            meaning=values["meaning"],
            details=values["details"],
        )


# ------------------------------------------------------------------------------------------------------------
# What a report says of the account that paid for its run: public numbers, none of which comes from data.


@dataclass(frozen=True, kw_only=True)
class AccountUse:
    """A run's payment, as it stood when it was made; what was paid later is not in it.

    Attributes:
        data_set: the owner's name of the data.
        payment: its number in the account.
        epsilon: of the account, for all fits together.
        delta: likewise.
        used: the share of the account's budget that this run used.
        remaining: the share that it left.
        left: the largest epsilon of one more fit that this pays for, see `largest_payable`.
    """

    data_set: str
    payment: int
    epsilon: float
    delta: float
    used: float
    remaining: float
    left: float

    @classmethod
    def of(cls, statement: "Statement") -> "AccountUse":
        """The last payment of a statement."""
        last, before = statement.lines[-1], statement.lines[:-1]
        used = before[-1].used if before else 0.0
        return cls(
            data_set=statement.terms.data_set,
            payment=last.payment.number,
            epsilon=statement.terms.budget.epsilon,
            delta=statement.terms.budget.delta,
            used=last.used - used,
            remaining=max(0.0, 1 - last.used),
            left=last.left,
        )


_TITLE = "What is left in the account"
_X, _Y = "payments", "share of the budget"


def _caption(data_set: str) -> str:
    return (
        f"The share of the budget of {data_set!r} that each payment left; the last one is this run's. Nothing here was "
        "computed from the data."
    )


def is_burn_down(picture: Any, account: Mapping[str, Any]) -> bool:
    """Whether JSON values are such a picture as `burn_down` draws, and end at what the account had left.

    Args:
        picture: the values.
        account: those of an `AccountUse`.
    """
    try:
        found = Picture.from_dict(picture)
        (series,) = found.series
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return False
    words = {"title": _TITLE, "caption": _caption(str(account["data_set"])), "x": _X, "y": _Y}
    if any(getattr(found, name) != text for name, text in words.items()) or found.categories:
        return False
    falls = all(1 >= a >= b >= 0 for a, b in pairwise(series.ys))
    ends = (series.ys[-1], series.xs[-1]) == (account["remaining"], account["payment"])
    return series.name == "left" and not series.errors and falls and ends


def burn_down(statement: "Statement") -> Picture:
    """What every payment left of an account's budget."""
    return Picture(
        title=_TITLE,
        caption=_caption(statement.terms.data_set),
        x=_X,
        y=_Y,
        series=(
            line(
                "left",
                [1.0, *(max(0.0, 1 - one.used) for one in statement.lines)],
                [0, *(one.payment.number for one in statement.lines)],
            ),
        ),
    )
