"""Answers zeros: which releases a solver asks for, from public quantities only."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.curator import loops
from privopt.curator.base import Curator
from privopt.curator.dataless import Dataless
from privopt.curator.transcript import Transcript
from privopt.ledger.payer import Payer
from privopt.ledger.sampling import Sampling
from privopt.ledger.unlimited import Unlimited
from privopt.mechanisms.base import Mechanism, StreamMechanism
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.public import Public
from privopt.queries.base import Query, Scalar


class DryRun(Dataless):
    """Answers zeros: which releases a solver with a fixed plan asks for, from public quantities only."""

    def __init__(self, public: Public) -> None:
        super().__init__(public, Unlimited(public.relation), Transcript(public.relation))
        self._rehearsal = NoiseSource(seed=0)

    def _child(self, public: Public, ledger: Payer) -> Curator:
        del ledger
        child = DryRun(public)
        child.transcript = self.transcript
        return child

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        del sensitivity, sampling
        if isinstance(mechanism, ExponentialMechanism):
            return np.zeros((), np.int64)  # the first candidate
        return np.zeros(query.shape(self.public))

    def _open_stream(self, name: str, key: int, mechanism: StreamMechanism, shape: tuple[int, ...]) -> None:
        del name
        self._streams[key] = mechanism.open(self._rehearsal, shape)

    def _answer_stream(
        self,
        key: int,
        mechanism: StreamMechanism,
        method: str,
        query: Query | None,
        sensitivity: Scalar | None,
        source: Curator,
        public_arguments: dict[str, Any],
    ) -> Any:
        """Zeros for an answer about data; what is drawn from the hidden state is drawn from one that was fed zeros."""
        ask, state = getattr(mechanism, method), self._streams[key]
        if query is None:
            return ask(state, self._rehearsal, **public_arguments)
        zeros = np.zeros(query.shape(source.public))
        if method not in mechanism.silent:
            return zeros
        return ask(state, self._rehearsal, zeros, float(sensitivity or 0.0), **public_arguments)

    def _iterate_compiled(
        self, step: loops.Step, state: Any, times: int, slots: list[loops.Slot]
    ) -> tuple[Any, list[NDArray[Any]], list[NDArray[np.float64]]]:
        return self._iterate_eagerly(step, state, times, slots)
