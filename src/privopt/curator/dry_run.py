"""Answers zeros: which releases a solver asks for, from public quantities only."""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import Held, Stream, StreamRequest
from privopt.curator.transcript import Transcript
from privopt.data.storage import Derived, Extra
from privopt.data.units import Units
from privopt.engine.choose import in_memory
from privopt.engine.protocol import Engine
from privopt.ledger.events import Sampling
from privopt.ledger.payer import Payer, Unlimited
from privopt.mechanisms.base import Mechanism
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.public import Public
from privopt.queries.base import MeanQuery, Query, Scalar

if TYPE_CHECKING:
    from privopt.solvers.program import Program

# ---- What curators without data have in common: their children share their answers -------------------------


class Dataless(Curator):
    """A curator without data: children share its answers, and its handles are to nothing."""

    def _same_units(self, ledger: Payer) -> Self:
        return self._child(self.public, ledger)

    def _disjoint_units(
        self, sizes: Sequence[int], ledgers: Sequence[Payer], in_order: bool
    ) -> Sequence[Self]:
        del in_order
        return [
            self._child(self.public.block(size), ledger) for size, ledger in zip(sizes, ledgers, strict=True)
        ]

    def _mapped_units(self, row_map: NDArray[np.float64], row_bound: float) -> Self:
        self.public.require_numbers("a linear map of the rows")
        return self._child(self.public.mapped(row_map.shape[1], row_bound), self.ledger)

    def _child(self, public: Public, ledger: Payer) -> Self:
        return self._copy(public, ledger)


# ---- Answers zeros: which releases a solver asks for, from public quantities only --------------------------


class DryRun(Dataless):
    """Answers zeros: which releases a solver with a fixed plan asks for, from public quantities only.

    Args:
        public: what is public about the units.
        ledger: what pays, and refuses what was not planned; default: one that pays for everything.
        require: refuses the classes of queries that could not be answered, and numbers that could not be held, as
            `Engine.require`; default: none.
        derived: is told what the solver makes of the units.
    """

    def __init__(
        self,
        public: Public,
        *,
        ledger: Payer | None = None,
        require: Callable[[type[Query], int], None] | None = None,
        derived: Derived | None = None,
    ) -> None:
        payer = Unlimited(public.relation) if ledger is None else ledger
        super().__init__(public, payer, Transcript(public.relation))
        self._noise = NoiseSource(seed=0)
        self._require = require
        self.derived = Derived(public) if derived is None else derived

    def _child(self, public: Public, ledger: Payer) -> Self:
        child = super()._child(public, ledger)
        child._noise = NoiseSource(seed=0)
        return child

    def _disjoint_units(
        self, sizes: Sequence[int], ledgers: Sequence[Payer], in_order: bool
    ) -> Sequence[Self]:
        children = super()._disjoint_units(sizes, ledgers, in_order)
        for child, derived in zip(
            children, self.derived.cut([child.public for child in children]), strict=True
        ):
            child.derived = derived
        return children

    def _mapped_units(self, row_map: NDArray[np.float64], row_bound: float) -> Self:
        child = super()._mapped_units(row_map, row_bound)
        # What is kept of the columns may follow from releases, of which only zeros are known here.
        widest = replace(child.public, d=max(child.public.d, self.derived.public.d))
        child.derived = self.derived.view(widest)
        return child

    def _require_answer(self, kind: type[Query]) -> None:
        if self._require is not None:
            self._require(kind, 0)

    def _keep_points(self, held: Held, query: MeanQuery, groups: int | None, sample: Stream | None) -> None:
        if self._require is not None:
            vectors = self.public.n if groups is None else groups
            self._require(type(query), vectors * math.prod(query.shape(self.public)))

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        del sensitivity, sampling
        if isinstance(mechanism, ExponentialMechanism):
            return np.zeros((), np.int64)  # the first candidate
        return np.zeros(query.shape(self.public))

    def _answer_stream(self, request: StreamRequest, state: Any) -> Any:
        """Zeros for an answer about data; what is drawn from the hidden state is drawn from one that was fed zeros."""
        if request.query is not None and request.mechanism.request(request.name).releases:
            return self._fed(request)
        return super()._answer_stream(request, state)


class Trial(DryRun):
    """Answers means by noise alone, as on data of which nothing can be read, which any solver may be given.

    All else is answered as in a dry run: zeros for statistics of held vectors, passes and streams.
    """

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        zeros = super()._answer(query, mechanism, sampling, sensitivity)
        if not isinstance(query, MeanQuery) or isinstance(mechanism, ExponentialMechanism):
            return zeros
        return mechanism.release(self._noise, zeros, float(sensitivity))


# ------------------------------------------------------------------------------------------------------------
# What a run makes of its units, found without data, and the room for it, taken before the run is paid for.


def foresee(
    program: "Program[Any]", solve: Callable[[Curator], object], data: Units | Engine, derived: Derived
) -> None:
    """Note what a program makes of some units, and refuse what the engine cannot do.

    Args:
        program: as it will run; of one that is adaptive all is noted that it may make.
        solve: runs it.
        data: the units, or an engine; units in memory need no room of their own, and no rehearsal.
        derived: the units that it will see, and where it is noted.
    Raises:
        ValueError: the engine cannot do it.
    """
    if isinstance(data, Units) or in_memory(data):
        return
    if program.adaptive:
        derived.anything(*program.makes)
        return
    solve(DryRun(derived.public, require=data.require, derived=derived))


@contextmanager
def reserved(data: Units | Engine, extra: Extra) -> Generator[None]:
    """Around a run: the room that it needs is taken before it is paid for, and given back at its end.

    Args:
        data: the units, or an engine.
        extra: what the run takes besides.
    Raises:
        ArgumentError: there is no such room; nothing was paid.
    """
    if isinstance(data, Units):
        yield
        return
    data.reserve(extra)
    try:
        yield
    finally:
        data.reserve(Extra())
