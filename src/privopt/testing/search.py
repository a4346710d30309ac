"""A search for the neighbour that moves a query furthest: drawn at random, then by steps from the worst one found."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TypeAlias, TypeVar

import numpy as np

from privopt.errors import ArgumentError
from privopt.precision import double_precision
from privopt.public import Public, Relation
from privopt.queries.base import Query
from privopt.testing.hostile_rows import Layout, Setting, Storage, settings
from privopt.testing.queries import SLACK, Asked
from privopt.testing.tables import Table, drawn_table, drawn_unit, next_unit
from privopt.testing.violation import ContractViolation, Rule
from privopt.testing.ways import WAYS, Measure, Way, applies, measure, one_shape

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
    with double_precision():
        for number, (way, setting) in zip(range(-(-neighbours // ROUND)), cycle(found), strict=False):
            again = (
                f"search_neighbours(query, columns={columns}, row_bound={row_bound}, levels={levels}, "
                f"relations=[{setting.relation.value!r}], layouts=[{setting.layout!r}], "
                f"storages=[{setting.storage!r}], ways=[{way!r}], neighbours={ROUND}, seed={seed + number}"
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
