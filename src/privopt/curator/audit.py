"""Evaluates every query of a run on a neighbouring data set as well, and records how far it moved."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from privopt.curator import loops
from privopt.curator.handles import Held, StreamRequest
from privopt.curator.local import LocalCurator
from privopt.curator.transcript import Transcript
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.payer import Payer
from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.mechanisms.base import Mechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.queries.base import ArgminQuery, MeanQuery, Query, Scalar


class Audit(LocalCurator):
    """Runs a solver on `left` and evaluates every query on the neighbour `right` as well.

    Attributes:
        moves: (query name, distance moved / stated sensitivity), one entry a release; every ratio must be at most 1.

    The same units are sampled on both sides. For an `ArgminQuery` the distance is between the noises that the two data
    sets would have needed for the same minimiser.
    """

    def __init__(
        self,
        left: Units,
        right: Units,
        ledger: Payer,
        *,
        noise: NoiseSource | None = None,
        understate: float = 0.0,
        _engines: tuple[InProcessEngine, InProcessEngine] | None = None,
        _transcript: Transcript | None = None,
    ) -> None:
        """Open the audit; `understate` shrinks every sensitivity by that fraction, to show that the audit notices."""
        super().__init__(
            left,
            ledger,
            noise=noise,
            transcript=_transcript,
            engine=None if _engines is None else _engines[0],
        )
        self._right = InProcessEngine(right) if _engines is None else _engines[1]
        self._right_held: dict[Held, NDArray[np.float64]] = {}
        self._understate = understate
        self.moves: list[tuple[str, float]] = []

    def hold(self, query: MeanQuery) -> Held:
        """See `Curator.hold`."""
        handle = super().hold(query)
        self._right_held[handle] = self._right.gather(query)
        return handle

    def _same_units(self, ledger: Payer) -> LocalCurator:
        return self._sharing_held(self._pair(self._engine, self._right, ledger))

    def _some_units(self, private_positions: NDArray[np.int64], size: int, ledger: Payer) -> LocalCurator:
        """The same positions on both sides."""
        left = InProcessEngine(self._engine.units.subset(private_positions, size))
        right = InProcessEngine(self._right.units.subset(private_positions, size))
        return self._pair(left, right, ledger)

    def _mapped_units(self, row_map: NDArray[np.float64], row_bound: float) -> LocalCurator:
        left, right = (engine.view(row_map, row_bound) for engine in (self._engine, self._right))
        return self._sharing_held(self._pair(left, right, self.ledger))

    def _sharing_held(self, curator: "Audit") -> "Audit":
        curator._private_held, curator._right_held = self._private_held, self._right_held
        return curator

    def _pair(self, left: InProcessEngine, right: InProcessEngine, ledger: Payer) -> "Audit":
        child = Audit(
            left.units,
            right.units,
            ledger,
            noise=self._noise,
            understate=self._understate,
            _engines=(left, right),
            _transcript=self.transcript,
        )
        child.moves = self.moves
        return child

    def _on_the_right(self, query: Query, sampling: Sampling, draw: NDArray[np.int64] | None) -> Any:
        engine, held = self._engine, self._private_held
        self._engine, self._private_held = self._right, self._right_held
        try:
            return self._private_value(query, sampling, draw)
        finally:
            self._engine, self._private_held = engine, held

    def _draw(self, sampling: Sampling) -> NDArray[np.int64] | None:
        """Positions of whichever side has more units."""
        wider = max(self._engine, self._right, key=lambda engine: engine.units.private_count)
        everybody = isinstance(sampling, EveryUnit)
        return None if everybody else wider.draw(sampling, self._noise.units_generator)

    def _private_value(self, query: Query, sampling: Sampling, private_draw: NDArray[np.int64] | None) -> Any:
        if private_draw is not None:
            private_draw = self._engine.units.private_held(private_draw)
        return super()._private_value(query, sampling, private_draw)

    def _compare(self, query: Query, sampling: Sampling, draw: Any, left: Any, sensitivity: float) -> None:
        right = self._on_the_right(query, sampling, draw)
        moved = distance(np.asarray(left), np.asarray(right), query.norm)
        self._note(query.name, moved, sensitivity)

    def _note(self, name: str, moved: float, sensitivity: float) -> None:
        stated = sensitivity * (1.0 - self._understate)
        measured = stated > 0 and not math.isnan(moved)  # a NaN that survived is as far as anything can move
        self.moves.append((name, 0.0 if moved == 0 else moved / stated if measured else math.inf))

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        draw = self._draw(sampling)
        private_value = self._private_value(query, sampling, draw)
        released = mechanism.release(self._noise, private_value, float(sensitivity))
        if isinstance(query, ArgminQuery):
            noises = [
                query.implied_noise(
                    self.public, e.units.private_features, e.units.private_targets, jnp.asarray(released)
                )
                for e in (self._engine, self._right)
            ]
            moved = distance(np.asarray(noises[0]), np.asarray(noises[1]), query.norm)
            self._note(query.name, moved, float(sensitivity))
        else:
            self._compare(query, sampling, draw, private_value, float(sensitivity))
        return released

    def _answer_stream(self, request: StreamRequest, state: Any) -> Any:
        if request.query is not None:
            assert isinstance(request.source, Audit)
            private_value = request.source._private_value(request.query, EveryUnit(), None)
            request.source._compare(request.query, EveryUnit(), None, private_value, request.sensitivity)
        return super()._answer_stream(request, state)

    def _iterate_compiled(
        self, step: loops.Step, state: Any, times: int, slots: list[loops.Slot]
    ) -> tuple[Any, list[NDArray[Any]], list[NDArray[np.float64]]]:
        return self._iterate_eagerly(step, state, times, slots)


def distance(left: NDArray[Any], right: NDArray[Any], norm: str) -> float:
    """How far a value moved, in the norm that its query states a sensitivity for."""
    moved = np.ravel(np.asarray(left, np.float64) - np.asarray(right, np.float64))
    if norm == "linf":
        return float(np.max(np.abs(moved), initial=0.0))
    if norm == "l1":
        return float(np.sum(np.abs(moved)))
    if norm == "range":
        return float(np.max(moved) - np.min(moved))
    return float(np.linalg.norm(moved))
