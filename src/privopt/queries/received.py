"""What may be added up of vectors that units computed themselves, which may be anything: they are clipped again.

A sensitivity may rest on more than the radius: on two matrices being positive semidefinite, or on the losses' gradients
at a public point. Who is told a vector knows nothing of the kind. For each class of queries that may be answered by
others there is one line here: which set a vector is mapped into, and whether the stated sensitivity holds for every
vector of that set. If not, the radius says how far a unit can move the mean.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.later import is_array
from privopt.ledger.events import Sampling, expected_units
from privopt.problems import constraints, regularisers
from privopt.problems.losses import GLMLoss, Loss, RecordLoss
from privopt.problems.regularisers import MappedRidge
from privopt.proofs.gradient_spread import is_bounded, norm_bound
from privopt.public import Public
from privopt.queries.base import (
    LARGEST_RADIUS,
    ROUNDING_MARGIN,
    SMALLEST_RADIUS,
    MeanQuery,
    Query,
    Scalar,
    StatisticOfHeld,
)
from privopt.queries.gradient_norms import AveragedGradient, GradientAndCount
from privopt.queries.lots import LocalPass
from privopt.queries.moments import SecondMoment, TargetMagnitudes, TopCurvature, TotalWeight
from privopt.queries.safeguards import stated_sensitivity
from privopt.queries.scores import VertexScores
from privopt.queries.slopes import (
    ROUNDING,
    ClippedGradient,
    ClippedGradientDifference,
    GradientNorm,
    MixedGradient,
)

Vectors = NDArray[np.float64]


def _radius_of(query: MeanQuery, public: Public) -> Scalar:
    del public
    return query.radius()


def _longest_gradient(query: ClippedGradient | MixedGradient, public: Public) -> Scalar:
    """The clip, or the longest gradient that the loss has at this point where that is less, see `ClippedGradient`."""
    if not (isinstance(query.loss, GLMLoss) and is_bounded(query.loss)):
        return query.clip
    at = np.asarray(query.at, np.float64)
    with np.errstate(over="ignore"):
        prediction_bound = public.row_bound * np.sqrt(np.sum(at * at))
    return min(
        float(query.clip), float(norm_bound(query.loss, prediction_bound)) * ROUNDING * public.row_bound
    )


def _longest_mixture(query: MixedGradient, public: Public) -> Scalar:
    """(1 - gain) times the longest gradient, and gain times the clip of the change."""
    gain = float(query.weight())
    longest, change = (max(0.0, float(one)) for one in (_longest_gradient(query, public), query.change_clip))
    return (1.0 - gain) * longest + gain * change


@dataclass(frozen=True)
class Reception:
    """How vectors that answer a query are received.

    Attributes:
        admit: ((units, ...) finite vectors, radius) -> the same within a set of that radius, which the sensitivity
            supposes. A vector that a unit would have computed stays as it is, but for rounding.
        stated: whether the query's own sensitivity holds for all vectors of that set; if not, factor * radius / N.
        radius: (query, public) -> the largest norm of what a unit would have computed.
    """

    admit: Callable[[Vectors, float], Vectors]
    stated: bool = True
    radius: Callable[[Any, Public], Any] = _radius_of


def received(query: MeanQuery, public: Public, private_vectors: Vectors) -> Vectors:
    """Vectors of several units as they may be added up.

    Args:
        query: what was asked.
        public: what is public about the units.
        private_vectors: (units, ...), whatever was answered.
    Privacy:
        A vector that is not finite is zero, any other is mapped for itself into the set of `Reception`. Nothing raises
        or warns.
    """
    with np.errstate(all="ignore"):
        axes = tuple(range(1, private_vectors.ndim))
        private_finite = np.all(np.isfinite(private_vectors), axis=axes)
        private_safe = np.where(_across(private_finite, private_vectors), private_vectors, 0.0)
        reception = _RECEPTIONS[type(query)]
        radius = float(np.asarray(reception.radius(query, public)))
        private_admitted = reception.admit(private_safe, radius)
        private_finite = np.all(np.isfinite(private_admitted), axis=axes)
        return np.where(_across(private_finite, private_vectors), private_admitted, 0.0)


def received_sensitivity(query: MeanQuery, public: Public, sampling: Sampling) -> Scalar:
    """How far one unit, whatever it answers, can move the mean of `received` vectors.

    Raises:
        ValueError: nobody argues for the query's sensitivity, see `stated_sensitivity`.
    """
    stated, reception = stated_sensitivity(query, public, sampling), _RECEPTIONS[type(query)]
    if reception.stated:
        return stated
    units = expected_units(sampling, public.n)
    return np.maximum(stated, public.relation.factor * reception.radius(query, public) / units)


def require_receivable(kind: type[Query]) -> None:
    """Refuse a class of queries whose answers cannot be received.

    A statistic of held vectors is computed where they are held, and supposes nothing of them.

    Raises:
        ValueError: they cannot.
    """
    if kind not in _RECEPTIONS and not issubclass(kind, StatisticOfHeld):
        raise ValueError(
            f"{kind.__name__} is not answered by units that hold their own records: it needs all records in one place, "
            f"or nobody has said what may be taken from a stranger. Answered are {', '.join(sorted(RECEIVABLE))}."
        )


def _in_l2_ball(private_vectors: Vectors, radius: float) -> Vectors:
    private_flat = _flat(private_vectors)
    private_peaks = np.max(np.abs(private_flat), axis=1, initial=0.0)
    private_units = private_flat / np.where(private_peaks > 0, private_peaks, 1.0)[:, None]
    private_lengths = np.sqrt(np.sum(private_units * private_units, axis=1))
    return _scaled(private_vectors, private_peaks, private_lengths, radius)


def _in_cube(private_vectors: Vectors, radius: float) -> Vectors:
    private_peaks = np.max(np.abs(_flat(private_vectors)), axis=1, initial=0.0)
    return _scaled(private_vectors, private_peaks, np.ones(len(private_vectors)), radius)


def _scaled(
    private_vectors: Vectors, private_peaks: Vectors, private_lengths: Vectors, radius: float
) -> Vectors:
    """Vectors of norm peak * length, no longer than the radius.

    One at the edge of the ball that `shrunk_radius` aims at is within a rounding of it, and stays; the margin of that
    radius is wide enough for both.
    """
    if not radius >= SMALLEST_RADIUS:
        return np.zeros_like(private_vectors)
    aim = radius if np.isinf(radius) else min(radius, LARGEST_RADIUS) * (1.0 - 0.5 * ROUNDING_MARGIN)
    private_inside = private_lengths <= aim / np.where(private_peaks > 0, private_peaks, 1.0)
    private_shorter = (
        private_vectors / _across(np.where(private_peaks > 0, private_peaks, 1.0), private_vectors)
    ) * _across(aim / np.where(private_lengths > 0, private_lengths, 1.0), private_vectors)
    return np.where(_across(private_inside, private_vectors), private_vectors, private_shorter)


def _semidefinite(private_vectors: Vectors, radius: float) -> Vectors:
    """Packed symmetric matrices, see `second_moment.pack`, without their negative part, in the ball."""
    order = (round((8 * private_vectors.shape[1] + 1) ** 0.5) - 1) // 2  # k = d (d + 1) / 2
    rows, columns = np.triu_indices(order)
    weights = np.where(rows == columns, 1.0, np.sqrt(2.0))
    private_peaks = np.max(np.abs(private_vectors), axis=1, initial=0.0)
    private_peaks = np.where(private_peaks > 0, private_peaks, 1.0)[:, None]
    private_entries = private_vectors / private_peaks / weights
    private_matrices = np.zeros((len(private_vectors), order, order))
    private_matrices[:, rows, columns] = private_entries
    private_matrices[:, columns, rows] = private_entries
    private_values, private_axes = np.linalg.eigh(private_matrices)
    private_positive = np.maximum(private_values, 0.0)[:, None, :]
    private_kept = (private_axes * private_positive) @ np.swapaxes(private_axes, 1, 2)
    return _in_l2_ball(private_kept[:, rows, columns] * weights * private_peaks, radius)


def _nonnegative(private_vectors: Vectors, radius: float) -> Vectors:
    """Without their negative entries, in the ball."""
    return _in_l2_ball(np.maximum(private_vectors, 0.0), radius)


def _in_interval(private_vectors: Vectors, radius: float) -> Vectors:
    return np.clip(private_vectors, 0.0, radius)


def _flat(private_vectors: Vectors) -> Vectors:
    return np.reshape(private_vectors, (len(private_vectors), int(np.prod(private_vectors.shape[1:]))))


def _across(private_factors: NDArray[Any], private_vectors: Vectors) -> NDArray[Any]:
    return np.reshape(private_factors, (len(private_factors), *(1,) * (private_vectors.ndim - 1)))


_RECEPTIONS: dict[type[Query], Reception] = {
    ClippedGradient: Reception(_in_l2_ball, stated=False, radius=_longest_gradient),
    GradientNorm: Reception(_in_l2_ball, stated=False, radius=_longest_gradient),
    AveragedGradient: Reception(_in_l2_ball, stated=False),
    MixedGradient: Reception(_in_l2_ball, stated=False, radius=_longest_mixture),
    ClippedGradientDifference: Reception(_in_l2_ball),
    GradientAndCount: Reception(_in_l2_ball),
    LocalPass: Reception(_in_l2_ball),
    VertexScores: Reception(_in_cube),
    SecondMoment: Reception(_semidefinite),
    TargetMagnitudes: Reception(_nonnegative),
    TopCurvature: Reception(_semidefinite),
    TotalWeight: Reception(_in_interval),
}
RECEIVABLE = {kind.__name__: kind for kind in _RECEPTIONS}


# ------------------------------------------------------------------------------------------------------------
# A query as text and arrays, for those who hold their own records; nothing that is executed is ever sent.
# Sent are the name of a class of the library, its fields, and in place of the loss its name: who answers has a loss of
# their own, which must be of that name. Numbers arrive to the last bit.


# Values of the library that a query may hold.
_VALUES: dict[str, Any] = {
    kind.__name__: kind
    for module, base in ((regularisers, regularisers.Regulariser), (constraints, constraints.Constraint))
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, base) and is_dataclass(kind)
} | {MappedRidge.__name__: MappedRidge}


def encoded(query: Any) -> tuple[str, dict[str, NDArray[Any]]]:
    """The query as JSON, and the arrays that it names.

    Args:
        query: one of `received.RECEIVABLE`.
    Raises:
        ValueError: its class is not one that others answer, or a field is of no kind that is sent.
    """
    require_receivable(type(query))
    arrays: dict[str, NDArray[Any]] = {}
    body = {one.name: _encoded(getattr(query, one.name), one.name, arrays) for one in fields(query)}
    return json.dumps({"kind": query.name, "fields": body}), arrays


def decoded(text: str, arrays: dict[str, NDArray[Any]], loss: Loss) -> MeanQuery:
    """The query that was sent.

    Args:
        text: from `encoded`.
        arrays: likewise.
        loss: what stands where the query has a loss.
    Raises:
        ValueError: it is no query of the library, or was asked of another loss.
    """
    sent = json.loads(text)
    kind: Any = RECEIVABLE.get(sent["kind"])
    if kind is None:
        raise ValueError(
            f"{sent['kind']!r} is no query that is answered here: both sides need the same version of privopt."
        )
    return kind(**{name: _decoded(value, arrays, loss) for name, value in sent["fields"].items()})


def loss_name(loss: Loss) -> str:
    """A loss of the library with its numbers; of one's own, its name."""
    return loss.name if isinstance(loss, RecordLoss) else repr(loss)


def _encoded(value: Any, place: str, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, GLMLoss | RecordLoss):
        return {"loss": loss_name(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_array(value) or isinstance(value, np.generic):
        arrays[place] = np.asarray(value)
        return {"array": place}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(part, f"{place}.{i}", arrays) for i, part in enumerate(value)]}
    if type(value) is _VALUES.get(type(value).__name__):
        parts = {
            one.name: _encoded(getattr(value, one.name), f"{place}.{one.name}", arrays)
            for one in fields(value)
        }
        return {"value": type(value).__name__, "fields": parts}
    raise ValueError(
        f"`{place}` is a {type(value).__name__}, which is not sent to others: use the library's own regularisers and "
        "constraint sets."
    )


def _decoded(value: Any, arrays: dict[str, NDArray[Any]], loss: Loss) -> Any:
    if not isinstance(value, dict):
        return value
    if "loss" in value:
        if value["loss"] != loss_name(loss):
            raise ValueError(
                f"the loss here is {loss_name(loss)!r}, but {value['loss']!r} was asked for: give both sides the same."
            )
        return loss
    if "array" in value:
        return arrays[value["array"]]
    if "tuple" in value:
        return tuple(_decoded(part, arrays, loss) for part in value["tuple"])
    kind = _VALUES.get(value["value"])
    if kind is None:
        raise ValueError(f"{value['value']!r} is no regulariser or constraint set of the library.")
    return kind(**{name: _decoded(part, arrays, loss) for name, part in value["fields"].items()})
