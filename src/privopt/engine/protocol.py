"""What a curator asks of an engine, whatever it computes with."""

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from privopt.data.groups import GroupDraw
from privopt.data.units import Units
from privopt.engine.compiled_loops import TracedRows
from privopt.ledger.sampling import Sampling
from privopt.queries.base import MeanQuery

EngineName = Literal["fast", "reference"]


class Engine(Protocol):
    """Computes on the units that it holds. Everything it returns is private.

    Attributes:
        units: the data.
        compiles: whether loops of cheap steps may be compiled over its rows; if not, they run step by step.
    """

    units: Units
    compiles: bool

    def clipped_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """The sum over units of their clipped contributions; not divided, `finish` not applied.

        Args:
            query: a `RecordSum` or `UnitSum`.
            private_draw: positions of the units that take part, without repetition; None for all.
        Privacy:
            Within `rounding_bound` of the exact sum of contributions inside the query's ball. Nothing raises, warns
            or changes shape because of a unit's values.
        """
        ...

    def gather(self, query: MeanQuery) -> NDArray[np.float64]:
        """Each unit's clipped contribution as a flat vector, (n, k); zero for an absent unit."""
        ...

    def gather_groups(self, query: MeanQuery, private_draw: GroupDraw) -> NDArray[np.float64]:
        """Each group's clipped contribution as a flat vector, (C, k), see `data.groups`; zero for an empty group."""
        ...

    def presence(self) -> NDArray[np.bool_]:
        """Which rows of `gather` are points: all, or those of units with a record where units come and go."""
        ...

    def draw(self, sampling: Sampling, generator: np.random.Generator) -> NDArray[np.int64]:
        """The positions of the units that take part, in order. Independent of what the units hold."""
        ...

    def traced_arrays(self) -> TracedRows:
        """The rows as the arrays of a compiled loop, where `compiles`."""
        ...

    def view(self, matrix: NDArray[np.float64], row_bound: float) -> "Engine":
        """An engine of the same kind on the rows `B^T a`, clipped to `row_bound`; see `Units.mapped`."""
        ...

    def on(self, private_units: Units) -> "Engine":
        """An engine of the same kind on other units."""
        ...
