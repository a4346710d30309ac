"""What a query that somebody else wrote cannot get wrong: a claim is made in words, and the radius is enforced.

The engine and the curator ask here, not the query, where a mistake in a class would cost privacy. For the library's own
classes the answers are known from the class, so that nothing is computed for them.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.ledger.sampling import Sampling
from privopt.problems.norms import scale_of
from privopt.public import Public
from privopt.queries.base import (
    LARGEST_RADIUS,
    SMALLEST_RADIUS,
    MeanQuery,
    Query,
    RecordSum,
    RowForm,
    Scalar,
    StatisticOfHeld,
    shrunk_radius,
)

# What the sensitivity of a mean, or the row form of its contribution, may rest on.
_COMPUTED_BY = (
    "record_contribution",
    "record_contribution_of_lot",
    "unit_contribution",
    "points",
    "of_values",
    "without_bad",
    "clip_unit",
    "radius",
    "radius_norm",
    "norm",
)
# The norms that bound another one of the same array.
_BOUNDS = frozenset({("l1", "l2"), ("l1", "linf"), ("l2", "linf"), ("range", "linf")})
_ROUNDING = 1e-12  # relative; of a formula of a few operations


def stated_sensitivity(query: MeanQuery, public: Public, sampling: Sampling) -> Scalar:
    """The sensitivity of a mean, refused if it is below what its radius allows and the class does not say why.

    Raises:
        ValueError: it is below factor * radius / N, or not a number, or the radius is one of another norm, and there
            is no `sensitivity_argument`.
    """
    stated = query.sensitivity(public, sampling)
    if argues_its_sensitivity(type(query)):
        return stated
    least = MeanQuery.sensitivity(query, public, sampling)
    if not float(stated) >= float(least) * (1.0 - _ROUNDING):
        raise ValueError(
            f"{query.name} states the sensitivity {float(stated):.6g}, but a mean of contributions within its radius "
            f"may move by factor * radius / N = {float(least):.6g}. Leave `sensitivity` to MeanQuery, or say why less "
            "is enough in `sensitivity_argument`, in the class that states it or changes what it rests on."
        )
    if not _radius_bounds(type(query)):
        raise ValueError(
            f"{query.name} bounds its contributions in the {_norm_of_radius(query)} norm, which does not bound the "
            f"{query.norm} norm of its sensitivity: bound that one, or say in `sensitivity_argument` why it is enough."
        )
    return stated


@cache
def _radius_bounds(kind: type[MeanQuery]) -> bool:
    """Whether the radius bounds the norm of the sensitivity. A `finish` of its own may change the norm."""
    bounded = kind.radius_norm or kind.norm
    return bounded == kind.norm or kind.finish is not MeanQuery.finish or (bounded, kind.norm) in _BOUNDS


@cache
def argues_its_sensitivity(kind: type[MeanQuery]) -> bool:
    """Whether a class takes the sensitivity that the radius gives, or argues for its own.

    An argument is about the class that makes it: it does not serve a subclass that computes something else.
    """
    if kind.sensitivity is MeanQuery.sensitivity and _radius_bounds(kind):
        return True
    for one in kind.__mro__:
        if "sensitivity_argument" in vars(one):
            return bool(str(vars(one)["sensitivity_argument"] or "").strip())
        if _defines(one, (*_COMPUTED_BY, "sensitivity", "finish")):
            return False
    return False


def require_on_sample(query: Query | None, request: str) -> None:
    """Refuse a statistic of a secret sample whose class does not say that it may be computed on one. Needs no data.

    Privacy:
        A statistic that reads rows outside of the sample, or moves too far where a unit enters, costs more than a
        sample does. The claim is about the class that makes it: it does not serve a subclass.

    Raises:
        ValueError: it does not.
    """
    kind = type(query)
    claimed: frozenset[str] = frozenset()
    if issubclass(kind, StatisticOfHeld):
        claimed = vars(kind).get("on_samples", claimed)
    if request not in claimed:
        raise ValueError(
            f"{kind.__name__} is not made for the request {request!r} on a secret sample: it may read points outside "
            "of it, or move further where a unit enters than the price allows. Hold points without `sample`, or claim "
            "it in `on_samples` of that class."
        )


def row_form_of(query: MeanQuery, public: Public) -> RowForm | None:
    """The row form that may stand for the query's contributions, if there is one.

    Privacy:
        A form serves the class that states it, not a subclass that changes contribution, clip or radius: that one is
        computed as it says. A form that is not the library's is clipped to the radius of its query, and is left out
        where it clips in a norm that does not bound the one of the radius.
    """
    if not isinstance(query, RecordSum):
        return None
    owner = _owner_of_row_form(type(query))
    form = None if owner is None else query.row_form(public)
    if form is None or owner is None or owner.__module__.startswith("privopt."):
        return form
    if form.norm != _norm_of_radius(query) and (form.norm, _norm_of_radius(query)) not in _BOUNDS:
        return None
    return replace(form, radius=jnp.minimum(form.radius, query.radius()))


@cache
def _owner_of_row_form(kind: type[RecordSum]) -> type | None:
    """The class whose row form the query uses; None if a class below it computes something else."""
    for one in kind.__mro__:
        if "row_form" in vars(one):
            return one
        if _defines(one, _COMPUTED_BY):
            return None
    return None


@cache
def clips_by_itself(kind: type[MeanQuery]) -> bool:
    """Whether a class clips by `MeanQuery.clip_unit`, which holds its radius whatever that is."""
    return kind.clip_unit is MeanQuery.clip_unit and (kind.radius_norm or kind.norm) == "l2"


def into_radius(query: MeanQuery, private_clipped: Float[Array, "c ..."]) -> Float[Array, "c ..."]:
    """Contributions of several units after the query's own clip, each scaled so that it is within the radius.

    Args:
        query: what to compute.
        private_clipped: (units, ...); one that is not finite stays so.
    Privacy:
        A contribution within the radius is left as it is to the last bit; a longer one is scaled to the
        `shrunk_radius`. So a clip that is wrong, or missing, makes the query less exact and never less private. Nothing
        raises: what is too long is private.
    """
    if clips_by_itself(type(query)):
        return private_clipped
    radius = jnp.asarray(query.radius(), jnp.float64)
    private_lengths = lengths_of(query, private_clipped)
    limit = jnp.where(jnp.isinf(radius), radius, jnp.minimum(radius, LARGEST_RADIUS))
    private_within = (private_lengths <= limit) & (radius >= SMALLEST_RADIUS)
    aim = shrunk_radius(radius)
    private_scale = jnp.where(
        private_lengths > 0, aim / jnp.where(private_lengths > 0, private_lengths, 1.0), 0.0
    )
    return private_clipped * _across(jnp.where(private_within, 1.0, private_scale), private_clipped)


def lengths_of(query: MeanQuery, private_vectors: Float[Array, "c ..."]) -> Float[Array, " c"]:
    """The norms of several contributions, each in the norm that the query's radius bounds."""
    return _lengths_in(_norm_of_radius(query), private_vectors)


def _lengths_in(norm: str, private_vectors: Float[Array, "c ..."]) -> Float[Array, " c"]:
    """The norms of several contributions, none of them by squares that overflow.

    "range" is the largest minus the smallest entry, and no less than any entry; "columns" the largest l2 norm of a
    column.
    """
    shape = private_vectors.shape
    private_flat = jnp.reshape(private_vectors, (shape[0], -1))
    private_peaks = jnp.max(jnp.abs(private_flat), axis=1, initial=0.0)
    if norm == "linf":
        return private_peaks
    if norm == "range":
        return jnp.maximum(private_peaks, jnp.max(private_flat, axis=1) - jnp.min(private_flat, axis=1))
    private_scales = jax.vmap(scale_of)(private_flat)  # the reciprocal of a peak beyond 4.5e307 would be 0
    private_units = private_flat / private_scales[:, None]
    if norm == "l1":
        return private_scales * jnp.sum(jnp.abs(private_units), axis=1)
    if norm == "columns":
        private_squares = jnp.sum(
            jnp.reshape(private_units * private_units, (shape[0], -1, shape[-1])), axis=1
        )
        return private_scales * jnp.sqrt(jnp.max(private_squares, axis=1))
    return private_scales * jnp.sqrt(jnp.sum(private_units * private_units, axis=1))


def _norm_of_radius(query: MeanQuery) -> str:
    return query.radius_norm or query.norm


def _across(
    private_factors: Float[Array, " c"], private_vectors: Float[Array, "c ..."]
) -> Float[Array, "c ..."]:
    return jnp.reshape(private_factors, (-1, *(1,) * (private_vectors.ndim - 1)))


def _defines(kind: type, names: Iterable[str]) -> bool:
    return any(name in vars(kind) for name in names)
