"""Which engine computes on some units: by what computes, kernels or the plain path, and by where rows are kept."""

import dataclasses
import math
from typing import Any, Protocol

import numpy as np

from privopt.data.read_units import read_units
from privopt.data.record_source import Description, RecordSource
from privopt.data.storage import DENSE_VIEW_BYTES
from privopt.data.units import Units, UnitsNoise
from privopt.engine.in_process import InProcessEngine
from privopt.engine.placement import Placement, memory_share
from privopt.engine.protocol import Engine, EngineName, Succession
from privopt.engine.reference import ReferenceEngine
from privopt.errors import ArgumentError
from privopt.public import STORAGES, Public, Relation, row_bytes

# Rows take in this process: the stored rows, a linear map of them or the copy that CSR rows are gathered to, and an
# eighth for norms and targets, at least `RECORD_REST`. What is read and decoded at a time comes on top. Peaks of
# `privopt fit` beyond that of a fit to a thousand rows, by `benchmarks.fit_memory`, with whitening: 0.46 GB for
# 250,000 x 100, 1.08 GB for 1,000,000 x 100.
REST_SHARE, RECORD_REST = 1 / 8, 17  # of what rows take; bytes of a record
LEAST_MAPPED = 2  # bytes of an entry of a mapped row, see `Public.mapped`
READING_FACTOR, READING_MOST = 2.5, 260 * 10**6
DECODED = 4  # bytes of an entry as it is read


def engine_on(units: Units, name: EngineName) -> Engine:
    """An engine by its name.

    Args:
        units: the data.
        name: "fast" (compiled kernels where there are any) or "reference" (every query by one plain path).
    Raises:
        ValueError: another name.
    """
    if name == "fast":
        return InProcessEngine(units)
    if name == "reference":
        return ReferenceEngine(units)
    raise ValueError(f"engine must be 'fast' or 'reference', got {name!r}.")


def settled(
    placement: Placement, public_rows: int, width: int, storage: Any = "float32", entries: int | None = None
) -> Placement:
    """Where rows are kept: as was asked for, or by "auto" in memory unless they would exceed their share of it.

    What is settled stays so: free memory is asked for once, and whoever settles it again gets the same answer.

    Args:
        placement: what was asked for.
        public_rows: the most that are stored, see `most_rows`: what is chosen stands in the report.
        width: features of a row.
        storage: the format of the stored rows.
        entries: the most that a CSR row has, a public number; None of dense rows.
    """
    if placement.engine != "auto":
        return placement
    share = placement.memory or memory_share()
    fits = needed_bytes(public_rows, width, storage, entries) <= share
    return dataclasses.replace(placement, engine="memory" if fits else "stream", memory=share, chosen=True)


def needed_bytes(public_rows: int, width: int, storage: Any = "float32", entries: int | None = None) -> int:
    """What a fit takes in this process, beyond the program, if its rows are kept there; see `settled`."""
    entry = np.dtype(
        storage if storage in STORAGES else "float32"
    ).itemsize  # another is refused by whoever stores
    stored, sparse = width if entries is None else entries, entries is not None
    row, mapped = row_bytes(entry, stored, sparse=sparse), width * max(entry, LEAST_MAPPED)
    if sparse and public_rows * mapped > DENSE_VIEW_BYTES:
        mapped = 0  # computed as it is asked for
    kept, reading = row + max(row, mapped), reading_bytes(public_rows, stored)
    return math.ceil(public_rows * (kept + max(REST_SHARE * kept, RECORD_REST))) + reading


def reading_bytes(public_rows: int, entries: int) -> int:
    """What is taken besides while rows of so many entries are read."""
    return min(math.ceil(READING_FACTOR * public_rows * entries * DECODED), READING_MOST)


def held_bytes(placement: Placement) -> int | None:
    """How many bytes of points of the units a run may hold in this process; None where nothing says."""
    if placement.engine == "ray":
        from privopt.engine.on_ray.engine import GATHERED_BYTES

        return GATHERED_BYTES
    if placement.engine == "stream":
        from privopt.engine.streamed.opening import held_limit

        return held_limit(placement.memory or memory_share())
    return None


def fetched_bytes(placement: Placement, public: Public) -> int:
    """How many bytes all rows take in this process where a query needs them there at once and they lie elsewhere."""
    if placement.engine != "ray":
        return 0
    from privopt.engine.on_ray.engine import unit_bytes

    return public.n * unit_bytes(public)


class Holding(Protocol):
    """What a plan says of the units that a run needs in this process at once, see `Plan`."""

    @property
    def solver(self) -> str: ...
    @property
    def public(self) -> Public: ...
    @property
    def held(self) -> int: ...
    @property
    def needs_rows(self) -> bool: ...


def needed_at_once(plan: Holding, placement: Placement) -> int:
    """Bytes that a run holds of the units in this process besides stored rows, or of rows that it fetches."""
    return max(8 * plan.held, fetched_bytes(placement, plan.public) if plan.needs_rows else 0)


def exceeding(plan: Holding, placement: Placement) -> tuple[str, int, int] | None:
    """What a plan needs too much of in this process, in words, its bytes, and the most; None where it fits."""
    needed, limit = needed_at_once(plan, placement), held_bytes(placement)
    if limit is None or needed <= limit:
        return None
    by_points = needed == 8 * plan.held
    return (
        f"{plan.held:,} numbers of the {plan.public.unit}s" if by_points else "all rows at once",
        needed,
        limit,
    )


def require_held(plan: Holding, placement: Placement) -> None:
    """Refuse a plan that needs more of the units in this process than fits, where their rows will lie elsewhere.

    Asked before any record is read.

    Raises:
        ArgumentError: it does.
    """
    if (found := exceeding(plan, placement)) is not None:
        what, needed, limit = found
        more = "give more memory, " if placement.engine == "stream" else ""
        raise ArgumentError(
            f"{plan.solver} holds {what} in this process, {needed:,} bytes, and with engine={placement.engine!r} at "
            f"most {limit:,} are: {more}take another solver, or engine='memory'. Nothing was read."
        )


def described(engine: Engine) -> tuple[str, ...]:
    """What an engine says of the machines that hold its records; nothing, where that is this one."""
    told = getattr(engine, "described", None)
    return () if told is None else (str(told),)


def in_memory(engine: Engine) -> bool:
    """Whether it keeps its units in this process' memory: it computes every query, and has no room to reserve."""
    return type(engine) is InProcessEngine  # not one that derives from it


def most_rows(n: int, cap: int | None) -> int:
    """The most rows that n units store, a public number: one each, or the cap on the records of a user."""
    return n if cap is None else n * cap


def placed(source: RecordSource, description: Description, placement: Placement) -> Placement:
    """Where `engine_of` keeps the records of a source: what "auto" chooses is chosen here, see `settled`.

    Raises:
        ValueError: n is missing.
    """
    if description.n is None and (
        source.by_user or Relation.parse(description.relation) is not Relation.REPLACE_ONE
    ):
        raise ValueError(
            "n is missing: where the number of records is private, give the public number of units."
        )
    n = source.rows if description.n is None else description.n
    rows = most_rows(n, description.max_records_per_user if source.by_user else None)
    return settled(placement, rows, source.width, description.storage, source.most_entries)


def engine_of(
    source: RecordSource,
    description: Description,
    placement: Placement,
    *,
    noise: UnitsNoise | None = None,
    succession: Succession | None = None,
) -> Engine:
    """An engine on the records of a source, kept where they were asked to be. Its `close` gives the room back.

    Args:
        source: the records.
        description: what is public about the units.
        placement: where to keep them.
        noise: source of the secret choice of a user's records; default: fresh, from the operating system.
        succession: that it is one of.
    Privacy:
        What "auto" chooses follows from public numbers. Where a unit is a user, or may come or go, the number of
        records is private: n must be given then.
    Raises:
        ValueError: as `Units.from_arrays`; more units than a public n are refused without saying how many there are.
        DataUnavailable: the source cannot be read.
        PrivoptError: there is no room for them.
    """
    placement = placed(source, description, placement)
    if placement.engine == "stream":
        from privopt.engine.streamed.opening import open_streamed

        return open_streamed(source, description, placement, noise=noise, succession=succession)
    if placement.engine == "ray":
        from privopt.engine.on_ray.engine import open_on_ray

        return open_on_ray(source, description, placement, noise=noise)
    return InProcessEngine(read_units(source, description, noise=noise))
