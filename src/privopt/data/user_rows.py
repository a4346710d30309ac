"""Which records of a source each user keeps, from its keys, read once in blocks. PRIVATE."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privopt.data import user_keys
from privopt.data.record_source import Description, RecordSource
from privopt.data.storage import finite_rows
from privopt.data.targets import check_targets, map_targets
from privopt.data.user_secret import UnitsNoise, UserSecret, is_secret
from privopt.data.users import choose_records, user_weights
from privopt.errors import ArgumentError

MOST_USER_RECORDS = 2**27  # whose keys and places, some 50 bytes each, one process holds; texts take more


@dataclass(frozen=True, eq=False, repr=False)
class UserRows:
    """The records that users keep.

    Attributes:
        private_order: their places in the source, user after user.
        private_offsets: (users + 1,) where each user's begin.
        private_weights: (users,) of each user's average.
        seeded: see `Units.seeded`.
    """

    private_order: NDArray[np.int64]
    private_offsets: NDArray[np.int64]
    private_weights: NDArray[np.float64]
    seeded: bool


def user_rows(source: RecordSource, description: Description, noise: UnitsNoise | None) -> UserRows:
    """Choose each user's records, as `Units.from_arrays` does: the same order of users, and the same choice.

    Args:
        source: the records, with keys.
        description: what is public about the units.
        noise: source of the secret choice; default: fresh, from the operating system.
    Privacy:
        Equal keys are one user wherever their records stand: all keys are looked at, and nothing is taken from how the
        records are divided into files.
    Raises:
        ArgumentError: there are more records than `MOST_USER_RECORDS`. Nothing has been read.
    """
    if source.rows > MOST_USER_RECORDS:
        raise ArgumentError(
            f"the keys of at most {MOST_USER_RECORDS:,} records of users are read at a time, and there are more: "
            "average each user's records beforehand, or protect records."
        )
    private_keys = list[Any]()
    private_usable = np.zeros(source.rows, np.bool_)
    start = 0
    for block in source.blocks(0, source.rows):
        rows = block.private_features.shape[0]
        private_targets = check_targets(block.private_targets, rows, description.classes)
        _, private_mapped = map_targets(private_targets, rows, description.classes, description.target_bounds)
        private_usable[start : start + rows] = private_mapped & finite_rows(block.private_features)
        private_keys.append(block.private_keys)
        start += rows
    codes = user_keys.user_codes(_joined(private_keys), source.rows)
    cap = description.max_records_per_user
    lottery = UserSecret.drawn(noise, source.rows).lottery(0, source.rows)
    private_order, private_offsets = choose_records(
        codes, private_usable & (codes >= 0), int(codes.max(initial=-1)) + 1, cap, lottery
    )
    private_weights = user_weights(np.diff(private_offsets), cap, description.user_weighting)
    return UserRows(
        private_order, private_offsets, private_weights, seeded=noise is not None and not is_secret(noise)
    )


def _joined(private_keys: Sequence[Any]) -> Any:
    """The keys of all blocks; where their types differ, cell by cell, since a key is its own cell's value."""
    if private_keys and all(isinstance(private_part, pd.DataFrame) for private_part in private_keys):
        return pd.concat(private_keys, ignore_index=True)
    private_parts = [np.asarray(private_part) for private_part in private_keys]
    if len({private_part.dtype.kind for private_part in private_parts}) > 1:
        private_parts = [private_part.astype(object) for private_part in private_parts]
    return np.concatenate(private_parts) if private_parts else np.zeros(0)
