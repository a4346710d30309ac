"""Which units each part has: ranges of the source where a record is a unit, else users by a hash of their keys."""

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.places import GivenPlaces, Places
from privopt.data.read_units import of_records, row_entries
from privopt.data.record_source import Description, RecordBlock, RecordSource
from privopt.data.rows import GridRows, MappedRows, Rows, aligned_zeros
from privopt.data.storage import gather_rows
from privopt.data.targets import check_units, offsets
from privopt.data.units import Units, UnitsNoise
from privopt.data.user_keys import UserSecret, is_secret
from privopt.data.user_parts import laid_out_by, part_count
from privopt.engine.parts import part_ranges
from privopt.public import Public, Relation


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PartPlan:
    """The units of a part. Private.

    Attributes:
        index: of the part.
        first: position of its first unit, and of its first record where a record is a unit.
        units: how many it has; of users, known once all their records have arrived.
    """

    index: int
    first: int = 0
    units: int = 0


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Layout:
    """The parts of all units.

    Attributes:
        public: what is public about the units.
        plans: one a part, in order.
        seeded: see `Units.seeded`.
        secret: by which users are divided; None where a record is a unit.
    """

    public: Public
    plans: list[PartPlan]
    seeded: bool
    secret: UserSecret | None

    @property
    def laid_out(self) -> str:
        """See `Units.laid_out`."""
        return laid_out_by(self.secret) if self.secret is not None and len(self.plans) > 1 else ""


def lay_out(source: RecordSource, description: Description, noise: UnitsNoise | None) -> Layout:
    """Divide the records of a source into parts of whole units. No record is read but the first.

    Args:
        source: the records.
        description: what is public about the units; n of users, too.
        noise: source of the secret choice of a user's records; default: fresh, from the operating system.
    Privacy:
        A unit lies in one part because every record of a user is sent where a hash of the user's key says, never
        because files are said to be divided by user. How many parts there are follows from public numbers.
    Raises:
        ValueError: what `Units.from_arrays` refuses.
    """
    relation = Relation.parse(description.relation)
    known = 0 if source.by_user else source.rows
    n = check_units(description.n, known, relation, by_user=source.by_user)
    entries = row_entries(source, description)
    public = dataclasses.replace(
        _public_of_one(source, description), n=n, relation=relation, row_entries=entries
    )
    if not source.by_user:
        plans = [PartPlan(k, start, stop - start) for k, (start, stop) in enumerate(part_ranges(source.rows))]
        return Layout(public, plans, seeded=False, secret=None)
    return Layout(
        public,
        [PartPlan(part) for part in range(part_count(n, public.records_per_unit))],
        seeded=noise is not None and not is_secret(noise),
        secret=UserSecret.lasting(noise, source.rows, source.fingerprint()),
    )


def read_part(source: RecordSource, description: Description, public: Public, plan: PartPlan) -> Units:
    """The units of a part, where a record is one, with the rows of `Units.from_arrays`; `public` describes all.

    Raises:
        DataUnavailable: the records cannot be read any more.
    """
    blocks = list(source.blocks(plan.first, plan.first + plan.units))
    features, targets = _joined_features(blocks, source), _joined_targets(blocks)
    stored = Units.from_arrays(features, targets, **of_records(description, features.shape[0]))
    return dataclasses.replace(stored, public=public, first=plan.first)


def _public_of_one(source: RecordSource, description: Description) -> Public:
    """What is public about units like those of the source, from the first record alone."""
    block = next(iter(source.blocks(0, min(1, source.rows))), None)
    blocks = [] if block is None else [_rows_of(block, slice(0, 1))]
    features, targets = _joined_features(blocks, source), _joined_targets(blocks)
    arguments = of_records(description, features.shape[0])
    if source.by_user:
        arguments["groups"] = np.zeros(features.shape[0])
    return Units.from_arrays(features, targets, **arguments).public


def _rows_of(block: RecordBlock, rows: Any) -> RecordBlock:
    """Some rows of a block, without keys."""
    private_targets = block.private_targets
    return RecordBlock(
        block.private_features[rows], None if private_targets is None else private_targets[rows], None
    )


def _joined_features(blocks: Sequence[RecordBlock], source: RecordSource) -> Any:
    if source.is_sparse:
        private_parts = [block.private_features for block in blocks]
        empty = sparse.csr_array((0, source.width))
        return sparse.csr_array(sparse.vstack(private_parts, format="csr")) if private_parts else empty
    private_parts = [np.asarray(block.private_features) for block in blocks]
    if len(private_parts) == 1:
        return private_parts[0]
    return np.concatenate(private_parts) if private_parts else np.zeros((0, source.width))


def _joined_targets(blocks: Sequence[RecordBlock]) -> NDArray[Any] | None:
    private_parts = [block.private_targets for block in blocks if block.private_targets is not None]
    if not blocks:
        return np.zeros(0)
    return np.concatenate(private_parts) if private_parts else None


def cut(plans: Sequence[PartPlan], workers: int) -> list[list[PartPlan]]:
    """Parts one after the other to each of at most so many workers, as evenly as their number allows."""
    workers = min(workers, len(plans))
    ends = [len(plans) * k // workers for k in range(workers + 1)]
    return [list(plans[start:stop]) for start, stop in itertools.pairwise(ends)]


# ------------------------------------------------------------------------------------------------------------
# Stored rows on their way to or from a worker: pieces of units, and the units that they make together.


class StoredRows(NamedTuple):
    """Some units, as `Units` holds them, without what is public about all."""

    private_features: Any
    private_targets: NDArray[np.float64]
    private_norms: NDArray[np.float64]
    private_present: NDArray[np.bool_]
    private_counts: NDArray[np.int64] | None
    private_weights: NDArray[np.float64] | None

    @classmethod
    def of(cls, units: Units) -> Self:
        """Those of some units."""
        return cls(
            units.private_features,
            units.private_targets,
            units.private_norms,
            units.private_present,
            None if units.private_offsets is None else np.diff(units.private_offsets),
            units.private_weights,
        )

    @classmethod
    def joined(cls, pieces: "Sequence[StoredRows]") -> Self:
        """Those of all pieces, at least one, in order; copied."""
        columns = list(zip(*pieces, strict=True))
        by_user = pieces[0].private_counts is not None
        return cls(
            _joined_rows(columns[0]),
            *(np.concatenate(column) for column in columns[1:4]),
            *(np.concatenate(column) if by_user else None for column in columns[4:]),
        )

    def at(self, private_positions: NDArray[np.int64]) -> "StoredRows":
        """Those of the records at some positions, copied, where a unit is a record."""
        return StoredRows(
            gather_rows(self.private_features, private_positions),
            self.private_targets[private_positions],
            self.private_norms[private_positions],
            self.private_present[private_positions],
            None,
            None,
        )

    def units(self, public: Public, *, seeded: bool = False, origin: str = "") -> Units:
        """As units, not copied."""
        return Units(
            public=public,
            private_features=self.private_features,
            private_targets=self.private_targets,
            private_norms=self.private_norms,
            private_present=self.private_present,
            private_offsets=None if self.private_counts is None else offsets(self.private_counts),
            private_weights=self.private_weights,
            seeded=seeded,
            origin=origin,
        )


def _joined_rows(private_pieces: Sequence[Any]) -> Rows:
    """The rows of all pieces, stored as they are."""
    first = private_pieces[0]
    if isinstance(first, MappedRows):
        private_source = _joined_rows([private_piece.private_source for private_piece in private_pieces])
        return MappedRows(private_source, first.matrix, first.bound)
    if isinstance(first, GridRows):
        private_steps = _joined_rows([private_piece.private_steps for private_piece in private_pieces])
        return GridRows(private_steps, first.steps)  # type: ignore[arg-type]  # an array of integers
    if isinstance(first, np.ndarray):
        private_rows = aligned_zeros(sum(map(len, private_pieces)), first.shape[1], first.dtype)
        np.concatenate(private_pieces, out=private_rows)
        return private_rows
    return sparse.csr_array(sparse.vstack(private_pieces, format="csr"))


# ---- What is made of the units of a part after it has been read: mapped rows, and choices of units ---------


class Mapped(NamedTuple):
    """Mapped rows, see `Units.mapped`."""

    matrix: NDArray[np.float64]
    row_bound: float

    def at(self, parts: Sequence[int]) -> "Mapped":
        """What those who hold some parts need to know of it."""
        del parts
        return self

    def applied(self, part: int, units: Units) -> Units:
        """The units of a part after the step."""
        del part
        return units.mapped(self.matrix, self.row_bound)


class Chosen(NamedTuple):
    """Some units of each part that somebody holds, who finds them; they stay in their part. Private.

    Attributes:
        size: their public number in all parts.
        private_shares: of each part, by its index: the places in it, the position of its first unit among all, how many
            it has, and the position of the first one chosen among all that are.
    """

    size: int
    private_shares: dict[int, tuple[Places, int, int, int]]

    def applied(self, part: int, units: Units) -> Units:
        """The units of a part after the step."""
        private_places, start, count, first = self.private_shares[part]
        private_own = GivenPlaces(private_places.within(start, start + count) - start)
        return dataclasses.replace(units.subset(private_own, self.size), first=first)


class Choice(NamedTuple):
    """Some units of all parts, see `Units.subset`. Private.

    Attributes:
        size: their public number.
        private_places: where they are.
        private_ranges: where each part begins and ends.
        private_firsts: of each part, the position of the first one chosen among all that are.
    """

    size: int
    private_places: Places
    private_ranges: Sequence[tuple[int, int]]
    private_firsts: Sequence[int]

    def at(self, parts: Sequence[int]) -> Chosen:
        """What those who hold some parts need to know of it."""
        private_shares = dict[int, tuple[Places, int, int, int]]()
        for part in parts:
            start, stop = self.private_ranges[part]
            private_near = self.private_places.near(start, stop)
            private_shares[part] = (private_near, start, stop - start, self.private_firsts[part])
        return Chosen(self.size, private_shares)


SentStep = Mapped | Chosen
Step = Mapped | Choice


# ------------------------------------------------------------------------------------------------------------
# Whether a worker runs the privopt of this process: clips are enforced by the code that is where the
# records are.


class OtherCode(Exception):
    """A worker has another privopt."""


@lru_cache
def code_digest() -> str:
    """A digest of the sources of the package, as they lie on this machine's disk.

    What nobody can import, such as the files of editors, is none of them.
    """
    package = Path(__file__).parents[2]
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if not all(part.isidentifier() for part in name.with_suffix("").parts):
            continue
        content = path.read_bytes()
        found.update(f"{name.as_posix()} {len(content)} ".encode())
        found.update(content)
    return found.hexdigest()


def require_same(digest: str | None) -> None:
    """Refuse to read records for a driver of another privopt.

    Args:
        digest: of the driver's; None where the driver is this process.
    Raises:
        OtherCode: it is another.
    """
    if digest not in (None, code_digest()):
        raise OtherCode
