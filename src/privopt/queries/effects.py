"""Refuses losses and queries that would do more with a record than compute: print it, call the host, store it."""

from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from privopt.precision import double_precision
from privopt.problems.black_box import BlackBox
from privopt.problems.glm import RecordLoss
from privopt.problems.saddle import BilinearGame, Game
from privopt.public import Public
from privopt.queries.base import MeanQuery, Query, RecordSum, UnitSum
from privopt.queries.lots import LotSum, any_lot
from privopt.queries.values import ValueSum

# Parts of the names of JAX's primitives that leave the program; `debug_callback`, `io_callback`, `outfeed`, ...
_OUTWARDS = ("callback", "infeed", "outfeed", "debug_print")


def require_pure(query: Query, public: Public) -> None:
    """Refuse a query whose contributions have effects, before anything is charged or read. Traced once for a query.

    The library's own queries with the library's own losses have none, and are not traced.

    Raises:
        ValueError: a record would leave the program other than through the sum, or the value is not of its shape.
        TypeError: the class was not decorated by `query`.
    """
    if isinstance(query, MeanQuery):
        statics = tuple(getattr(query, name) for name in _static_names(type(query)))
        if not _is_ours(type(query), statics):
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
    with double_precision():
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
    with double_precision():
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
    with double_precision():
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


def _fields_of(query: Any) -> tuple[Field[Any], ...]:
    return fields(query) if is_dataclass(query) else ()


def _require_no_effects(traced: core.ClosedJaxpr, what: str) -> None:
    found = sorted({name for name in _primitives(traced.jaxpr) if any(part in name for part in _OUTWARDS)})
    if found or traced.effects:
        how = ", ".join(found) or ", ".join(sorted(str(effect) for effect in traced.effects))
        raise ValueError(
            f"{what} does more than compute ({how}): a callback, such as jax.debug.print, would hand single records to "
            "the outside, and no noise protects those. Take it out, or try the function on made-up records."
        )


def _primitives(jaxpr: core.Jaxpr) -> Iterator[str]:
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
def _is_ours(kind: type, statics: tuple[Any, ...]) -> bool:
    """Whether a query and all that it is made of are the library's: then nothing in it has effects."""
    return kind.__module__.startswith("privopt.") and all(_known(value) for value in statics)


def _known(value: Any) -> bool:
    if value is None or isinstance(value, bool | int | float | str | Enum | np.ndarray | jax.Array):
        return True
    if isinstance(value, tuple | list):
        return all(_known(part) for part in value)
    if not type(value).__module__.startswith("privopt.") or not is_dataclass(value):
        return False
    return all(_known(getattr(value, one.name)) for one in fields(value))
