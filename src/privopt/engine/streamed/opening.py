"""The streamed engine: an `InProcessEngine` on units whose arrays lie in a spool."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from privopt.data.read_units import entry_bytes, most_entries, read_units, stored_bytes
from privopt.data.record_source import Description, RecordSource
from privopt.data.room import Room
from privopt.data.storage import Extra
from privopt.data.targets import check_units
from privopt.data.units import Units, UnitsNoise
from privopt.data.user_keys import UserSecret
from privopt.data.user_parts import AT_ONCE, NOBODY, Digests, UserRecords, UserRuns, user_digests
from privopt.engine.in_process import InProcessEngine
from privopt.engine.parts import Range
from privopt.engine.placement import Placement, memory_share
from privopt.engine.protocol import Succession
from privopt.engine.streamed.disk import NoRoom, Residency
from privopt.engine.streamed.spool import KeptRoom, Spool
from privopt.errors import ArgumentError, DataUnavailable
from privopt.public import Relation
from privopt.queries.base import Query

LEAST_HELD = 2**25  # bytes of points of the units that may always be held in memory
_GONE = "the engine was closed, and its spool is given back: open the table again."
_MADE = "what the run makes of the rows, such as a linear map of them or blocks"


class StreamedEngine(InProcessEngine):
    """Computes on units in a spool, of which a limited part is in memory at a time. All it returns is private.

    Every array that grows with the number of units lies in the spool, those of a view or of a block of the units in a
    spool of their own: `InProcessEngine` computes on them as on any others, and its results have the same bits.

    Args:
        units: in a spool.
        threads: see `InProcessEngine`.
        private_ranges: likewise.
        private_read: how many records were read, and the bytes of the entries of CSR rows, or the most of them where
            that is known; for `reserve`.
        private_apart: bytes of entries that lie in files of their own, though room is kept for the engine after this.
        counted: whether all these sizes are public, so that an error may say how much room is missing.
    """

    def __init__(
        self,
        units: Units,
        *,
        threads: int | None = None,
        private_ranges: Sequence[Range] | None = None,
        private_read: tuple[int, int] | None = None,
        private_apart: int = 0,
        counted: bool = False,
    ) -> None:
        super().__init__(units, threads=threads, private_ranges=private_ranges)
        self._private_read, self._private_apart, self._counted = private_read, private_apart, counted

    def require(self, kind: type[Query], held: int = 0) -> None:
        """See `Engine.require`: it computes every query, and holds in memory what is held."""
        room = self.units.room
        limit = held_limit(room.memory if isinstance(room, Spool) else 0)
        if 8 * held > limit:
            raise ValueError(
                f"{kind.__name__} is to be held for each unit in the memory of this process, beside the spool: "
                f"{held:,} numbers take {8 * held:,} bytes, more than the {limit:,} that rows may have: give more "
                "memory (--memory), or take a solver that asks for means."
            )

    def reserve(self, extra: Extra) -> None:
        """See `Engine.reserve`: room on the disk.

        Privacy:
            What is refused follows from public numbers, from what is free on the disk, and from the number of records:
            that which `open_streamed` has asked the disk about already. Of CSR rows it follows from the most entries
            that the schema allows; only where a set of indices has no `max_active` from their number, which the size of
            the spool shows in any case.
        """
        room = self.units.room
        if not isinstance(room, Spool):
            if extra != Extra():
                raise DataUnavailable(_GONE)
            return
        if self._private_read is None:  # of a view, or a block: of its own rows
            private_records, private_entries = len(self.units.private_targets), 0
        else:
            private_records, private_entries = self._private_read
        private_sizes = (private_records, private_entries, len(self._private_ranges))
        apart = self._private_apart if extra != Extra() else 0
        try:
            room.reserve(extra.bytes(*private_sizes) + apart, extra.anew_bytes(*private_sizes) + apart)
        except NoRoom as error:
            raise ArgumentError(f"{_told(error, self._counted)} It is needed for {_MADE}.") from None

    def close(self) -> None:
        """See `Engine.close`."""
        room = self.units.room
        closed: Any = _Closed(self.units.public, self.units.seeded)
        self.__dict__.pop("_parts", None)
        no_units = [(0, 0)] * 2
        InProcessEngine.__init__(self, closed, threads=self._threads, private_ranges=no_units)
        if isinstance(room, Spool):
            room.close()

    def __repr__(self) -> str:
        return f"StreamedEngine({self.units!r})"


class _Closed:
    """In the place of units that were given back: what is public of them."""

    def __init__(self, public: Any, seeded: bool) -> None:
        self.public, self.seeded = public, seeded
        self.room = self.private_norms = None

    def __getattr__(self, name: str) -> NoReturn:
        raise DataUnavailable(_GONE)

    def __repr__(self) -> str:
        return "closed"


def open_streamed(
    source: RecordSource,
    description: Description,
    placement: Placement,
    *,
    noise: UnitsNoise | None = None,
    succession: Succession | None = None,
) -> StreamedEngine:
    """Read the records of a source into a spool, each clipped as it is read, for an engine that computes on them there.

    Args:
        source: the records.
        description: what is public about the units.
        placement: the folder of the spool, which is made (mode 0700) if it is not there, and how much memory its pages
            may take.
        noise: source of the secret choice of a user's records; default: fresh, from the operating system.
        succession: of engines on the same records, stored in other ways, of which this is one.
    Privacy:
        The units are those of `Units.from_arrays`, see `read_units`; what the files are open to, `Spool` says. The size
        of the spool shows how many records were read, as the memory of a run in memory does. An error says how much
        room is missing only where that follows from public numbers: records are the units, under replace-one, and the
        entries of CSR rows are those that the schema allows.
    Raises:
        ValueError: as `Units.from_arrays`; or the folder cannot be used, or has no room for the rows. Nothing has been
            read then.
        DataUnavailable: the source cannot be read, or the disk is full halfway. Nothing stays on the disk.
    """
    if not source.by_user:  # what can be refused without a spool
        check_units(description.n, source.rows, Relation.parse(description.relation), by_user=False)
    folder, kept = _folder(placement.spool), None

    def residency() -> Residency:
        return Residency(placement.memory or memory_share())

    entries = most_entries(source, description)
    counted = not source.by_user and Relation.parse(description.relation) is Relation.REPLACE_ONE
    counted &= entries is not None or not source.is_sparse
    if succession is not None:
        kept = succession.kept(lambda: KeptRoom(folder, residency()))
        if entries is None and kept.private_grown:
            entries = kept.private_grown + source.rows  # of a constant
    size = stored_bytes(source, description, entries)
    try:
        spool = Spool(folder, size, residency()) if kept is None else kept.spool(size)
    except NoRoom as error:
        raise ArgumentError(_told(error, counted)) from None
    try:
        units: Units = read_units(source, description, noise=noise, room=spool, private_most=entries)
    except BaseException as error:
        spool.close()
        if isinstance(error, NoRoom):
            raise DataUnavailable(_told(error, counted)) from None
        raise
    stored = units.private_features
    private_entries, private_apart = getattr(stored, "nnz", 0) if entries is None else entries, 0
    if kept is not None and entries is None and source.is_sparse:
        # Of users, the next spool has room for a copy of all that are read, this one for those that they keep.
        private_apart = (1 + source.by_user) * entry_bytes(kept.private_grown, description)
    return StreamedEngine(
        units,
        private_read=(source.rows, entry_bytes(private_entries, description)),
        private_apart=private_apart,
        counted=counted,
    )


def _told(error: NoRoom, counted: bool) -> str:
    """What the disk said, and how much is missing, if that may be said."""
    if not counted:
        return f"{error} How much is missing is not said here: it would tell how many records there are."
    if error.private_missing is None:
        return str(error)
    return f"{error} At least {error.private_missing / 1e6:,.1f} MB are missing."


def held_limit(memory: int) -> int:
    """How many bytes of points of the units may be held, beside the spool's pages in memory.

    Args:
        memory: how many the pages may have.
    """
    return max(memory, LEAST_HELD)


def counted_users(source: RecordSource, placement: Placement) -> int:
    """How many users the keys of a source name, counted in a spool, or in memory where the records shall be there.

    Public under replace-one only.

    Args:
        source: the records, with keys.
        placement: see `open_streamed`; "auto" counts in memory what fits its share there, whoever the records are of.
    Raises:
        ArgumentError: the folder of the spool cannot be used, or has no room.
        DataUnavailable: the source cannot be read.
    """
    limit = placement.memory or memory_share()
    fits = placement.engine == "auto" and COUNTED_BYTES * source.rows <= limit
    if fits or placement.engine == "memory":
        return count_users(source)
    spool = Spool(_folder(placement.spool), 0, Residency(limit))
    try:
        runs = digest_runs(source.rows, spool)
    except DataUnavailable as error:
        raise ArgumentError(str(error)) from None
    return count_users(source, runs)


def _folder(given: Path | None) -> Path:
    """The folder of the spool."""
    folder = Path(tempfile.gettempdir()) if given is None else Path(given)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            f"the spool's folder {folder} cannot be used ({os.strerror(error.errno or 0)}): give a folder on a local "
            "disk that you may write to (--spool)."
        ) from None
    return folder


# ---- How many users the keys of a source name, each key read once. PRIVATE ---------------------------------
COUNTED_BYTES = 100  # of a user in memory, while users are counted there: a digest, and room to sort it


def digest_runs(rows: int, room: Room) -> UserRuns:
    """Room for the digests of the keys of so many records.

    Raises:
        DataUnavailable: there is none.
    """
    return UserRuns(rows, 1, room)


def count_users(source: RecordSource, private_runs: UserRuns | None = None) -> int:
    """How many users the keys name: public under replace-one only.

    Args:
        source: the records, with keys.
        private_runs: where digests of the keys go, sorted, of which some `AT_ONCE` are in memory; None to hold one of
            every user in memory, at most `COUNTED_BYTES` each.
    Raises:
        DataUnavailable: the source cannot be read.
    """
    if private_runs is None:
        return _counted_in_memory(_digests(source))
    for private_digests in _digests(source):
        private_first, private_rest = private_digests
        count = len(private_first)
        private_runs.append(
            UserRecords(
                private_first, private_rest, np.arange(count), np.zeros(count), np.zeros(count, np.bool_)
            )
        )
    return private_runs.count()


def _digests(source: RecordSource) -> Iterator[Digests]:
    """The digests of all keys that there are, about `AT_ONCE` at a time."""
    secret = UserSecret.drawn(None, 0)
    private_pieces, held = list[Digests](), 0
    for block in source.blocks(0, source.rows):
        private_found = user_digests(block.private_keys, block.private_features.shape[0], secret)
        private_pieces.append(private_found[:, private_found[0] != NOBODY])
        held += private_pieces[-1].shape[1]
        if held >= AT_ONCE:
            yield np.concatenate(private_pieces, axis=1)
            private_pieces, held = [], 0
    yield np.concatenate([np.zeros((2, 0), np.uint64), *private_pieces], axis=1)


def _counted_in_memory(private_found: Iterator[Digests]) -> int:
    private_known, private_new, new = np.zeros((2, 0), np.uint64), list[Digests](), 0
    for private_digests in private_found:
        private_new.append(private_digests)
        new += private_digests.shape[1]
        if new >= private_known.shape[1] // 2:  # so that not all are sorted anew each time
            private_known, private_new, new = _once([private_known, *private_new]), [], 0
    return _once([private_known, *private_new]).shape[1]


def _once(private_pieces: Sequence[Digests]) -> Digests:
    """Each different digest of some pieces, at least one, once; sorted."""
    private_all = np.concatenate(private_pieces, axis=1)
    private_all = private_all[:, np.lexsort(private_all[::-1])]
    private_new = np.ones(private_all.shape[1], np.bool_)
    private_new[1:] = np.any(private_all[:, 1:] != private_all[:, :-1], axis=0)
    return private_all[:, private_new]
