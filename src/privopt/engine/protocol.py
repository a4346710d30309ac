"""What a curator asks of an engine, whatever it computes with."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privopt.data.participants import GroupDraw
from privopt.data.places import Places
from privopt.data.storage import Extra
from privopt.engine.drawn_rows import DrawnRows
from privopt.ledger.events import Sampling
from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.proofs.huberised_sum import LossSum
from privopt.public import Public
from privopt.queries.base import MeanQuery, Query, Scalar

EngineName = Literal["fast", "reference"]


@runtime_checkable
class Engine(Protocol):
    """Computes on units, wherever they are. Everything it returns but `sensitivity` is private.

    A curator asks for nothing else, so an engine need not hold the units: it may ask those who do.
    """

    @property
    def public(self) -> Public:
        """What is public about the units."""
        ...

    @property
    def seeded(self) -> bool:
        """Whether the choice of users' records came from a seed, see `Units.seeded`."""
        ...

    @property
    def origin(self) -> str:
        """What the records were read from, see `Units.origin`."""
        ...

    @property
    def laid_out(self) -> str:
        """What tells where users of several parts stand, see `Units.laid_out`."""
        ...

    @property
    def compiles(self) -> bool:
        """Whether it has `rows`, over which loops of cheap steps are compiled; if not, they run step by step.

        Every engine that holds rows does but the reference, so that all of these give the same bits.
        """
        ...

    @property
    def private_count(self) -> int:
        """How many units are there: at positions 0, 1, ...; a unit at a later position is absent."""
        ...

    def require(self, kind: type[Query], held: int = 0) -> None:
        """Refuse queries of a class that it cannot compute. Needs no data, and is asked before anything is charged.

        Args:
            kind: the class.
            held: how many numbers are to be held: those of `gather` or `gather_groups`, by public sizes. 0 for a query
                of which nothing is.
        Raises:
            ValueError: it cannot.
        """
        ...

    def sensitivity(self, query: MeanQuery, sampling: Sampling) -> Scalar:
        """How far one unit can move the exact mean of what `clipped_sum` adds up. Needs no data.

        The query's own bound, refused as in `safeguards.stated_sensitivity`, where the engine computes what a unit
        contributes. Where it is told, the bound must hold for whatever it may be told.
        """
        ...

    def clipped_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """The sum over units of their clipped contributions; not divided, `finish` not applied.

        Args:
            query: a `RecordSum` or `UnitSum`.
            private_draw: positions of the units that take part, without repetition; None for all.
        Returns:
            Parts of `PART_UNITS` units are added up each for itself, and meet in an `ExactSum`: a part may be asked
            anywhere and again, in any order.
        Privacy:
            Within `rounding_bound` of the exact sum of contributions inside the query's ball. Nothing raises, warns
            or changes shape because of a unit's values.
        """
        ...

    def gather(self, query: MeanQuery) -> NDArray[np.float64]:
        """Each unit's clipped contribution as a flat vector, (n, k); zero for an absent unit.

        Privacy:
            Of a drawn block there are `most_units` rows, which is public; it has more with a probability below 1e-12.
        """
        ...

    def gather_groups(self, query: MeanQuery, private_draw: GroupDraw) -> NDArray[np.float64]:
        """Each group's clipped contribution as a flat vector, (C, k), `data.participants`; zero for an empty group."""
        ...

    def presence(self) -> NDArray[np.bool_]:
        """Which rows of `gather` are points: all, or those of units with a record where units come and go."""
        ...

    def draw(self, sampling: Sampling, generator: np.random.Generator) -> NDArray[np.int64]:
        """The positions of the units that take part, in order. Independent of what the units hold."""
        ...

    def records(self) -> tuple[Any, NDArray[np.float64]]:
        """The stored rows and targets, for a query that sees all of them at once.

        Raises:
            ValueError: it holds none.
        """
        ...

    def objective(self, objective: HuberisedObjective) -> LossSum:
        """The sum over all records of an objective's losses, for a query that minimises it.

        Returns:
            Parts are added up each for itself and meet in an `ExactSum`, as those of `clipped_sum`.
        Raises:
            ValueError: it holds no records.
        """
        ...

    def rows(self, private_draw: NDArray[np.int64], room: int) -> DrawnRows:
        """The stored rows of records, for a compiled loop, where `compiles`.

        Args:
            private_draw: positions of the units of many steps, one step after the other: in order within a step, and
                some again in a later one.
            room: how many rows are returned, at least as many as positions: absent ones follow the drawn.
        Returns:
            NumPy arrays, aligned as `aligned_zeros`, which nobody writes to again. The format of the features is that
            of all rows, whoever is drawn.
        """
        ...

    def held_rows(self) -> DrawnRows | None:
        """All stored rows, of each position its row, if they lie in this process' memory: arrays not to be written to.

        A loop that draws a small table over and over is handed these and the positions that were drawn, and copies no
        row. None: ask for those that were drawn.
        """
        ...

    def view(self, matrix: NDArray[np.float64], row_bound: float) -> "Engine":
        """An engine of the same kind on the rows `B^T a`, clipped to `row_bound`; see `Units.mapped`."""
        ...

    def subset(self, private_places: Places, size: int) -> "Engine":
        """An engine of the same kind on the units at some places, `size` of them as far as anybody may know."""
        ...

    def reserve(self, extra: Extra) -> None:
        """Take the room, outside of this process' memory, for what a run makes of the units, in place of earlier such.

        Asked before anything is charged, and with `Extra()` at the end of the run, which gives it back.

        Raises:
            ArgumentError: there is no such room.
        """
        ...

    def close(self) -> None:
        """Give back what it holds outside of this process' memory: a spool, workers. Nothing is asked of it again.

        Engines by `view` and `subset` are closed by themselves. What is not closed is given back when nobody refers to
        the engine any more, and at the end of the process, however that comes.
        """
        ...


# ------------------------------------------------------------------------------------------------------------
# Engines that come one after the other: what one has outside of this process' memory is kept for the next.


K = TypeVar("K")


@final
class Succession:
    """Engines of one run, of which one is open at a time.

    Between two of them their room on a disk is not given back, so that no other program can take it: a run that was
    paid for goes on. Without it, each engine takes and gives back its own.
    """

    def __init__(self) -> None:
        self._kept: Any = None

    def kept(self, made: Callable[[], K]) -> K:
        """What the engine before left, or what is made for the first."""
        if self._kept is None:
            self._kept = made()
        return self._kept

    def close(self) -> None:
        """After the last engine: what is kept is given back."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def __repr__(self) -> str:
        return "Succession()"
