"""Which records each part has: ranges of the source where a record is a unit, else the records that its users keep."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.record_source import Description, RecordBlock, RecordSource
from privopt.data.room import MEMORY
from privopt.data.units import Units, UnitsNoise, check_units
from privopt.data.user_rows import user_rows
from privopt.engine.parts import part_ranges
from privopt.public import Public, Relation


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PartPlan:
    """What a worker reads for a part. Private.

    Attributes:
        index: of the part.
        first: position of its first unit.
        units: how many it has.
        start, stop: the records among which its own are.
        private_rows: those that its units keep, unit after unit; None for all between `start` and `stop`.
        private_offsets: where each user's begin; None where a record is a unit.
        private_weights: of each user's average.
    """

    index: int
    first: int
    units: int
    start: int
    stop: int
    private_rows: NDArray[np.int64] | None = None
    private_offsets: NDArray[np.int64] | None = None
    private_weights: NDArray[np.float64] | None = None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Layout:
    """The parts of all units.

    Attributes:
        public: what is public about the units.
        plans: one a part, in order.
        seeded: see `Units.seeded`.
        private_count: how many units there are.
    """

    public: Public
    plans: list[PartPlan]
    seeded: bool
    private_count: int


def lay_out(source: RecordSource, description: Description, noise: UnitsNoise | None) -> Layout:
    """Divide the records of a source into parts of whole units.

    Args:
        source: the records.
        description: what is public about the units.
        noise: source of the secret choice of a user's records; default: fresh, from the operating system.
    Privacy:
        A unit lies in one part because the parts are made here, from the keys of all records, never because files are
        said to be divided by user. The choice of records is that of `Units.from_arrays`.
    Raises:
        ValueError: what `Units.from_arrays` refuses, and `user_rows`.
    """
    users = user_rows(source, description, noise, MEMORY) if source.by_user else None
    units = source.rows if users is None else len(users.private_weights)
    relation = Relation.parse(description.relation)
    count = check_units(description.n, units, relation, by_user=source.by_user)
    public = dataclasses.replace(_public_of_one(source, description), n=count, relation=relation)
    if users is None:
        plans = [
            PartPlan(k, start, stop - start, start, stop)
            for k, (start, stop) in enumerate(part_ranges(units))
        ]
        return Layout(public, plans, seeded=False, private_count=units)
    plans = list[PartPlan]()
    private_order = users.private_order()
    for k, (start, stop) in enumerate(users.private_ranges or part_ranges(units)):
        low, high = users.private_offsets[start], users.private_offsets[stop]
        private_rows = private_order[low:high]
        plans.append(
            PartPlan(
                k,
                start,
                stop - start,
                int(private_rows.min(initial=source.rows)),
                int(private_rows.max(initial=-1)) + 1,
                private_rows,
                users.private_offsets[start : stop + 1] - low,
                users.private_weights[start:stop],
            )
        )
    return Layout(public, plans, seeded=users.seeded, private_count=units)


def read_part(source: RecordSource, description: Description, public: Public, plan: PartPlan) -> Units:
    """The units of a part, with the rows that `Units.from_arrays` would store; `public` describes all.

    Raises:
        DataUnavailable: the records cannot be read any more.
    """
    blocks = list(_kept_blocks(source, plan))
    features, targets = _joined_features(blocks, source), _joined_targets(blocks)
    if plan.private_rows is not None:
        private_places = np.argsort(np.argsort(plan.private_rows, kind="stable"), kind="stable")
        features, targets = features[private_places], None if targets is None else targets[private_places]
    stored = Units.from_arrays(features, targets, **_of_records(description, features.shape[0]))
    return dataclasses.replace(
        stored,
        public=public,
        private_offsets=plan.private_offsets,
        private_weights=plan.private_weights,
        first=plan.first,
    )


def _public_of_one(source: RecordSource, description: Description) -> Public:
    """What is public about units like those of the source, from the first record alone."""
    block = next(iter(source.blocks(0, min(1, source.rows))), None)
    blocks = [] if block is None else [_rows_of(block, slice(0, 1))]
    features, targets = _joined_features(blocks, source), _joined_targets(blocks)
    arguments = _of_records(description, features.shape[0])
    if source.by_user:
        arguments["groups"] = np.zeros(features.shape[0])
    return Units.from_arrays(features, targets, **arguments).public


def _of_records(description: Description, rows: int) -> dict[str, Any]:
    """The arguments that make units of so many records, whatever the number of all is."""
    return {**description.arguments(), "relation": Relation.ADD_OR_REMOVE_ONE, "n": max(rows, 2)}


def _kept_blocks(source: RecordSource, plan: PartPlan) -> Any:
    """The part's records in the order of the source, block after block."""
    if plan.private_rows is None:
        yield from source.blocks(plan.start, plan.stop)
        return
    if not len(plan.private_rows):
        return
    private_sorted = np.sort(plan.private_rows)
    start = plan.start
    for block in source.blocks(plan.start, plan.stop):
        stop = start + block.private_features.shape[0]
        low, high = np.searchsorted(private_sorted, (start, stop))
        if low < high:
            yield _rows_of(block, private_sorted[low:high] - start)
        start = stop


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
