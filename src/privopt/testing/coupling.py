"""Neighbours with the same draws: how far a unit moves the hidden scores that vertices are drawn from.

A run on one data set is watched; on its neighbour the same program is given the same answers, while its streams are fed
with what the neighbour's records say. What the schedule was charged for bounds how far the two sets of logits differ.
"""

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from privopt.curator.handles import StreamRequest
from privopt.curator.local import LocalCurator
from privopt.curator.transcript import Transcript
from privopt.data.units import Units
from privopt.engine.protocol import Engine
from privopt.ledger.payer import Payer
from privopt.mechanisms.base import StreamMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.vertex_stream import VertexStream
from privopt.testing.forced import Forced


@dataclass
class Drawn:
    """A stream that vertices were drawn from.

    Attributes:
        mechanism: its schedule.
        state: its hidden state.
        private_logits: of every step, before the draw.
    """

    mechanism: VertexStream
    state: Any
    private_logits: list[NDArray[np.float64]] = field(default_factory=list[NDArray[np.float64]])


def _note(drawn: list[Drawn], request: StreamRequest, state: Any) -> None:
    """Keep the logits that a request is about to draw from."""
    if not isinstance(request.mechanism, VertexStream) or request.name != "draw":
        return
    mechanism = cast("Any", request.mechanism)
    stream = next((one for one in drawn if one.state is state), None)
    if stream is None:
        stream = Drawn(mechanism, state)
        drawn.append(stream)
    stream.private_logits.append(np.array(mechanism._logits(state, state.drawn), np.float64))


class Watched(LocalCurator):
    """A curator that keeps the logits of all draws, its children's as well."""

    def __init__(self, data: Units | Engine, ledger: Payer, *, noise: NoiseSource) -> None:
        super().__init__(data, ledger, noise=noise)
        self.drawn: list[Drawn] = []

    def _answer_stream(self, request: StreamRequest, state: Any) -> Any:
        _note(self.drawn, request, state)
        return super()._answer_stream(request, state)

    def _child(self, private_engine: Engine, ledger: Payer) -> "Watched":
        child = Watched(private_engine, ledger, noise=self._noise)
        child.transcript, child.drawn = self.transcript, self.drawn
        return child


class Coupled(Forced):
    """Answers from a transcript while the streams are fed with the records at hand; keeps the logits of all draws."""

    def __init__(
        self,
        data: Units | Engine,
        recorded: Transcript,
        ledger: Payer | None = None,
        *,
        noise: NoiseSource,
    ) -> None:
        """Open it; `noise` of the same seed as the run's cuts the units into the same blocks."""
        super().__init__(data, recorded, ledger)
        self._noise = noise
        self.drawn: list[Drawn] = []

    def _open_stream(self, name: str, mechanism: StreamMechanism, shape: tuple[int, ...]) -> Any:
        super()._open_stream(name, mechanism, shape)
        return LocalCurator._open_stream(self, name, mechanism, shape)

    def _answer_stream(self, request: StreamRequest, state: Any) -> Any:
        _note(self.drawn, request, state)
        LocalCurator._answer_stream(self, request, state)
        return super()._answer_stream(request, state)

    def _child(self, private_engine: Engine, ledger: Payer) -> "Coupled":
        child = Coupled(private_engine, self._recorded, ledger, noise=self._noise)
        child.transcript, child.drawn = self.transcript, self.drawn
        child.repeat(self._recorded, self._cursor)
        return child


def largest_share(one: list[Drawn], other: list[Drawn]) -> float:
    """How far the logits of two runs with the same draws differ, over the range of the pattern that allows it best.

    A step before the items of a pattern may not move at all: a share is infinite if it does.
    """
    worst = 0.0
    for left, right in zip(one, other, strict=True):
        moved = np.ptp(np.asarray(left.private_logits) - np.asarray(right.private_logits), axis=1)
        stream = left.mechanism
        bounds = np.asarray([stream.range_bounds(pattern) for pattern in stream.participation])
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(moved > 0, moved / bounds[:, : len(moved)], 0.0)
        worst = max(worst, float(np.min(np.max(shares, axis=1, initial=0.0))))
    return worst
