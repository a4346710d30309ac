"""The engine for units that hold their own records: it asks each for its contribution and believes none of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privopt.data.participants import GroupDraw, drawn_positions
from privopt.data.places import Places
from privopt.data.storage import Extra
from privopt.engine.drawn_rows import DrawnRows, most_units
from privopt.engine.general_path import contribution_shape
from privopt.engine.parts import total_of_parts
from privopt.engine.reference import checked, with_typed_leaves
from privopt.engine.rounding import BLOCK_ROWS, PART_UNITS, BlockedSum
from privopt.ledger.events import Sampling
from privopt.precision import in_float64
from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.proofs.huberised_sum import LossSum
from privopt.public import Public, Relation
from privopt.queries.base import MeanQuery, Query, Scalar
from privopt.queries.received import received, received_sensitivity, require_receivable


@dataclass(frozen=True, eq=False)
class RowMap:
    """A public linear map of rows and the bound that mapped rows are clipped to, see `Units.mapped`."""

    matrix: NDArray[np.float64]
    row_bound: float


@dataclass(frozen=True, eq=False)
class Asked:
    """What every unit is asked.

    Attributes:
        query: what to compute.
        maps: of the unit's rows, one after the other, before it is computed.
        shape: of the answer, float64.
    """

    query: MeanQuery
    maps: tuple[RowMap, ...]
    shape: tuple[int, ...]


class Respondents(Protocol):
    """Those who hold the units' records."""

    @property
    def private_count(self) -> int:
        """How many there are, at positions 0, 1, ..."""
        ...

    def ask(self, asked: Asked, private_positions: NDArray[np.int64]) -> Mapping[int, Any]:
        """What each of those at some positions answers, by position; one that says nothing in time is left out.

        An answer that is not an array of the shape asked for may be anything; it counts as zero.
        """
        ...


class ReceivingEngine:
    """Adds up what units say that they contribute. Everything it returns but `sensitivity` is private.

    Args:
        public: what is public about the units, `public.drawn` under add-or-remove-one: there may be more than n.
        respondents: who holds their records.

    Privacy:
        A unit is one respondent, asked once and counted once for a sum, whatever it answers: see `queries.received`
        for what an answer is mapped to, and for the sensitivity. One that is silent counts as zero, as does one whose
        answer is no array of the right shape; sums are divided by the public n however many answered. So one unit moves
        a statistic by at most its sensitivity, without any trust in it, and nothing raises because of what it says.
        Whoever runs this engine sees the answers, and is trusted with them.
    """

    compiles = False
    seeded = False  # which records a unit uses is its own choice

    def __init__(
        self,
        public: Public,
        respondents: Respondents,
        *,
        private_positions: NDArray[np.int64] | None = None,
        maps: tuple[RowMap, ...] = (),
    ) -> None:
        self.public = public
        self._respondents = respondents
        self._maps = maps
        if private_positions is None:
            private_positions = np.arange(respondents.private_count)
        self._private_positions = private_positions

    @property
    def origin(self) -> str:
        """See `Engine.origin`: nothing is known of it."""
        return ""

    @property
    def laid_out(self) -> str:
        """See `Engine.laid_out`: nothing is known of it."""
        return ""

    @property
    def private_count(self) -> int:
        """See `Engine.private_count`."""
        return len(self._private_positions)

    def require(self, kind: type[Query], held: int = 0) -> None:
        """See `Engine.require`."""
        del held
        require_receivable(kind)

    def sensitivity(self, query: MeanQuery, sampling: Sampling) -> Scalar:
        """See `Engine.sensitivity`."""
        require_receivable(type(query))
        return received_sensitivity(query, self.public, sampling)

    def clipped_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """See `Engine.clipped_sum`."""
        private_asked = (
            self._private_positions if private_draw is None else self._private_positions[private_draw]
        )
        private_vectors = self._answers(query, private_asked)
        if len(private_vectors) <= PART_UNITS:
            return _blocked_sum(private_vectors)
        starts = range(0, len(private_vectors), PART_UNITS)
        return total_of_parts(
            (_blocked_sum(private_vectors[start : start + PART_UNITS]) for start in starts), query.radius()
        )

    def gather(self, query: MeanQuery) -> NDArray[np.float64]:
        """See `Engine.gather`."""
        private_vectors = self._answers(query, self._private_positions)
        absent = max(0, most_units(self.public) - self.private_count)
        private_flat = np.reshape(
            private_vectors, (len(private_vectors), int(np.prod(private_vectors.shape[1:])))
        )
        return np.concatenate([private_flat, np.zeros((absent, private_flat.shape[1]))])

    def gather_groups(self, query: MeanQuery, private_draw: GroupDraw) -> NDArray[np.float64]:
        """See `Engine.gather_groups`."""
        raise ValueError(
            "the units hold their own records, so no one can compute what a group of several units contributes: use a "
            "method with one point for each unit."
        )

    def presence(self) -> NDArray[np.bool_]:
        """See `Engine.presence`: all, or those who could be asked; one that is silent is the point 0."""
        private_present = np.ones(max(most_units(self.public), self.private_count), np.bool_)
        if self.public.relation is Relation.ADD_OR_REMOVE_ONE:
            private_present[self.private_count :] = False
        return private_present

    def draw(self, sampling: Sampling, generator: np.random.Generator) -> NDArray[np.int64]:
        """See `drawn_positions`."""
        return drawn_positions(sampling, generator, n=self.public.n, private_count=self.private_count)

    def records(self) -> tuple[Any, NDArray[np.float64]]:
        """See `Engine.records`."""
        raise ValueError(
            "the units hold their own records: a query that sees all of them at once cannot be answered."
        )

    def objective(self, objective: HuberisedObjective) -> LossSum:
        """See `Engine.objective`."""
        raise ValueError(
            "the units hold their own records: an objective over all of them cannot be minimised."
        )

    def rows(self, private_draw: NDArray[np.int64], room: int) -> DrawnRows:
        """See `Engine.rows`."""
        raise ValueError("the units hold their own records: this loop runs step by step, with `release`.")

    def held_rows(self) -> DrawnRows | None:
        """See `Engine.held_rows`: there are none."""
        return None

    def view(self, matrix: NDArray[np.float64], row_bound: float) -> "ReceivingEngine":
        """See `Engine.view`."""
        matrix = np.ascontiguousarray(matrix, np.float64)
        return ReceivingEngine(
            self.public.mapped(matrix.shape[1], float(row_bound)),
            self._respondents,
            private_positions=self._private_positions,
            maps=(*self._maps, RowMap(matrix, float(row_bound))),
        )

    def reserve(self, extra: Extra) -> None:
        """See `Engine.reserve`: the respondents have their own."""
        del extra

    def close(self) -> None:
        """See `Engine.close`: the respondents are not its own."""

    def subset(self, private_places: Places, size: int) -> "ReceivingEngine":
        """See `Engine.subset`."""
        private_held = private_places.within(0, self.private_count)
        return ReceivingEngine(
            self.public.block(size),
            self._respondents,
            private_positions=self._private_positions[private_held],
            maps=self._maps,
        )

    def __repr__(self) -> str:
        return f"ReceivingEngine(<private>, {self.public!r})"

    def _answers(self, query: MeanQuery, private_asked: NDArray[np.int64]) -> NDArray[np.float64]:
        """What may be added up, one row for each unit that was asked."""
        require_receivable(type(query))
        with in_float64(), np.errstate(all="ignore"):
            query = with_typed_leaves(checked(query, self.public))
            shape = contribution_shape(query, self.public)
            private_answers = self._respondents.ask(Asked(query, self._maps, shape), private_asked)
            private_vectors = np.zeros((len(private_asked), *shape))
            for row, position in enumerate(private_asked.tolist()):
                private_answer = private_answers.get(position)
                if _is_vector(private_answer, shape):
                    private_vectors[row] = private_answer
            return received(query, self.public, private_vectors)


def _blocked_sum(private_vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of what a part of the units answered."""
    total = BlockedSum(private_vectors.shape[1:])
    for start in range(0, len(private_vectors), BLOCK_ROWS):
        private_block = private_vectors[start : start + BLOCK_ROWS]
        total.add(np.sum(private_block, axis=0), len(private_block))
    return total.total()


def _is_vector(private_answer: Any, shape: tuple[int, ...]) -> bool:
    return (
        isinstance(private_answer, np.ndarray)
        and private_answer.dtype == np.float64
        and private_answer.shape == shape
    )
