"""The ways in which a value is computed from a table: by either engine, on a sample, in a compiled loop, as told."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from privopt.curator.audit import distance
from privopt.curator.base import Curator
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.engine.compiled_loops import traced_sum
from privopt.engine.drawn_rows import Handed, drawn_rows, in_place
from privopt.engine.protocol import Engine, EngineName
from privopt.engine.receiving import Asked as AskedOfUnits
from privopt.engine.receiving import ReceivingEngine
from privopt.ledger.sampling import EveryUnit, Poisson, Sampling
from privopt.ledger.unlimited import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.public import Public, Relation
from privopt.queries.base import MeanQuery, Query
from privopt.queries.lots import LotSum, drawn_lots, without_lot
from privopt.queries.of_records import ArgminQuery, ObjectiveQuery, PassQuery, RecordsQuery
from privopt.queries.received import RECEIVABLE
from privopt.queries.values import called_on_host
from privopt.testing.hostile_rows import Setting
from privopt.testing.queries import Asked
from privopt.testing.tables import Table, Unit, drawn_table

Way: TypeAlias = Literal["fast", "reference", "sample", "loop", "sampled loop", "told"]
WAYS: tuple[Way, ...] = ("fast", "reference", "sample", "loop", "sampled loop", "told")
_SHARE = 0.5  # of the units are expected in a sample


@dataclass(frozen=True)
class Measure:
    """What is computed from a table, and how far apart the results on two neighbours may be.

    Attributes:
        query: what is asked.
        stated: its sensitivity, the bound on rounding included.
        value: computes it.
        apart: how far two values are from one another, in the norm of the sensitivity.
    """

    query: Query
    stated: float
    value: Callable[[Table], Any]
    apart: Callable[[Any, Any], float]

    def ratio(self, one: Any, other: Any) -> float:
        """How far apart two values are over what is stated; infinite where that is no number."""
        moved = self.apart(one, other)
        if moved == 0.0:
            return 0.0
        return moved / self.stated if self.stated > 0.0 and not math.isnan(moved) else math.inf


def applies(way: Way, asked: Asked, setting: Setting) -> bool:
    """Whether a query is computed in this way of data that are stored so, from public facts."""
    if isinstance(asked, PassQuery):
        return way == "fast" and not setting.of_users and setting.relation is Relation.REPLACE_ONE
    if isinstance(asked, ArgminQuery | ObjectiveQuery | RecordsQuery):
        return way == "fast" and not setting.of_users
    if not isinstance(asked, MeanQuery):
        return way in ("fast", "reference")
    if way in ("sample", "sampled loop") and not _sampled(asked, setting):
        return False
    if way in ("loop", "sampled loop"):
        comes = (
            bool(setting.levels) and setting.relation is Relation.ADD_OR_REMOVE_ONE
        )  # no code means absence
        on_host = called_on_host(asked) or isinstance(asked, LotSum)
        return setting.layout == "dense" and not comes and not on_host
    if way == "told":
        return type(asked).__name__ in RECEIVABLE and setting.layout == "dense"
    return True


def _sampled(query: MeanQuery, setting: Setting) -> bool:
    """Whether a query may be asked of a sample."""
    public = drawn_table(np.random.default_rng(0), setting, full=True).units().public
    try:
        query.sensitivity(public, Poisson(_SHARE))
    except ValueError:
        return False
    return True


def one_shape(way: Way, asked: Asked) -> bool:
    """Whether a program is compiled for each number of records, so that one number must do."""
    return way in ("loop", "sampled loop") or not isinstance(asked, MeanQuery)


def measure(way: Way, asked: Asked, table: Table, rng: np.random.Generator) -> Measure:
    """How a query is computed in this way from a table and its neighbours.

    Args:
        way: which.
        asked: what is asked.
        table: one of the tables; its neighbours have another unit in the same place.
        rng: draws lots, samples, orders, and the point at which minimisers are compared.
    """
    engine: EngineName = "reference" if way == "reference" else "fast"
    if not isinstance(asked, Query):
        return _of_what_is_held(engine, asked, table)
    asked = drawn_lots(asked, rng)
    public = table.units().public
    if isinstance(asked, PassQuery):
        order, no_noise = rng.permutation(public.n), partial(_zeros, public.d)
        return _measure(
            table, asked, _records, lambda one, other: asked.moved(public, one, other, order, no_noise)
        )
    if isinstance(asked, ArgminQuery):
        solution = jnp.asarray(rng.normal(size=public.d) * 10.0 ** rng.uniform(-3.0, 3.0))
        objective = asked.objective(public)
        return _measure(
            table,
            asked,
            lambda other: asked.implied_noise(public, objective.over(*_records(other)), solution),
            None,
        )
    if isinstance(asked, MeanQuery):
        return _of_a_mean(way, engine, asked, table, rng)
    return _measure(
        table,
        asked,
        lambda other: _curator(engine, other.units()).private_value(asked, EveryUnit(), None),
        None,
    )


def _measure(
    table: Table,
    query: Query,
    value: Callable[[Table], Any],
    apart: Callable[[Any, Any], float] | None,
) -> Measure:
    return Measure(
        query, _stated(_curator("fast", table.units()), query), value, apart or partial(_apart, query.norm)
    )


def _apart(norm: str, one: Any, other: Any) -> float:
    return distance(np.asarray(one), np.asarray(other), norm)


def _stated(curator: LocalCurator, query: Query, sampling: Sampling = EveryUnit()) -> float:
    """The sensitivity that a release would have, rounding included."""
    return float(curator._sensitivity(query, sampling))  # pyright: ignore[reportPrivateUsage]


_NOISE = NoiseSource(0)  # for curators that draw nothing


def _curator(engine: EngineName, data: Units | Engine, noise: NoiseSource = _NOISE) -> LocalCurator:
    return LocalCurator(data, Unlimited(data.public.relation), noise=noise, engine=engine)


def _records(table: Table) -> tuple[Any, NDArray[np.float64]]:
    units = table.units()
    return units.private_features, units.private_targets


def _zeros(width: int, count: int) -> NDArray[np.float64]:
    return np.zeros((count, width))


def _of_what_is_held(engine: EngineName, asked: Callable[[Curator], Query], table: Table) -> Measure:
    def opened(other: Table) -> LocalCurator:
        return _curator(engine, other.units(), NoiseSource(0))  # the same order of the points on both sides

    def value(other: Table) -> Any:
        curator = opened(other)
        return curator.private_value(asked(curator), EveryUnit(), None)

    curator = opened(table)
    query = asked(curator)
    return Measure(query, _stated(curator, query), value, partial(_apart, query.norm))


def _of_a_mean(
    way: Way, engine: EngineName, query: MeanQuery, table: Table, rng: np.random.Generator
) -> Measure:
    sampling: Sampling = EveryUnit()
    draw: NDArray[np.int64] | None = None
    if way in ("sample", "sampled loop"):
        sampling, n = Poisson(_SHARE), table.setting.units
        some = rng.choice(n, int(rng.integers(n)), replace=False)
        draw = np.union1d(some, [table.position]).astype(np.int64)

    def opened(other: Table) -> LocalCurator:
        return _curator(engine, _told(other) if way == "told" else other.units())

    def value(other: Table) -> Any:
        if way in ("loop", "sampled loop"):
            return _in_a_loop(query, other, draw)
        side, asked, drawn = opened(other), query, draw
        if other.is_gone:  # it takes its lot along, and those behind it move up
            asked = without_lot(query, other.position)
            drawn = None if draw is None else draw[draw != other.position]
            drawn = None if drawn is None else drawn - (drawn > other.position)
        held = None if drawn is None else drawn[drawn < side.private_engine.private_count]
        return side.private_value(asked, sampling, held)

    return Measure(query, _stated(opened(table), query, sampling), value, partial(_apart, query.norm))


def _in_a_loop(query: MeanQuery, table: Table, draw: NDArray[np.int64] | None) -> Any:
    """The mean by a compiled loop's sum. A unit that is absent is a record that does not count: one shape for all."""
    setting = table.setting
    absent = Unit(np.full((1, setting.columns), np.nan), np.zeros(1))
    missing = setting.units - 1 - len(table.others)
    others, changed = (*table.others, *[absent] * missing), table.changed or absent
    units = replace(table, others=others, changed=changed).units()
    private_draw, share = (np.arange(setting.units), 1.0) if draw is None else (draw, _SHARE)
    private_rows = drawn_rows(units, private_draw, setting.units)  # what is not drawn is padding
    private_handed = in_place(private_rows)
    private_share = np.array([0, len(private_draw)], np.int32)
    private_sum = _loop_sum(query, private_handed, private_share, units.public, setting.units)
    return query.finish(private_sum * (1.0 / (share * setting.units)))


@partial(jax.jit, static_argnums=(3, 4))
def _loop_sum(query: MeanQuery, private_handed: Handed, private_share: Any, public: Public, room: int) -> Any:
    return traced_sum(query, public, private_handed, private_share, room)


class _Liars:
    """Units that answer with the numbers in their records, whatever they are asked."""

    def __init__(self, table: Table) -> None:
        features, targets, owners = table.records()
        positions = np.unique(owners, return_inverse=True)[1]
        self._answers = {
            int(position): np.append(row, target)
            for position, row, target in zip(positions, features, targets, strict=True)
        }
        self.private_count = len(self._answers)

    def ask(self, asked: AskedOfUnits, private_positions: NDArray[np.int64]) -> Mapping[int, Any]:
        """The numbers of each unit, over and over, in the shape asked for."""
        return {
            position: np.resize(self._answers[position], asked.shape)
            for position in private_positions.tolist()
        }


def _told(table: Table) -> ReceivingEngine:
    units: Units = table.units()
    comes = table.setting.relation is Relation.ADD_OR_REMOVE_ONE
    return ReceivingEngine(replace(units.public, drawn=comes), _Liars(table))
