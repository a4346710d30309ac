"""How one run cuts its units into blocks: the same way in every process that goes on with it."""

import hashlib
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from privopt.curator.journal import (
    CUTS,
    KEY_BYTES,
    USERS,
    Journal,
    forget_keys,
    kept_layout,
    new_key,
    stored_key,
)
from privopt.data.blocks import Assigned, block_assignment
from privopt.data.places import DEALT
from privopt.data.user_parts import MEAN_RECORDS, MEAN_USERS, part_count
from privopt.errors import ArgumentError
from privopt.mechanisms.noise import repeated_draws
from privopt.public import Public

_NOTHING = np.zeros(0)


class Standing(NamedTuple):
    """What says where units stand, so that another process finds them there.

    Attributes:
        origin: what they were read from, see `Units.origin`.
        laid_out: by which secret users of several parts were laid out, see `Units.laid_out`.
        kept: the same of the secret that is kept with the run, see `kept_keys.kept_layout`.
    """

    origin: str
    laid_out: str = ""
    kept: str = ""


class Cuts:
    """The cuts of one run, drawn from a key that lies beside its journal until the run has ended.

    The key is 32 bytes of the operating system, in a file of mode 0600, on disk before the first cut and so before
    anything that was released from a block. Every cut is a line of the journal, on disk before a block answers.

    Privacy:
        What disjoint blocks cost supposes one thing: that a unit is in one block, whatever the run does (see
        `block_assignment`). A process that goes on asks for the same cuts in the same order, or is refused: the line
        states the number of the cut, how many units it divides, and into which sizes. The positions follow from the
        key and the number of the cut, and the line has a digest of them, so that another key, or another version of a
        generator, is refused before a block answers: nothing but the same assignment of places to blocks comes back.
        That a place is the same unit rests on `require_lasting`: units of files whose names, sizes and times are
        compared, records in their order in the files, users in the order in which they first appear there.

        Users of several parts stand where a hash of their keys under a second secret says, and within a part in the
        order of first appearance (`user_parts`). That secret lies in a file of its own beside the journal, on disk
        before a record is read and until the run has ended, and every reading of the run takes it. Which records users
        keep of a table follows from it and from the table's files, independently of other tables
        (`UserSecret.lasting`). A line states which secret it was, as a digest of what it makes of two public keys:
        another secret, another version of the hash or of what is drawn from it, is refused before a block answers. What
        blocks cost does not rest on this secret: with any layout that was fixed without looking at the users, a
        neighbour's units stand at other places, and the key of the cuts makes every assignment as likely for these. It
        decides which records a user keeps, too, so all processes of a run keep the same, as one would. To whoever has
        it *and* the releases nothing is promised where a neighbour may move records of others by a place, as with the
        key of the cuts.

        Of records under replace-one no price rests on the key being secret: the assignment follows from public numbers
        and the key, the record that is replaced stays in its place, and the price of disjoint blocks holds for any
        fixed assignment. So it holds against whoever reads the key, too.

        Of users, and where units come and go, it does rest on it, as in one process it rests on the draws of the cut: a
        neighbour may move the units behind it by a place. To whoever does not have the key, the assignment is a random
        one whose law does not depend on the order of the places (`block_assignment`). So for each assignment of the one
        data set there is one of its neighbour, as likely, under which every other unit is in the same block; and since
        a process that goes on uses the very same assignment, and finds the units at the same places, what all processes
        of a run release together is what one would have released. The digest in the journal is keyed, so it tells
        nothing of the assignment: without the key it is a random number, whatever was assigned, a new one each cut.
        Nothing is promised of such units against somebody who has the releases and the key: who read it while the run
        was under way, as only those can who may read what this user may, or finds it in a backup. It is stored
        nevertheless: nothing else brings each unit back to its block, it decides nothing but blocks, and it is deleted
        at the end. What is amplified by sampling draws its samples anew, from noise that is never stored.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal, self._count = journal, 0
        self._path = journal.path.with_suffix(CUTS)
        self._key: bytes | None = None

    def assigned(
        self,
        public: Public,
        sizes: Sequence[int],
        *,
        origin: str,
        laid_out: str = "",
        in_order: bool,
        private_count: int,
    ) -> Assigned:
        """The next cut, see `block_assignment`.

        Args:
            public: the public side of what is cut.
            sizes: the public size of each block.
            origin: what the records were read from, see `Units.origin`.
            laid_out: by which secret users were laid out, see `Units.laid_out`.
            in_order: whether they are cut in their order.
            private_count: how many units are there.
        Raises:
            ArgumentError: units of this kind cannot be cut in a run that is to be resumed, or were cut otherwise.
        """
        require_lasting(public, Standing(origin, laid_out, kept_layout(self._journal.path)))
        self._count += 1
        asked: dict[str, Any] = {"cut": self._count, "of": public.n, "sizes": [int(size) for size in sizes]}
        asked["in_order"] = in_order
        told = {"users": laid_out} if laid_out else {}
        line = self._journal.next()
        if line is not None and any(line.header.get(name) != value for name, value in asked.items()):
            raise ArgumentError(
                f"{str(self._journal.path)!r} belongs to another run: the units are cut into other blocks than "
                "before. Give a folder of its own."
            )
        if not in_order and self._key is None:
            self._key = self._kept(begun=line is not None)
        generator = None if self._key is None else repeated_draws(self._key, self._count)
        found = block_assignment(public, sizes, None if in_order else generator, private_count=private_count)
        shown = _digest(found, self._key or b"", self._count, max(public.n, private_count))
        if line is None:
            self._journal.add({**asked, **told, "places": shown}, _NOTHING)
        elif self._journal.ended:
            return found
        elif line.header.get("users", "") != laid_out:
            raise ArgumentError(
                f"the key {str(self._path.with_suffix(USERS))!r}, or the version of numpy, pandas or randomgen, is "
                "another one than when the users were cut: they would stand at other places than before. Bring it "
                "back, or give a folder of its own."
            )
        elif line.header.get("places") != shown:
            raise ArgumentError(
                f"the key {str(self._path)!r}, or the version of numpy or randomgen, is another one than when the "
                "records were cut: they would be in other blocks than before. Bring it back, or give a folder of its "
                "own."
            )
        return found

    def forget(self) -> None:
        """Delete the keys: the run has ended, and what it released is repeated without a block.

        Raises:
            DataUnavailable: one cannot be deleted.
        """
        forget_keys(self._journal.path)

    def _kept(self, *, begun: bool) -> bytes:
        """The key; before the first cut a new one, whatever was there.

        Of a run that has ended any will do: no block answers any more.
        """
        if not begun:
            return new_key(self._path, "Nothing was cut.")
        if not self._path.exists():
            self._journal.end()
            return os.urandom(KEY_BYTES)
        return stored_key(self._path)


def require_lasting(public: Public, standing: Standing) -> None:
    """Refuse to cut units whose places another process might not find again.

    Raises:
        ArgumentError: they are not known to come from the same files, or are so many users, or users of so many records
            each, that a secret decides where they are (`user_parts`), and it is not the one that the run keeps.
    """
    if not standing.origin:
        why = "nothing says that arrays hold the same records in the same order as before: read them from files (Table)"
    elif standing.laid_out == standing.kept != "":
        return
    elif standing.laid_out or (public.by_user and part_count(public.n, public.records_per_unit) > 1):
        why = (
            f"more than {MEAN_USERS:,} users, or users of more than {MEAN_RECORDS:,} records together "
            f"(n = {public.n:,} times max_records_per_user = {public.records_per_unit:,}), are laid out from a secret, "
            "and theirs is not kept with this run: have the run open them itself (give it the Table), or open them "
            "after the run before it, inside of `resumable`"
        )
    else:
        return
    raise ArgumentError(
        f"a run that cuts the units into blocks cannot be resumed here: {why}. Or choose another solver, or run it "
        "without a folder for resumption."
    )


def _digest(found: Assigned, key: bytes, count: int, private_count: int) -> str:
    """A keyed digest of an assignment: of how many units each block has in each stretch of positions, and of the first.

    The rest follows from the key and from how numbers are drawn with it, as these do.
    """
    edges = range(DEALT, private_count, DEALT)
    hashed = hashlib.blake2b(b"%d " % count, key=key, person=b"privopt places", digest_size=32)
    for private_places, size in found:
        hashed.update(b"%d %d " % (size, len(private_places)))
        hashed.update(private_places.before(edges).tobytes())
        hashed.update(private_places.within(0, DEALT).tobytes())
    return hashed.hexdigest()
