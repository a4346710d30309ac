"""How far the run of one payment has come, known to the account: of copies of a run's record, one goes on.

A run that is to be resumed keeps what it released in a folder. A copy of that folder is a record as good as the folder
itself, and both would go on with noise of their own, from one payment. So the account counts the lines of the record,
as it counts its own payments: in a file beside it, and wherever else its payments are counted. A line is on disk in
the record first, then counted, then seen by the run. A record goes on that holds every line that was counted, which a
crash leaves it with at any moment; a copy that lacks one, or has another line in its place, does not.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from privopt.atomic_files import keep_names
from privopt.errors import AccountError
from privopt.ledger.counters import Counter, Mark
from privopt.ledger.spend_lock import SpendLock

_KEY = re.compile("[0-9a-f]{32}")
_MARK = re.compile(rb"([0-9]{20}) ([0-9a-f]{64})\n")
_LONG = 20 + 1 + 64 + 1  # bytes of a mark


class OwnCounter(Counter, Protocol):
    """A counter that one process, or one run of a process, has to itself."""

    def lock(self, key: str) -> None:
        """Have it for the run of this key until `unlock`, or refuse."""
        ...

    def unlock(self) -> None:
        """Let others have it."""
        ...


class Claim:
    """The right to go on with the run of one key, which one process at a time has.

    Args:
        key: of the run's payment, 32 hexadecimal digits.
        own: where its lines are counted, by one process at a time.
        elsewhere: where they are counted besides.

    Privacy:
        What the line p + 1 of a record holds is drawn once the line p is counted, and seen once it is counted itself.
        Whoever counts it has the lock, and every line that was counted before. So of all the lines p + 1 that copies of
        a record may draw, one is counted, and the rest are seen by no run: what all runs of a payment have seen
        together are the lines of one record. A process that is killed between drawing a line and counting it leaves it
        in its own folder, where somebody who takes the file apart can read it.
    """

    def __init__(self, key: str, own: OwnCounter, elsewhere: Sequence[Counter] = ()) -> None:
        self._key, self._own = require_key(key), own
        self._counters = (own, *elsewhere)

    def begin(self, hashes: Sequence[str], *, paid: bool) -> None:
        """Go on from a record, or refuse it.

        Args:
            hashes: of its lines, in their order; each stands for all before it.
            paid: whether the payment of the run was made before this process began.
        Raises:
            AccountError: the record is an older copy, or one that went its own way; or what was counted of a run that
                is paid for is missing; or another process has the claim.
        """
        self._own.lock(self._key)
        for counter in self._counters:
            self._check(counter.read(self._key), hashes, paid=paid)
        for counter in self._counters:
            mark = counter.read(self._key)
            for count in range(1 if mark is None else mark.payments + 1, len(hashes) + 1):
                counter.advance(Mark(self._key, count, hashes[count - 1]))

    def advance(self, count: int, found: str) -> None:
        """Count a line that is on disk, before anybody sees what it holds.

        Args:
            count: how many lines there are with it.
            found: its hash.
        Raises:
            AccountError: it cannot be counted, and nobody may see it.
        """
        for counter in self._counters:
            counter.advance(Mark(self._key, count, found))

    def close(self) -> None:
        """Let another process go on."""
        self._own.unlock()

    def _check(self, mark: Mark | None, hashes: Sequence[str], *, paid: bool) -> None:
        """Refuse a record that one of the counters has moved on from."""
        if mark is None:
            if paid:
                raise AccountError(
                    "the account has paid for this run, and what it counted of its releases is missing: without it a "
                    "copy of the run's folder could release the rest twice. Move the folder `.runs` beside the "
                    "account's file, and the folder of a counter elsewhere, along with the account."
                )
            return
        if mark.account != self._key:
            raise AccountError(
                "the counter of this account keeps one mark, and a run that is to be resumed needs one of its own: "
                "give a counter that keeps the marks of each name apart. Nothing was paid or read."
            )
        if not 0 < mark.payments <= len(hashes) or hashes[mark.payments - 1] != mark.hash:
            raise AccountError(
                f"the account has counted {mark.payments} lines of the record of this run, and they are not the "
                f"{len(hashes)} of this folder: it is an older copy, or another copy went on from it. What is missing "
                "was released, and would be released a second time. Go on with the folder that was used last, or give "
                "a new one and pay anew."
            )


class CounterInPlace:
    """The lines of one run, in a file of one short line that is written over.

    Args:
        path: of the file; it and its folder are made where there are none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    @classmethod
    def of(cls, account_file: Path, key: str) -> "CounterInPlace":
        """The counter of one run that an account pays for."""
        return cls(account_file.with_name(account_file.name + ".runs") / key)

    def lock(self, key: str) -> None:
        """Have it to oneself, until `unlock` or the end of the process, however that ends.

        Raises:
            AccountError: another process has it, or it cannot be opened.
        """
        del key
        folder = self._path.parent
        try:
            with suppress(FileExistsError):
                folder.mkdir()
                folder.chmod(stat.S_IMODE(folder.parent.stat().st_mode))  # whoever may pay may run
                keep_names(folder.parent)
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            keep_names(folder)
        except BlockingIOError:
            self.unlock()
            raise _busy() from None
        except OSError as error:
            self.unlock()
            raise self._unwritten(error) from None

    def unlock(self) -> None:
        """Let others have it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def read(self, account: str) -> Mark | None:
        """What is counted; None where nothing is yet.

        Raises:
            AccountError: it is no counter.
        """
        assert self._handle is not None
        stored = os.pread(self._handle, _LONG + 1, 0)
        # Zeros: the power failed before it was on the disk.
        if len(stored) < _LONG or not stored.strip(b"\0"):
            return None
        found = _MARK.fullmatch(stored)
        if found is None:
            raise AccountError(
                f"{str(self._path)!r} counts no run: it was changed by something other than privopt."
            )
        return Mark(account, int(found[1]), found[2].decode())

    def advance(self, mark: Mark) -> None:
        """Write over what was counted, for good.

        What is counted must be found by whoever comes next: once it is written, the file stands where it is looked for.

        Raises:
            AccountError: it cannot be written, or the file was removed or replaced.
        """
        assert self._handle is not None
        line = f"{mark.payments:020d} {mark.hash}\n".encode()  # of one sector of the disk
        try:
            if os.pwrite(self._handle, line, 0) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._handle)
            in_place = os.path.samestat(os.fstat(self._handle), self._path.stat())
        except FileNotFoundError:
            in_place = False
        except OSError as error:
            raise self._unwritten(error) from None
        if not in_place:
            raise AccountError(
                f"what the account counts of this run, {str(self._path)!r}, was removed or replaced while the run went "
                "on: another copy of the run's folder could release the rest twice. Bring it back."
            )

    def _unwritten(self, error: OSError) -> AccountError:
        return AccountError(
            f"the account cannot count the run in {str(self._path)!r}: {(error.strerror or 'no reason').lower()}."
        )


class RunsInMemory:
    """The lines of all runs that an account in memory has paid for, for as long as it lives."""

    def __init__(self) -> None:
        self.marks: dict[str, Mark] = {}
        self.busy: set[str] = set()
        self.lock = SpendLock()


class CounterInMemory:
    """The lines of one run of an account in memory.

    Args:
        runs: of the account. A forked child has a copy of them, and is refused.
    """

    def __init__(self, runs: RunsInMemory) -> None:
        self._runs = runs
        self._key: str | None = None

    def lock(self, key: str) -> None:
        """Have the run to oneself.

        Raises:
            AccountError: somebody has it.
            BudgetExceeded: the account was opened in another process.
        """
        with self._runs.lock:
            if key in self._runs.busy:
                raise _busy()
            self._runs.busy.add(key)
            self._key = key

    def unlock(self) -> None:
        """Let others have it."""
        if self._key is not None:
            self._runs.busy.discard(self._key)
            self._key = None

    def read(self, account: str) -> Mark | None:
        """What is counted; None where nothing is yet."""
        return self._runs.marks.get(account)

    def advance(self, mark: Mark) -> None:
        """Count one more."""
        self._runs.marks[mark.account] = mark


def _busy() -> AccountError:
    return AccountError(
        "the run of this payment goes on already, from this folder or from a copy of it: two would release the rest "
        "twice."
    )


def require_key(key: str) -> str:
    """The key of a run, which names a file.

    Raises:
        AccountError: it is none.
    """
    if not _KEY.fullmatch(key):
        raise AccountError("the key of a run is 32 hexadecimal digits: this is not one that privopt gave it.")
    return key
