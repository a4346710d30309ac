"""What a query that somebody else wrote cannot get wrong: a claim is made in words, and the radius is enforced.

The engine and the curator ask here, not the query, where a mistake in a class would cost privacy. For the library's own
classes the answers are known from the class, so that nothing is computed for them.
"""

import inspect
import sys
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass, replace
from enum import Enum
from functools import cache, partial
from typing import Any

from privopt.later import Array, Float, deferred, is_array, jax, jnp
from privopt.ledger.events import Sampling
from privopt.precision import in_float64
from privopt.problems.black_box import BlackBox
from privopt.problems.glm import RecordLoss
from privopt.problems.projections import scale_of
from privopt.problems.saddle import BilinearGame, Game
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
    UnitSum,
    shrunk_radius,
)
from privopt.queries.lots import LotSum, any_lot
from privopt.queries.values import ValueSum

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
    owner = _owner(kind, "sensitivity_argument", (*_COMPUTED_BY, "sensitivity", "finish"))
    return owner is not None and bool(str(vars(owner)["sensitivity_argument"] or "").strip())


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
    if form is None or owner is None or is_ours(owner):
        return form
    if form.norm != _norm_of_radius(query) and (form.norm, _norm_of_radius(query)) not in _BOUNDS:
        return None
    return replace(form, radius=jnp.minimum(form.radius, query.radius()))


@cache
def _owner_of_row_form(kind: type[RecordSum]) -> type | None:
    """The class whose row form the query uses; None if a class below it computes something else."""
    return _owner(kind, "row_form", _COMPUTED_BY)


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


def _owner(kind: type, stated: str, computed_by: tuple[str, ...]) -> type | None:
    """The class whose statement `stated` holds for a class; None if the class computes something else.

    Among the library's own classes it is the next one that states it, with nothing of `computed_by` defined before. A
    class of somebody else's, or of its bases and mix-ins, is served by the next class that states it or is the
    library's, and has every part of that class.
    """
    served = next((one for one in kind.__mro__ if stated in vars(one) or is_ours(one)), object)
    if not _has_parts_of(served, kind):
        return None
    for one in served.__mro__:
        if stated in vars(one):
            return one
        if any(name in vars(one) for name in computed_by):
            return None
    return None


def _has_parts_of(base: type, kind: type) -> bool:
    """Whether a class replaces nothing of one of its bases but its name in reports and values of fields.

    The library's queries are made of parts, and what holds of the whole may rest on each of them. Parts are compared
    where Python looks for them, so that a mix-in replaces them as well. A second kind of query among the bases would
    have the engine compute something else.
    """
    parts = {name for one in base.__mro__ for name in vars(one) if not name.startswith("__")}
    parts -= {"name", "_abc_impl", "sensitivity_argument", *(one.name for one in _fields_of(base))}
    return all(
        inspect.getattr_static(kind, name) is inspect.getattr_static(base, name) for name in parts
    ) and all(
        issubclass(base, one) or issubclass(one, base) for one in kind.__mro__ if issubclass(one, Query)
    )


@cache
def is_ours(kind: type) -> bool:
    """Whether a class is the library's own: a module of the library has it under its name."""
    module = kind.__module__
    return module.startswith("privopt.") and getattr(sys.modules.get(module), kind.__name__, None) is kind


# ------------------------------------------------------------------------------------------------------------
# Refuses losses and queries that would do more with a record than compute: print it, call the host, store
# it.


core: Any = deferred("jax.extend.core")
# Parts of the names of JAX's primitives that leave the program; `debug_callback`, `io_callback`, `outfeed`, ...
_OUTWARDS = ("callback", "infeed", "outfeed", "debug_print")


def require_pure(query: Query, public: Public) -> None:
    """Refuse a query whose contributions have effects, before anything is charged or read. Traced once for a query.

    The library's own queries with the library's own losses have none, and are not traced.

    Raises:
        ValueError: a record would leave the program other than through the sum, or the value is not of its shape, or
            the query holds something under the name of a part of its class.
        TypeError: the class was not decorated by `query`.
    """
    if isinstance(query, MeanQuery):
        _require_parts_of_class(query)
        statics = tuple(getattr(query, name) for name in _static_names(type(query)))
        if not _is_all_ours(type(query), statics):
            _trace(query, public)


def require_pure_loss(loss: Any, shape: tuple[int, ...], public: Public) -> None:
    """Refuse a user-written loss with effects.

    Args:
        loss: any loss; only a `RecordLoss` is traced, and a `BlackBox` that is pure JAX.
        shape: of the parameters.
        public: says how many features a record has.
    Raises:
        ValueError: a record would leave the program other than through the loss.
    """
    if isinstance(loss, RecordLoss) or (isinstance(loss, BlackBox) and not loss.host):
        _trace_loss(loss.value, shape, public.d, loss.name)


@cache
def _trace_loss(value: Any, shape: tuple[int, ...], d: int, name: str) -> None:
    with in_float64():
        traced = jax.make_jaxpr(value)(jnp.zeros(shape), jnp.zeros(d), jnp.zeros(()))
    _require_no_effects(traced, f"the loss {name!r}")


def require_pure_payoff(game: Game, public: Public) -> None:
    """Refuse a user-written payoff with effects.

    Args:
        game: any game; the library's own matrix games are not traced.
        public: says how many features a record has.
    Raises:
        ValueError: a record would leave the program other than through the payoff.
    """
    if not isinstance(game, BilinearGame):
        sizes = tuple(player.vertices.dimension for player in game.players.values())
        _trace_payoff(game, sizes, public.d)


@cache
def _trace_payoff(game: Game, sizes: tuple[int, int], d: int) -> None:
    x, y = (jnp.zeros(size) for size in sizes)
    with in_float64():
        traced = jax.make_jaxpr(game.payoff)(x, y, jnp.zeros(d), jnp.zeros(()))
    _require_no_effects(traced, "the payoff")


_traced: set[Any] = set()


def _trace(query: MeanQuery, public: Public) -> None:
    """Trace what one unit contributes, and what becomes of the mean."""
    if jax.tree_util.all_leaves([query]):
        raise TypeError(
            f"{query.name} is unknown to JAX: put `@query` above its class, as above every subclass."
        )
    leaves, structure = jax.tree.flatten(query)
    key = (type(query), structure, tuple(jnp.shape(leaf) for leaf in leaves), public)
    if key in _traced:
        return
    for one in _fields_of(query):
        loss, at = getattr(query, one.name), getattr(query, "at", None)
        if isinstance(query, ValueSum):
            at = jnp.zeros(jax.eval_shape(query.points).shape[1])
        if isinstance(loss, RecordLoss | BlackBox) and at is not None:
            require_pure_loss(loss, jnp.shape(at), public)
    with in_float64():
        traced = jax.make_jaxpr(partial(_contribution, public=public))(query)
    _require_no_effects(traced, query.name)
    _require_shape(query, traced.out_avals[-1].shape, public)
    _traced.add(key)


def _require_shape(query: MeanQuery, computed: tuple[int, ...], public: Public) -> None:
    """Refuse a value of another shape than the query states: noise of that shape would be shared by its entries."""
    stated = tuple(query.shape(public))
    if computed != stated:
        raise ValueError(
            f"{query.name} states the shape {stated}, but its value has shape {computed}: noise is drawn in the shape "
            "that is stated, one draw for each entry. Return the value's shape from `shape`."
        )


def _contribution(query: MeanQuery, *, public: Public) -> Any:
    """One unit's contribution as the mean of all, through every method that a class may write."""
    records = public.records_per_unit
    if isinstance(query, ValueSum) and query.on_host:  # it computes what it will, out of the program's sight
        vector = query.of_values(jnp.zeros(query.points().shape[0]))
    elif isinstance(query, RecordSum):
        vector = query.record_contribution(jnp.zeros(public.d), jnp.zeros(()))
    elif isinstance(query, LotSum):
        vector = query.record_contribution_of_lot(jnp.zeros(public.d), jnp.zeros(()), any_lot())
    else:
        assert isinstance(query, UnitSum)
        vector = query.unit_contribution(
            jnp.zeros((records, public.d)), jnp.zeros(records), jnp.ones(records), jnp.ones(())
        )
    clipped = query.clip_unit(query.without_bad(vector))
    form = query.row_form(public) if isinstance(query, RecordSum) else None
    if form is None:
        return query.finish(clipped)
    averaged = public.by_user and form.averages and form.kernel is None  # clipped after the form
    contributed = jnp.shape(vector if averaged else clipped)
    if contributed != tuple(form.shape):
        raise ValueError(
            f"{query.name} contributes arrays of shape {contributed}, but its row form ones of shape "
            f"{tuple(form.shape)}: both must compute the same."
        )
    rows = jnp.zeros((1, jnp.shape(form.points)[1]))
    return form.coefficients(rows, jnp.zeros(1), jnp.zeros(1)), query.finish(clipped)


@cache
def _static_names(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in _fields_of(kind) if one.metadata.get("static"))


def _require_parts_of_class(query: MeanQuery) -> None:
    """Refuse a query that holds, as a field or otherwise, what stands for a method: its class is what is judged."""
    hidden = _hidden_parts(type(query), tuple(vars(query)))
    if hidden:
        raise ValueError(
            f"{query.name} holds a value under the name of a part of its class ({', '.join(hidden)}), which would take "
            "its place: give it another name, or write the part as a method of a subclass."
        )


@cache
def _hidden_parts(kind: type, names: tuple[str, ...]) -> list[str]:
    """Those names under which a base of the class has something else than a field."""
    return [
        name
        for name in names
        if any(
            name in vars(one) and name not in {each.name for each in _fields_of(one)} for one in kind.__mro__
        )
    ]


def _fields_of(query: Any) -> tuple[Field[Any], ...]:
    return fields(query) if is_dataclass(query) else ()


def _require_no_effects(traced: Any, what: str) -> None:
    found = sorted({name for name in _primitives(traced.jaxpr) if any(part in name for part in _OUTWARDS)})
    if found or traced.effects:
        how = ", ".join(found) or ", ".join(sorted(str(effect) for effect in traced.effects))
        raise ValueError(
            f"{what} does more than compute ({how}): a callback, such as jax.debug.print, would hand single records to "
            "the outside, and no noise protects those. Take it out, or try the function on made-up records."
        )


def _primitives(jaxpr: Any) -> Iterator[str]:
    """The names of all primitives of a program and of the programs inside it."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, tuple | list) else (parameter,):
                if isinstance(inner, core.ClosedJaxpr):
                    yield from _primitives(inner.jaxpr)
                elif isinstance(inner, core.Jaxpr):
                    yield from _primitives(inner)


@cache
def _is_all_ours(kind: type, statics: tuple[Any, ...]) -> bool:
    """Whether a query and all that it is made of are the library's: then nothing in it has effects."""
    return is_ours(kind) and all(known(value) for value in statics)


def known(value: Any) -> bool:
    """Whether a value, with all that it is made of, is plain or of the library's own classes."""
    if value is None or is_array(value) or isinstance(value, bool | int | float | str | Enum):
        return True
    if isinstance(value, tuple | list):
        return all(known(part) for part in value)
    if not is_ours(type(value)) or not is_dataclass(value):
        return False
    return all(known(getattr(value, one.name)) for one in fields(value))
