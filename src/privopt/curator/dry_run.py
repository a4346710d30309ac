"""Answers zeros: which releases a solver asks for, from public quantities only."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.curator import loops
from privopt.curator.base import Curator
from privopt.curator.dataless import Dataless
from privopt.curator.feeds import Feed
from privopt.curator.handles import Held, Stream, StreamRequest
from privopt.curator.transcript import Transcript
from privopt.data.derived import Derived
from privopt.ledger.payer import Payer
from privopt.ledger.sampling import Sampling
from privopt.ledger.unlimited import Unlimited
from privopt.mechanisms.base import HiddenState, Mechanism, StreamMechanism
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.public import Public
from privopt.queries.base import MeanQuery, Query, Scalar


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
        self._rehearsal = NoiseSource(seed=0)
        self._require = require
        self.derived = Derived(public) if derived is None else derived

    def _child(self, public: Public, ledger: Payer) -> Curator:
        child = type(self)(public, ledger=ledger, require=self._require, derived=self.derived)
        child.transcript = self.transcript
        return child

    def _disjoint_units(
        self, sizes: Sequence[int], ledgers: Sequence[Payer], in_order: bool
    ) -> list[Curator]:
        children = super()._disjoint_units(sizes, ledgers, in_order)
        for child, derived in zip(
            children, self.derived.cut([child.public for child in children]), strict=True
        ):
            assert isinstance(child, DryRun)
            child.derived = derived
        return children

    def _mapped_units(self, row_map: NDArray[np.float64], row_bound: float) -> Curator:
        child = super()._mapped_units(row_map, row_bound)
        assert isinstance(child, DryRun)
        # What is kept of the columns may follow from releases, of which only zeros are known here.
        widest = replace(child.public, d=max(child.public.d, self.derived.public.d))
        child.derived = self.derived.view(widest)
        return child

    def _require_answer(self, kind: type[Query]) -> None:
        if self._require is not None:
            self._require(kind, 0)

    def hold(self, query: MeanQuery, *, groups: int | None = None, sample: Stream | None = None) -> Held:
        """See `Curator.hold`."""
        handle = super().hold(query, groups=groups, sample=sample)
        if self._require is not None:
            vectors = self.public.n if groups is None else groups
            self._require(type(query), vectors * math.prod(query.shape(self.public)))
        return handle

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        del sensitivity, sampling
        if isinstance(mechanism, ExponentialMechanism):
            return np.zeros((), np.int64)  # the first candidate
        return np.zeros(query.shape(self.public))

    def _draw_public_seed(self, name: str) -> int:
        del name
        return 0

    def _open_stream(self, name: str, mechanism: StreamMechanism, shape: tuple[int, ...]) -> HiddenState:
        del name
        return mechanism.open(self._rehearsal, shape)

    def _answer_stream(self, request: StreamRequest, state: Any) -> Any:
        """Zeros for an answer about data; what is drawn from the hidden state is drawn from one that was fed zeros."""
        ask, declared = getattr(request.mechanism, request.name), request.mechanism.request(request.name)
        if request.query is None:
            return ask(state, self._rehearsal, **request.arguments)
        zeros = np.zeros(request.query.shape(request.source.public))
        if declared.releases:
            return zeros
        return ask(state, self._rehearsal, zeros, request.sensitivity, **request.arguments)

    def _iterate_compiled(
        self,
        step: loops.Step,
        state: Any,
        times: int,
        slots: list[loops.Slot],
        feeds: Mapping[str, Feed],
    ) -> tuple[Any, list[NDArray[Any]], list[NDArray[np.float64]]]:
        return self._iterate_eagerly(step, state, times, slots, feeds)


class Trial(DryRun):
    """Answers means by noise alone, as on data of which nothing can be read, which any solver may be given.

    All else is answered as in a dry run: zeros for statistics of held vectors, passes and streams.
    """

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        zeros = super()._answer(query, mechanism, sampling, sensitivity)
        if not isinstance(query, MeanQuery) or isinstance(mechanism, ExponentialMechanism):
            return zeros
        return mechanism.release(self._rehearsal, zeros, float(sensitivity))
