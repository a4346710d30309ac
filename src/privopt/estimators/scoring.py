"""Quality on records that somebody holds, measured by scikit-learn: exact, so as private as those records are."""

from typing import Any, Literal

from privopt.errors import ArgumentError

Measure = Literal["accuracy_score", "d2_pinball_score", "d2_tweedie_score", "r2_score"]


def measured(measure: Measure, y: Any, predicted: Any, **more: Any) -> float:
    """`measure(y, predicted, **more)`, one of scikit-learn's.

    Args:
        measure: its name in `sklearn.metrics`.
        y: what was to be predicted, private.
        predicted: one for each row.
        more: the measure's own arguments.
    Privacy:
        What scikit-learn says of a `y` that it cannot compare quotes labels, and would end in logs: neither the error
        nor its context carries that.
    Raises:
        ArgumentError: y cannot be compared with predictions.
    """
    import sklearn.metrics  # late: much, and nothing of it is needed to fit

    try:
        return float(getattr(sklearn.metrics, measure)(y, predicted, **more))
    except (ValueError, TypeError):
        pass  # raised outside, since an exception remembers the one that it replaces
    raise ArgumentError(
        "y must hold one target for each row, of the same kind as the predictions: give targets as they were fitted."
    )
