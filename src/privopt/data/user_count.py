"""How many users the keys of a source name, each key read once. PRIVATE."""

from collections.abc import Iterator, Sequence

import numpy as np

from privopt.data.record_source import RecordSource
from privopt.data.room import Room
from privopt.data.user_digests import NOBODY, Digests, user_digests
from privopt.data.user_parts import UserRecords
from privopt.data.user_runs import AT_ONCE, UserRuns
from privopt.data.user_secret import UserSecret

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
