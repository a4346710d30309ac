"""Which units each part has: ranges of the source where a record is a unit, else users by a hash of their keys."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.read_units import row_entries
from privopt.data.record_source import Description, RecordBlock, RecordSource
from privopt.data.unit_count import check_units
from privopt.data.units import Units, UnitsNoise
from privopt.data.user_digests import laid_out_by
from privopt.data.user_parts import part_count
from privopt.data.user_secret import UserSecret, is_secret
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


def no_records(source: RecordSource, description: Description) -> RecordBlock:
    """A block of none of the records of a source."""
    private_targets = None if description.classes is None else np.asarray(list(description.classes))[:0]
    return RecordBlock(_joined_features([], source), private_targets, np.zeros(0))


def _public_of_one(source: RecordSource, description: Description) -> Public:
    """What is public about units like those of the source, from the first record alone."""
    block = next(iter(source.blocks(0, min(1, source.rows))), None)
    blocks = [] if block is None else [_rows_of(block, slice(0, 1))]
    features, targets = _joined_features(blocks, source), _joined_targets(blocks)
    arguments = of_records(description, features.shape[0])
    if source.by_user:
        arguments["groups"] = np.zeros(features.shape[0])
    return Units.from_arrays(features, targets, **arguments).public


def of_records(description: Description, rows: int) -> dict[str, Any]:
    """The arguments that make units of so many records, whatever the number of all is."""
    return {**description.arguments(), "relation": Relation.ADD_OR_REMOVE_ONE, "n": max(rows, 2)}


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
