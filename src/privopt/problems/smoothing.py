"""`losses.smoothed`: a loss with kinks as a smooth one, for any solver."""

from typing import Literal, get_args

from privopt.problems.ball_average import Smoothed
from privopt.problems.envelopes import Envelope
from privopt.problems.glm import GLMLoss

Kind = Literal["ridge", "exact", "lasry-lions"]


def smoothed(
    loss: GLMLoss,
    *,
    radius: float,
    kind: Kind = "ridge",
    dimension: int | None = None,
    row_norm: float = 1.0,
) -> GLMLoss:
    """A generalised-linear loss made smooth by what it is within `radius` of the parameters.

    It is a loss like any other: it takes no randomness, and how it was made does not touch the guarantee. Rows count
    as `row_norm` long, so a shorter one is smoothed over a larger radius.

    Args:
        loss: of one output.
        radius: r, in units of the parameters.
        kind: "ridge", the average along each record's own row, of curvature L / r; "exact", the average over a ball, of
            curvature kappa_d L / r; "lasry-lions", the envelope of losses with kinks, of curvature 3 L / r.
        dimension: d of the ball, for "exact".
        row_norm: the length that every row counts as.
    Raises:
        ValueError: an argument is missing or out of its range, or the loss has no such smoothing.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be one of {list(get_args(Kind))}, got {kind!r}.")
    if (dimension is not None) is not (kind == "exact"):
        raise ValueError(
            f"dimension must be given for kind='exact', and for that alone; got {dimension!r} and {kind!r}."
        )
    if kind == "lasry-lions":
        return Envelope(loss, radius * row_norm / (3.0 * loss.lipschitz))
    return Smoothed(loss, radius, 1 if dimension is None else dimension, row_norm)
