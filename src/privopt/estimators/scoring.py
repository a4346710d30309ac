"""Quality on records that somebody holds, measured by scikit-learn: exact, so as private as those records are."""

import math
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privopt.data import cells
from privopt.data.containers import check_column
from privopt.errors import ArgumentError

Measure = Literal["accuracy_score", "d2_pinball_score", "d2_tweedie_score", "r2_score"]


def measured(
    measure: Measure, y: Any, predicted: NDArray[Any], *, sample_weight: Any = None, **more: Any
) -> float:
    """`measure(y, predicted, **more)`, one of scikit-learn's, over the rows that have a target.

    Args:
        measure: its name in `sklearn.metrics`.
        y: what was to be predicted, private; a row whose target is missing (None, NaN, or no finite number) is left
            out, as it counts as nothing in a fit.
        predicted: one for each row.
        sample_weight: of the rows.
        more: the measure's own arguments.
    Privacy:
        What scikit-learn says of a `y` that it cannot compare quotes labels, and would end in logs: neither the error
        nor its context carries that.
    Returns:
        The measure; NaN where no row has a target.
    Raises:
        ArgumentError: y cannot be compared with predictions.
    """
    import sklearn.metrics  # late: much, and nothing of it is needed to fit

    check_column(y, "y", "one target")
    try:
        private_targets, present = _with_targets(y, labels=measure == "accuracy_score")
        if len(present) == len(predicted) and not present.all():
            if not present.any():
                return math.nan
            predicted = predicted[present]
            sample_weight = None if sample_weight is None else np.asarray(sample_weight)[present]
            private_targets = private_targets[present]
            y = np.asarray(private_targets.tolist())
        return float(getattr(sklearn.metrics, measure)(y, predicted, sample_weight=sample_weight, **more))
    except (ValueError, TypeError):
        pass  # raised outside, since an exception remembers the one that it replaces
    raise ArgumentError(
        "y must hold one target for each row, of the same kind as the predictions: give targets as they were fitted."
    )


def _with_targets(y: Any, *, labels: bool) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Targets as they are read in a fit, and which rows have one."""
    private_targets = cells.targets(y, labels=labels)
    if private_targets.ndim != 1:
        return private_targets, np.ones(0, np.bool_)  # scikit-learn judges other shapes
    if labels:
        return private_targets, ~np.asarray(pd.isna(private_targets), np.bool_)
    return private_targets, np.isfinite(private_targets.astype(np.float64))
