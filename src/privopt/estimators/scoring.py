"""Quality on records that somebody holds, measured by scikit-learn: exact, so as private as those records are."""

from collections.abc import Callable
from typing import Any

from privopt.errors import ArgumentError


def measured(measure: Callable[..., Any], y: Any, predicted: Any, **more: Any) -> float:
    """`measure(y, predicted, **more)`.

    Args:
        measure: of `sklearn.metrics`.
        y: what was to be predicted, private.
        predicted: one for each row.
        more: the measure's own arguments.
    Privacy:
        What scikit-learn says of a `y` that it cannot compare quotes labels, and would end in logs: neither the error
        nor its context carries that.
    Raises:
        ArgumentError: y cannot be compared with predictions.
    """
    try:
        return float(measure(y, predicted, **more))
    except (ValueError, TypeError):
        pass  # raised outside, since an exception remembers the one that it replaces
    raise ArgumentError(
        "y must hold one target for each row, of the same kind as the predictions: give targets as they were fitted."
    )
