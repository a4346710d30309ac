"""A curator whose releases are in a journal: those that stand there are repeated, the rest are made and added."""

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from privopt.curator import loops, scan
from privopt.curator.base import Curator
from privopt.curator.cuts import Cuts, Standing, require_lasting
from privopt.curator.dry_run import DryRun
from privopt.curator.handles import Held, Stream
from privopt.curator.journal import Journal, Line
from privopt.curator.local import LocalCurator
from privopt.curator.replay import RecordedDraws
from privopt.data.blocks import Assigned
from privopt.errors import ArgumentError, ReplayMismatch
from privopt.json_values import json_value
from privopt.ledger.events import Event, NoEvent, Sampling
from privopt.ledger.payer import Payer
from privopt.mechanisms.base import HiddenState, Mechanism, StreamMechanism
from privopt.public import Public
from privopt.queries.base import MeanQuery, Query, Scalar


def refusal(what: str) -> ArgumentError:
    """Why a run that keeps secrets between its releases cannot be resumed."""
    return ArgumentError(
        f"a run that {what} cannot be resumed: what it keeps secret between its releases is lost with the process. "
        "Choose another solver, or run it without a folder for resumption."
    )


class _NoSecrets(Curator):
    """Refuses what leaves hidden state between releases, other than the cuts that `Cuts` repeats."""

    def hold(self, query: MeanQuery, *, groups: int | None = None, sample: Stream | None = None) -> Held:
        """Refused."""
        raise refusal("holds points of units")

    def _open_stream(self, name: str, mechanism: StreamMechanism, shape: tuple[int, ...]) -> HiddenState:
        raise refusal("opens a stream with hidden noise")


class Rehearsal(_NoSecrets, DryRun):
    """A dry run that refuses what a `ResumedCurator` would refuse, before anything is paid.

    Args:
        public: what is public about the units.
        standing: what says where they stand.
        ledger: pays as that of the run will, so that a solver that asks what it can afford comes to an end.
    """

    def __init__(self, public: Public, standing: Standing, ledger: Payer) -> None:
        super().__init__(public, ledger=ledger)
        self._standing = standing

    def _disjoint_units(
        self, sizes: Sequence[int], ledgers: Sequence[Payer], in_order: bool
    ) -> Sequence[Self]:
        require_lasting(self.public, self._standing)
        return super()._disjoint_units(sizes, ledgers, in_order)


class ResumedCurator(_NoSecrets, LocalCurator):
    """A curator of data that repeats what its run's journal holds, and adds to it what it releases.

    Privacy:
        Which releases were made before a crash is told by the journal alone: a line is on disk, for good, before the
        solver sees its values, and what a crash kept from being written was seen by nobody. A line is repeated where
        the solver asks the same block of units for the same name at the same price, or not at all: so it is charged to
        the ledger of the units that it was made of. What both processes released is then what one process would have
        released, with independent noise in every line. A mean that is held (`hold_mean`) is computed again: every
        function of it is charged as a release of its own, on whatever records it was computed.

        Points that are held stay refused. A test of them that was passed before a crash lets cheaper releases of *the
        same* points follow; what is passed by some points says nothing about others, however near. Which points those
        are follows from groups and orders that are lost with the process, which a key could bring back. But computed
        again on another machine, by other threads or another version of a library they are the same but for rounding
        only, and no margin of a test covers that. To see that they are the same to the last bit, a digest of them would
        have to lie in the folder, by which whoever reads it could confirm guesses of records.
    """

    journal: Journal
    cuts: Cuts

    def _parts(self, sizes: Sequence[int], in_order: bool) -> Assigned:
        return self.cuts.assigned(
            self.public,
            sizes,
            origin=self.private_engine.origin,
            laid_out=self.private_engine.laid_out,
            in_order=in_order,
            private_count=self.private_engine.private_count,
        )

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        event = sampling.event(mechanism.event())
        if (found := self._repeated(query.name, event, mechanism)) is not None:
            return found
        answer = super()._answer(query, mechanism, sampling, sensitivity)
        self._keep(query.name, event, answer, mechanism)
        return answer

    def _draw_public_seed(self, name: str) -> int:
        if (found := self._repeated(name, NoEvent())) is not None:
            return int(found)
        seed = super()._draw_public_seed(name)
        self._keep(name, NoEvent(), np.asarray(seed, np.int64))
        return seed

    def _iterate_compiled(self, loop: loops.Loop) -> loops.Looped:
        """A loop is one line: until it has ended, nobody outside of it has seen any of it."""
        slots, times = loop.slots, loop.times
        asked = json_value([[slot.name, slot.event().to_dict(), [times, *slot.shape]] for slot in slots])
        line = self.journal.next()
        if line is not None:
            if line.header.get("loop") != asked or line.header.get("block") != self._block():
                raise _other(slots[0].name, line)
            for slot, floats in zip(slots, line.header["floats"], strict=True):
                self._note_floats(slot.mechanism, floats=floats)
            ends = np.cumsum([times * math.prod(slot.shape) for slot in slots])
            values = np.split(line.values, ends[:-1])  # of all calls, one call after the other
            recorded = [part.reshape(times, *slot.shape) for slot, part in zip(slots, values, strict=True)]
            draws = RecordedDraws(recorded, self.public.d, self.transcript.exact_noise)
            return scan.run(loop, public=self.public, draws=draws, observe=lambda *_: None)
        looped = super()._iterate_compiled(loop)
        flat = np.concatenate([np.asarray(values, np.float64).reshape(-1) for values in looped.released])
        floats = [self._drew_floats(slot.mechanism) for slot in slots]
        self.journal.add({"loop": asked, "block": self._block(), "floats": floats}, flat)
        return looped

    def _repeated(self, name: str, event: Event, mechanism: Mechanism | None = None) -> Any:
        """The values of the next line of the journal; None where it has no more."""
        line = self.journal.next()
        if line is None:
            return None
        asked = self._asked(name, event)
        if any(line.header.get(key) != value for key, value in asked.items()):
            raise _other(name, line)
        if mechanism is not None:
            self._note_floats(mechanism, floats=line.header["floats"])
        return line.values

    def _keep(self, name: str, event: Event, values: Any, mechanism: Mechanism | None = None) -> None:
        """Add a line, before anybody sees the values."""
        asked = self._asked(name, event)
        self.journal.add({**asked, "floats": self._drew_floats(mechanism)}, np.asarray(values))

    def _asked(self, name: str, event: Event) -> dict[str, Any]:
        """What is asked for, as a line says it."""
        return {"name": name, "event": json_value(event.to_dict()), "block": self._block()}

    def _block(self) -> list[list[int]]:
        """Which units are asked: the block, the block of that block, and so on; of everybody nothing."""
        return [[block.cut, block.index, block.count] for block in self.lineage]

    def _drew_floats(self, mechanism: Mechanism | None) -> bool:
        """Whether noise of this mechanism was seen to be made of floats, whatever it calls itself."""
        return type(mechanism) in self._of_floats

    def _note_floats(self, mechanism: Mechanism, *, floats: bool) -> None:
        """Take over what was seen when a line was made."""
        if floats:
            self._of_floats.add(type(mechanism))


def _other(name: str, line: Line) -> ReplayMismatch:
    loop = line.header.get("loop")
    found = loop[0][0] if loop else line.header.get("name")
    return ReplayMismatch(
        f"the solver asked for {name!r} where the journal has {found!r}, or asked for it at another price or of "
        "another block: this is not the program that was stopped. Give a folder of its own."
    )
