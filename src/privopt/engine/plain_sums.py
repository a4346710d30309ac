"""Sums of gradients of generalised-linear losses in NumPy: for so few records that a compiler takes longer to load.

A run says by public sizes whether it is in NumPy, see `precision`; then an engine sums so, wherever the records are.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.rows import block_length, take_rows
from privopt.data.units import Units
from privopt.engine.rounding import BLOCK_ROWS, BlockedSum
from privopt.problems.losses import GLMLoss
from privopt.queries.base import MeanQuery, RowForm, clip_rows_to_ball, shrunk_radius
from privopt.queries.safeguards import known
from privopt.queries.slopes import ClippedGradient


def supports(units: Units, query: MeanQuery) -> bool:
    """Whether `plain_sum` computes a query: a gradient of one of the library's losses, where a unit is a record.

    Privacy:
        By exact type: a formula of somebody else's, which may depend on more than one record, sees no block of records.
    """
    if type(query) is not ClippedGradient or units.public.unit == "user":
        return False
    return isinstance(query.loss, GLMLoss) and query.loss.kernel_code is not None and known(query.loss)


def plain_sum(
    units: Units,
    form: RowForm,
    private_norms: NDArray[np.float64],
    private_inverses: NDArray[np.float64],
    private_draw: NDArray[np.int64] | None,
) -> NDArray[np.float64]:
    """The sum of the clipped contributions of records, by the formulas that JAX compiles elsewhere.

    Args:
        units: the data.
        form: of a query that `supports` accepts.
        private_norms: of the stored rows, rounded up.
        private_inverses: 1 / norm, rounded down; any positive number for zero rows.
        private_draw: which records take part; None for all.
    Privacy:
        A record's prediction follows from its row alone: `np.einsum` goes from row to row, each by the same operations,
        and BLAS is not asked (see `data.rows.dense_product`), nor are threads. A single coefficient is at most the
        radius, moved inwards, times the inverse norm, as in `kernels.sum_records`, and several are clipped by
        `clip_rows_to_ball`; those of a row that is zero add zero. Rounding: a block's sum passes at most `BLOCK_ROWS`
        additions, as `rounding_bound` supposes.
    """
    points = np.ascontiguousarray(np.asarray(form.points, np.float64).T)
    aim = float(shrunk_radius(float(form.radius)))
    count = units.private_count if private_draw is None else len(private_draw)
    step = min(block_length(units.public.d), BLOCK_ROWS)
    total = BlockedSum((form.outputs, units.public.d))
    for start in range(0, count, step):
        stop = min(start + step, count)
        where = slice(start, stop) if private_draw is None else private_draw[start:stop]
        if isinstance(units.private_features, sparse.csr_array):
            private_rows = units.private_features[where].astype(np.float64)
            private_predictions: Any = private_rows @ points.T
        else:
            private_rows = np.ascontiguousarray(take_rows(units.private_features, where), np.float64)
            # A column a point, each in one piece: sums over a record's few outputs then go over many records at once.
            private_predictions = np.array([np.einsum("ij,j->i", private_rows, point) for point in points]).T
        private_there: Any = private_norms[where]
        private_targets: Any = units.private_targets[where]
        private_raw: Any = form.coefficients(private_predictions, private_targets, private_there)
        if form.outputs == 1:
            private_kept = _clipped(private_raw[:, 0], aim * private_inverses[where])[None]
        else:
            private_kept = clip_rows_to_ball(private_raw, private_there, form.radius).T
        if isinstance(private_rows, np.ndarray):
            private_share = np.array([np.einsum("i,ij->j", each, private_rows) for each in private_kept])
        else:
            private_share = private_kept @ private_rows
        total.add(private_share, stop - start)
    return total.total().T.reshape(form.shape)


def _clipped(
    private_coefficients: NDArray[np.float64], private_caps: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The coefficients within their caps; one that is not finite becomes 0."""
    private_kept = np.minimum(np.maximum(private_coefficients, -private_caps), private_caps)
    private_kept[~np.isfinite(private_coefficients)] = 0.0
    return private_kept
