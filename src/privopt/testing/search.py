"""A search for the neighbour that moves a query furthest: drawn at random, then by steps from the worst one found."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from privopt.curator.audit import distance, moved_up, ratio
from privopt.curator.base import Curator
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.engine.compiled_loops import traced_sum
from privopt.engine.drawn_rows import Handed, drawn_rows, in_place
from privopt.engine.protocol import Engine, EngineName
from privopt.engine.receiving import Asked as AskedOfUnits
from privopt.engine.receiving import ReceivingEngine
from privopt.errors import ArgumentError
from privopt.later import jax, jnp
from privopt.ledger.events import EveryUnit, Poisson, Sampling
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import in_float64
from privopt.public import Public, Relation
from privopt.queries.base import ArgminQuery, MeanQuery, ObjectiveQuery, PassQuery, Query, RecordsQuery
from privopt.queries.lots import LotSum, drawn_lots, without_lot
from privopt.queries.received import RECEIVABLE
from privopt.queries.values import called_on_host
from privopt.testing.queries import SLACK, Asked
from privopt.testing.toy_data import (
    ContractViolation,
    Layout,
    Rule,
    Setting,
    Storage,
    hostile_codes,
    hostile_numbers,
    hostile_targets,
    settings,
)

# ---- Small hostile tables and the units that change in them: drawn, or a step from the worst one so far ----
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Unit:
    """The records of one unit, as its owner gives them: features (records, d) and targets (records,), any numbers."""

    features: Numbers
    targets: Numbers


@dataclass(frozen=True)
class Table:
    """Units in order, one of which is looked at; it may be missing where units come and go.

    Attributes:
        setting: how the data are stored, with the public number of units.
        others: the units that stay.
        place: where the one that changes stands among them.
        changed: that unit; None where it is absent.
    """

    setting: Setting
    others: tuple[Unit, ...]
    place: int
    changed: Unit | None

    @property
    def position(self) -> int:
        """Where the changed unit is stored: a user without a record is nowhere."""
        return self.place - sum(not len(unit.targets) for unit in self.others[: self.place])

    @property
    def is_gone(self) -> bool:
        """Whether nobody stands at that position: the unit is absent, or a user without a record."""
        return self.changed is None or not len(self.changed.targets)

    def with_unit(self, changed: Unit) -> "Table":
        """The neighbour that has another unit in that place."""
        return replace(self, changed=changed)

    def records(self) -> tuple[Numbers, Numbers, NDArray[np.int64]]:
        """All features (records, d), targets, and the position of each record's owner."""
        listed: list[Unit | None] = list(self.others)
        listed.insert(self.place, self.changed)
        present = [(place, unit) for place, unit in enumerate(listed) if unit is not None]
        features = [unit.features for _, unit in present]
        targets = [unit.targets for _, unit in present]
        owners = [np.full(len(unit.targets), place) for place, unit in present]
        width = self.setting.columns
        return (
            np.concatenate([np.zeros((0, width)), *features]),
            np.concatenate([np.zeros(0), *targets]),
            np.concatenate([np.zeros(0, np.int64), *owners]),
        )

    def units(self) -> Units:
        """The same as stored units."""
        features, targets, owners = self.records()
        return self.setting.stored(features, targets, owners if self.setting.of_users else None)


def drawn_table(rng: np.random.Generator, setting: Setting, *, full: bool, last: bool = False) -> Table:
    """A table of hostile units; where units come and go, the one that is looked at is absent and others may be.

    Args:
        rng: what draws it.
        setting: how it is stored.
        full: whether all other units are there.
        last: whether the one that is looked at is the last of them.
    """
    comes = setting.relation is Relation.ADD_OR_REMOVE_ONE
    others = setting.units - 1
    if comes and not full and rng.random() < 0.5:
        others = int(rng.integers(0, setting.units))
    # A user's position is that of its first record: one that is replaced by one without any must be the last.
    last = last or (setting.of_users and not comes)
    place = (
        others if last else (0, others // 2, others, int(rng.integers(0, others + 1)))[int(rng.integers(4))]
    )
    units = [drawn_unit(rng, setting) for _ in range(others)]
    kind = rng.random()
    if kind < 0.4 and not setting.levels:  # nobody else pulls
        units = [Unit(0.0 * np.ones_like(unit.features), np.zeros_like(unit.targets)) for unit in units]
    changed = None if comes else drawn_unit(rng, setting)
    if units and 0.4 <= kind < 0.5:  # everybody is a twin of the one that changes
        units = [changed or units[0]] * len(units)
    return Table(setting, tuple(units), place, changed)


def drawn_unit(rng: np.random.Generator, setting: Setting) -> Unit:
    """A unit of hostile or of ordinary records; of a user none, one or two."""
    count = int(rng.choice([0, 1, 2, 2])) if setting.of_users else 1
    shape = (count, setting.columns)
    if setting.levels:
        return Unit(hostile_codes(rng, shape), np.zeros(count))
    if rng.random() < 0.5:
        return Unit(hostile_numbers(rng, shape), hostile_targets(rng, count))
    targets = rng.choice([rng.choice([-1.0, 0.0, 1.0, 2.0]), rng.normal() * 10.0 ** rng.uniform(-3, 9)])
    return Unit(rng.normal(size=shape) * 10.0 ** rng.uniform(-3.0, 3.0), np.full(count, targets))


def next_unit(
    rng: np.random.Generator, setting: Setting, best: Unit, table: Table, other: Unit | None
) -> Unit:
    """A unit to try: another one, the opposite of the one on the other side, or one near the best so far.

    Args:
        rng: what draws it.
        setting: how it is stored.
        best: the unit in this place that moved the value furthest.
        table: whose units may be copied.
        other: the unit that the neighbour has in this place; None if it has none.
    """
    step = int(rng.integers(8))
    if step < 2 or not len(best.targets):
        return drawn_unit(rng, setting)
    if step == 2 and other is not None:
        signs = rng.choice([-1.0, 1.0], 2)
        return Unit(signs[0] * other.features, signs[1] * other.targets)
    if step == 3 and table.others:
        return table.others[int(rng.integers(len(table.others)))]
    return _near(rng, setting, best)


def _near(rng: np.random.Generator, setting: Setting, best: Unit) -> Unit:
    """The best unit with one thing changed: its size, its target's, an entry, or everything a little."""
    features, targets = best.features.copy(), best.targets.copy()
    row = int(rng.integers(len(targets)))
    if setting.levels:
        features[row, int(rng.integers(setting.columns))] = hostile_codes(rng, (1, 1))[0, 0]
        return Unit(features, targets)
    kind = int(rng.integers(5))
    with np.errstate(all="ignore"):
        if kind == 0:
            features[row] *= 10.0 ** rng.uniform(-2.0, 2.0)
        elif kind == 1:
            targets[row] *= 10.0 ** rng.uniform(-2.0, 2.0) * rng.choice([-1.0, 1.0])
        elif kind == 2:
            targets[row] = rng.choice([-1.0, 0.0, 1.0, 2.0, rng.normal()])
        elif kind == 3:
            features[row, int(rng.integers(setting.columns))] = rng.choice(
                [0.0, rng.normal(), hostile_numbers(rng, (1, 1))[0, 0]]
            )
        else:
            size: Any = np.max(np.abs(features[row]), initial=0.0)
            features[row] += rng.normal(size=setting.columns) * size * 10.0 ** rng.uniform(-6.0, 0.0)
    return Unit(features, targets)


# ---- The ways in which a value is computed: by either engine, on a sample, in a compiled loop, as told -----
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
        return ratio(self.apart(one, other), self.stated)


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
        # No code means absence.
        comes = bool(setting.levels) and setting.relation is Relation.ADD_OR_REMOVE_ONE
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
        side, asked, held = opened(other), query, draw
        count = side.private_engine.private_count
        if other.is_gone:  # it takes its lot along
            asked = without_lot(query, other.position)
            held = None if draw is None else moved_up(draw, other.position, count)
        elif draw is not None:
            held = draw[draw < count]
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


# Another query of the same kind, for one round: at another point, with another clip.
Computed = TypeVar("Computed")
Varied: TypeAlias = Callable[[Query, np.random.Generator], Query]
ROUND = 32  # neighbours that are tried against one table
_LARGEST = 16  # units of a table
_FIXED = 5  # units where a program is compiled for each number of them


@dataclass(frozen=True)
class Search:
    """What a search has found.

    Attributes:
        tried: how many neighbours were compared with the other side, each a table whose value was computed.
        ways: in how many ways: combinations of engine or loop, layout, relation and format.
        largest: the largest distance moved over the stated sensitivity, the bound on rounding included.
        worst: the call that shows it again.
        refused: rounds that asked the query as it was given, since what `vary` made of it is refused.
    """

    tried: int
    ways: int
    largest: float
    worst: str
    refused: int = 0


def search_neighbours(
    query: Asked,
    *,
    columns: int,
    row_bound: float = 1.0,
    levels: Sequence[int] = (),
    relations: Sequence[Relation | str] = ("replace-one", "add-or-remove-one"),
    layouts: Sequence[Layout] = ("dense", "csr", "dense users", "csr users"),
    storages: Sequence[Storage] = ("float32", "float64"),
    ways: Sequence[Way] = WAYS,
    neighbours: int = 2_000,
    seed: int = 0,
    vary: Varied | None = None,
) -> Search:
    """Look for neighbours that move a query further than it states, by every way of computing it.

    A round takes a small table (2 to 16 units, fewer of them present under add-or-remove-one) and tries `ROUND` units
    in one place of it: hostile or ordinary ones drawn anew, the opposite of what stands there on the other side,
    copies of other units, and changes of the one that moved the value furthest so far. Under replace-one both sides
    move. Rounds take turns between the ways, in an order that follows from the seed; each has a seed of its own.

    Args:
        query: what is asked, see `check_query`.
        columns: features of a record.
        row_bound: rows are clipped to this l2 norm.
        levels: the cells of each column of a coded table.
        relations: which data sets are neighbours.
        layouts: how records are laid out; a user has up to two.
        storages: of the rows.
        ways: "fast" and "reference" engine; "sample", the fast one on a drawn part of the units; "loop" and "sampled
            loop", the sums of compiled loops; "told", of units that answer whatever they like. Those that do not
            compute such a query are left out.
        neighbours: how many to try, rounded up to whole rounds.
        seed: of the first round; the next ones follow.
        vary: makes another query for each round: at other points, with other clips. One whose sensitivity is refused
            for public reasons (a `ValueError`) is counted, and the query as given asked in its place. Default: the same
            one.
    Returns:
        How many neighbours were tried, and the largest ratio: at most 1, and near 1 where the bound is tight.
    Raises:
        ContractViolation: a unit moves it further than stated, or data make it raise or warn; with the round's call.
        ArgumentError: the query is computed in none of these ways.
    Privacy:
        The search finds mistakes; it proves nothing.
    """
    levels = tuple(levels)
    found: list[tuple[Way, Setting]] = [
        (way, setting)
        for setting in settings(
            columns, row_bound, levels, relations=relations, layouts=layouts, storages=storages
        )
        for way in ways
        if applies(way, query, setting)
    ]
    if not found:
        raise ArgumentError(
            f"nothing was tried: the query is computed in none of the ways {list(ways)!r} with "
            f"relations={list(relations)!r} and layouts={list(layouts)!r}. Leave them out, or give others."
        )
    found = [found[place] for place in np.random.default_rng(seed).permutation(len(found))]
    tried, refused, largest, worst = 0, 0, -1.0, ""
    with in_float64():
        for number, (way, setting) in zip(range(-(-neighbours // ROUND)), cycle(found), strict=False):
            again = (
                f"search_neighbours(query, columns={columns}, row_bound={row_bound}, levels={levels}, "
                f"{setting.arguments}, ways=[{way!r}], neighbours={ROUND}, seed={seed + number}"
                f"{'' if vary is None else ', vary=vary'})"
            )
            ratio, asked, as_given = _Round(way, setting, query, vary, seed + number, again).run()
            tried, refused = tried + ROUND, refused + as_given
            if ratio > largest:
                largest, worst = ratio, again
            if not ratio <= SLACK:
                what = f"one unit moves the value by {ratio:.17g} times its sensitivity"
                rule = Rule.SENSITIVITY if np.isfinite(ratio) else Rule.NOT_FINITE
                raise ContractViolation(rule, asked, what, case=f"{setting}, {way}", repeat=again)
    return Search(tried, min(len(found), tried // ROUND), largest, worst, refused)


@dataclass(frozen=True)
class _Round:
    """The neighbours of one table."""

    way: Way
    setting: Setting
    asked: Asked
    vary: Varied | None
    seed: int
    again: str

    def run(self) -> tuple[float, Query, bool]:
        """The largest ratio, the query that was asked, and whether that is the given one after a refusal."""
        kinds = f"{self.setting} {self.way}".encode()
        rng = np.random.default_rng([self.seed, *kinds])
        fixed = one_shape(self.way, self.asked)
        units = _FIXED if fixed else int(rng.integers(2, _LARGEST + 1))
        setting = replace(self.setting, units=units)
        # What a curator holds is in one secret order of positions on both sides, so the unit is the last.
        table = drawn_table(rng, setting, full=fixed, last=not isinstance(self.asked, Query))
        asked, as_given = self.asked, False
        if self.vary is not None and isinstance(asked, Query):
            varied, public = self.vary(asked, rng), table.units().public
            as_given = varied is not asked and self._quietly(lambda: _refused(varied, public))
            asked = asked if as_given else varied
        measured = self._quietly(lambda: measure(self.way, asked, table, rng))
        return self._climbed(measured, table, rng), measured.query, as_given

    def _climbed(self, measured: Measure, table: Table, rng: np.random.Generator) -> float:
        """The largest ratio that was found."""
        sides = [table, table.with_unit(drawn_unit(rng, table.setting))]
        values = [self._quietly(lambda side=side: measured.value(side)) for side in sides]
        largest = measured.ratio(*values)
        for _ in range(ROUND - 1):
            moves = 1 if table.changed is None else int(rng.integers(2))
            best, other = sides[moves].changed, sides[1 - moves].changed
            assert best is not None
            side = table.with_unit(next_unit(rng, table.setting, best, table, other))
            value = self._quietly(lambda side=side: measured.value(side))
            pair = (values[0], value) if moves else (value, values[1])
            ratio = self._quietly(lambda pair=pair: measured.ratio(*pair))
            if ratio >= largest:
                largest, sides[moves], values[moves] = ratio, side, value
        return largest

    def _quietly(self, compute: Callable[[], Computed]) -> Computed:
        """What is computed; it neither raises nor warns, whatever stands in the records."""
        try:
            with warnings.catch_warnings(), np.errstate(all="raise"):  # as a user may have set it
                warnings.simplefilter("error")
                return compute()
        except Exception as error:
            what = f"a record makes it raise a {type(error).__name__}"
            case = f"{self.setting}, {self.way}"
            raise ContractViolation(Rule.QUIET, self.asked, what, case=case, repeat=self.again) from error


def _refused(query: Query, public: Public) -> bool:
    """Whether it cannot be asked of any such data."""
    try:
        query.sensitivity(public)
    except ValueError:
        return True
    return False
