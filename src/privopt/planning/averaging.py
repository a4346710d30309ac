"""How much each iterate counts in an average: public weights, as the ratios of a running mean."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from privopt.problems.black_box import BlackBox, seconds_per_value
from privopt.public import Public

Average = Literal["last", "tail", "weighted", "settled", "eased", "late"]


def mixing_ratios(
    average: Average, steps: int, precision: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """How far the running average moves to each new iterate: weight over the sum of weights so far.

    "last" keeps the last iterate, "tail" the mean of the last ceil(steps / 2); the others weigh all of them: "weighted"
    with (t + 1)^2, "settled" with min(t + 1, 8)^3 (for well-conditioned problems), "eased" with min(t + 1, k)^3, k an
    eighth of the steps and at least 8, "late" with (t + 1)^5.

    Args:
        average: which weights.
        steps: how many iterates there are.
        precision: one over the noise variance of each step, by which the weights are multiplied; None if all are equal.
    Returns:
        Shape (steps,); 1 where the average starts anew.
    """
    t = np.arange(steps)
    if average == "last":
        return np.ones(steps)
    if average == "tail":
        weights = (t >= steps - math.ceil(steps / 2)).astype(np.float64)
    elif average == "weighted":
        weights = (t + 1.0) ** 2
    elif average == "settled":
        weights = np.minimum(t + 1.0, 8.0) ** 3
    elif average == "eased":
        weights = np.minimum(t + 1.0, max(8.0, steps / 8.0)) ** 3
    elif average == "late":
        weights = (t + 1.0) ** 5
    else:
        raise ValueError(
            f"average must be 'last', 'tail', 'weighted', 'settled', 'eased' or 'late', got {average!r}."
        )
    if precision is not None:
        weights = weights * precision
    sums = np.cumsum(weights)
    return np.where(weights > 0, weights / np.where(sums > 0, sums, 1.0), 1.0)


# ------------------------------------------------------------------------------------------------------------
# Sizes of disjoint batches, by what a unit of each would be charged: the fewer later draws, the fewer
# units.


FEWEST = 2  # units of a batch: a mean over fewer hides nobody


def balanced_sizes(needs: Sequence[float], n: int) -> tuple[int, ...]:
    """B_r = ceil(factor * needs_r) for the largest factor with which all batches fit into n units.

    Args:
        needs: of each batch, at least 0; the price of a unit is proportional to needs_r / B_r.
        n: the public number of units.
    Raises:
        ValueError: there are more batches than pairs of units.
    """
    if FEWEST * len(needs) > n:
        raise ValueError(
            f"{len(needs)} batches of at least {FEWEST} units need more than n = {n} units: take fewer steps, or full "
            "batches."
        )

    def sizes(factor: float) -> tuple[int, ...]:
        return tuple(max(FEWEST, math.ceil(factor * need)) for need in needs)

    low, high = 0.0, n / max(max(needs, default=1.0), 1e-300)
    if sum(sizes(high)) <= n:
        return sizes(high)
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if sum(sizes(middle)) <= n else (low, middle)
    return sizes(low)


MOST_DIRECTIONS = 200  # of one estimate from values


# ---- What a run takes on a computer: seconds and bytes, from public numbers alone --------------------------
# The constants were fitted on one core of a 2024 server, compilation left out. `python -m benchmarks planned` prints
# planned against measured seconds, which should be within a factor of 3.


ROW_SECONDS = 1.2e-8  # a record's scalar work (one exponential) in the compiled kernel
BYTE_SECONDS = 1.0e-10  # streaming float32 rows from memory
CSR_SECONDS = 5e-9  # an entry of a CSR row in a pass
CSR_LOADING_SECONDS = 4e-8  # an entry of a CSR row read from a file of sets, checked, clipped and stored
OWN_SECONDS, OWN_PARAMETER_SECONDS = 2e-7, 5e-9  # one record's gradient of a user-written loss, vectorised
RELEASE_SECONDS = 4e-4  # a release beside its pass: price, noise, a step of the solver
ENTRY_SECONDS = 6e-9  # an entry of a row that is clipped and stored, with the row's norm
PRODUCT_SECONDS = 3e-11  # a multiplication and addition in a product of float64 blocks
EIGEN_SECONDS = 2e-10  # over d^3: eigenvalues and vectors of a symmetric matrix
MAGNITUDE_SECONDS = 2.5e-7  # an entry sorted into the bins that bounds are estimated from
PACKED_SECONDS = 5e-8  # an entry of a released matrix: its noise, packing and unpacking


def pass_seconds(public: Public, outputs: int = 1, *, own: int | None = None) -> float:
    """Rough time of one pass over the rows.

    Args:
        public: what is public about the data.
        outputs: columns of the parameters of a generalised-linear loss.
        own: number of parameters of a user-written loss, which is differentiated record by record.
    """
    records = _records(public)
    if own is not None:
        return records * (OWN_SECONDS + own * OWN_PARAMETER_SECONDS)
    entry = CSR_SECONDS if _scattered(public) else 4 * BYTE_SECONDS
    return records * (public.stored_entries * entry * max(1, outputs / 2) + ROW_SECONDS * outputs)


def value_seconds(loss: BlackBox, public: Public) -> float:
    """Rough time of one value of one record: on the host it is measured, on a made-up record, once for each loss."""
    layout = loss.layout
    size = 1 if layout is None else layout.size
    if not loss.host or layout is None:
        return OWN_SECONDS + size * OWN_PARAMETER_SECONDS
    return seconds_per_value(loss, public.d)


def records(public: Public) -> int:
    """About how many records there are."""
    return _records(public)


def two_point_values(public: Public, directions: int, passes: float) -> float:
    """How many values passes over all records ask for, of two along each direction."""
    return 2.0 * directions * passes * _records(public)


def loading_seconds(public: Public) -> float:
    """Rough time until the rows are scaled, clipped and stored with their norms."""
    entry = CSR_LOADING_SECONDS if _scattered(public) else 2 * ENTRY_SECONDS
    return _records(public) * public.stored_entries * entry


def estimation_seconds(public: Public) -> float:
    """Rough time of estimating the columns' bounds, and of loading the rows once more."""
    return loading_seconds(public) + _records(public) * public.d * MAGNITUDE_SECONDS


def second_moment_seconds(public: Public) -> float:
    """Rough time of the sum of `w a a^T` over the rows, and of its release."""
    d, entries = public.d, public.stored_entries
    return (
        _records(public) * entries * (0.5 * d * PRODUCT_SECONDS + ENTRY_SECONDS) + 0.5 * d**2 * PACKED_SECONDS
    )


def mapping_seconds(public: Public) -> float:
    """Rough time of an eigendecomposition of order d and of the rows' map into d other coordinates."""
    d = public.d
    return EIGEN_SECONDS * d**3 + _records(public) * d * (
        public.stored_entries * PRODUCT_SECONDS + ENTRY_SECONDS
    )


def data_bytes(public: Public) -> int:
    """Memory of the stored rows, targets and norms; of CSR rows at most."""
    return _records(public) * (public.row_bytes + 17)


def _scattered(public: Public) -> bool:
    """Whether rows are CSR of which it is known that most entries are not stored; others count as dense."""
    return public.stored_entries < public.d


def _records(public: Public) -> int:
    return math.ceil(public.n * public.typical_records)
