"""How far the run of one payment has come, known to the account: of copies of a run's record, one goes on.

A run that is to be resumed keeps what it released in a folder. A copy of that folder is a record as good as the folder
itself, and both would go on with noise of their own, from one payment. So the account counts the lines of the record,
as it counts its own payments: in a file beside it, and wherever else its payments are counted. A line is on disk in
the record first, then counted, then seen by the run. A record goes on that holds every line that was counted, which a
crash leaves it with at any moment; a copy that lacks one, or has another line in its place, does not.
"""

import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from privopt.atomic_files import add_file, keep_names, replace_file
from privopt.errors import AccountError
from privopt.ledger.payer import SpendLock
from privopt.untrusted import UntrustedFile, read_json

# ------------------------------------------------------------------------------------------------------------
# Counters: what is known of an account outside its file, so that an older copy of the file is not spent
# from again.
# A payment is over, and data may be read, once the file *and* every counter have it. A counter that is behind the file
# therefore speaks of a payment for which nothing was read, and is brought forward; one that is ahead, or that has
# another hash for the same payment, speaks of another file than this one: a copy, or one that was restored.


@dataclass(frozen=True)
class Mark:
    """Where an account stands.

    Attributes:
        account: its random name.
        payments: how many were made.
        hash: of the last one.
    """

    account: str
    payments: int
    hash: str

    def __post_init__(self) -> None:
        if type(self.payments) is not int or self.payments < 0:
            raise ValueError(f"a counter holds a whole number of payments, got {self.payments!r}.")


class Counter(Protocol):
    """Keeps the latest mark of an account somewhere else: on another machine, in a data base, under another user.

    The marks of an account come one after another, and two copies of its file may both bring the next one: the second
    must be refused. `Account(path=..., counter=...)` takes a counter; it is pickled with the account. A run that is to
    be resumed has marks of its own, one for each line of its record, under a random name of the same form.
    """

    def read(self, account: str) -> Mark | None:
        """The latest mark of an account, or of a run; None where it has none yet."""
        ...

    def advance(self, mark: Mark) -> None:
        """Keep the next mark for good before returning; an exception stops the run that is being paid for."""
        ...


@dataclass(frozen=True)
class CounterBeside:
    """A small file beside the account's."""

    path: Path

    @classmethod
    def of(cls, account_file: Path) -> "CounterBeside":
        """The counter of an account's file."""
        return cls(account_file.with_name(account_file.name + ".counter"))

    def read(self, account: str) -> Mark | None:
        """What the file says; None where there is none.

        Raises:
            AccountError: it cannot be read.
        """
        del account
        return _mark_in(self.path)

    def advance(self, mark: Mark) -> None:
        """Replace the file.

        Raises:
            AccountError: it cannot be written.
        """
        try:
            replace_file(self.path, _text(mark))
        except OSError as error:
            raise _unwritten(self.path, mark, error) from error


@dataclass(frozen=True)
class CounterFolder:
    """A folder on another disk or machine, with one file a payment: what is there is never changed or removed.

    An account that was created with one finds it again by its path. A file is made by a link, which only one of several
    copies of the account can have under its number; so not even copies that pay at the same moment go on side by side.

    Args:
        folder: which exists, is kept apart from the account's file, and is not restored with it. Several accounts may
            share it.
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder).resolve())

    def read(self, account: str) -> Mark | None:
        """The mark of the largest number.

        Raises:
            AccountError: the folder cannot be reached, or what is in it cannot be read.
        """
        try:
            if not self.folder.is_dir():
                raise FileNotFoundError("no such folder")
            ours = self._of(account)
            names = [file.name for file in ours.iterdir()] if ours.is_dir() else []
        except OSError as error:
            raise AccountError(
                f"the counter's folder {str(self.folder)!r} cannot be reached ({error.strerror or error}), and the "
                "account is not used without it."
            ) from error
        marks = [name for name in names if _MARK_FILE.fullmatch(name)]
        return _mark_in(ours / max(marks)) if marks else None

    def advance(self, mark: Mark) -> None:
        """Add a file.

        Raises:
            AccountError: it cannot be written, or another copy of the account has made that payment.
        """
        path = self._of(mark.account) / f"{mark.payments:08d}.json"
        try:
            path.parent.mkdir(exist_ok=True)
            add_file(path, _text(mark))
        except FileExistsError:
            if _mark_in(path) != mark:
                raise AccountError(
                    f"payment {mark.payments} of this account was made by another copy of its file, or line "
                    f"{mark.payments} of this run by another copy of its folder, which the counter in "
                    f"{str(self.folder)!r} has seen. Bring back that copy; nothing was read or shown for this one."
                ) from None
        except OSError as error:
            raise _unwritten(path, mark, error) from error

    def _of(self, account: str) -> Path:
        if not _NAME.fullmatch(account):
            raise AccountError("the account's name is not one that privopt gave it.")
        return self.folder / account


_NAME, _MARK_FILE = re.compile("[0-9a-f]{32}"), re.compile(r"[0-9]{8}\.json")


def _mark_in(path: Path) -> Mark | None:
    """What a file says; None where there is none.

    Raises:
        AccountError: it cannot be read.
    """
    try:
        if not path.exists() and not path.is_symlink():
            return None
        return Mark(**read_json(path, follow=True))
    except UntrustedFile as error:
        raise AccountError(f"the counter of the account cannot be read: {error}") from None
    except (OSError, ValueError, TypeError):
        raise AccountError(f"the counter {str(path)!r} cannot be read: it is not one.") from None


def _text(mark: Mark) -> bytes:
    return json.dumps(asdict(mark)).encode("utf-8")


def _unwritten(path: Path, mark: Mark, error: OSError) -> AccountError:
    left = "The payment may stand in the account, but nothing was read for it."
    return AccountError(
        f"the counter {str(path)!r} cannot be written: {error.strerror or error}. "
        f"{left if mark.payments else 'No account was opened.'}"
    )


def check_counter(counter: Counter, file: Path, account: str, hashes: list[str]) -> Mark:
    """Refuse a file that a counter has moved on from.

    Args:
        counter: one of the file's.
        file: the account's.
        account: its random name.
        hashes: of the terms and of every payment in the file.
    Returns:
        Where the counter stands.
    Raises:
        AccountError: the counter is missing, is ahead, or speaks of other payments.
    """
    mark, where = counter.read(account), _place(counter)
    count = len(hashes) - 1
    if mark is None:
        raise AccountError(
            f"{where} of the account {str(file)!r} is missing: this looks like a copy, and two copies would spend one "
            "budget twice. Move the counter along with the file; if the file was copied, use the one it came from."
        )
    if mark.account != account:
        raise AccountError(f"{where} of {str(file)!r} belongs to another account: put back its own.")
    if mark.payments > count:
        raise AccountError(
            f"the account {str(file)!r} holds {count} payments, but {where} has seen {mark.payments}: the file is an "
            "older copy, or was restored. What was paid since would be spent twice. Bring back the latest file."
        )
    if hashes[mark.payments] != mark.hash:
        raise AccountError(
            f"payment {mark.payments} in the account {str(file)!r} is not the one that {where} has seen: this is a "
            "copy that went its own way. Bring back the file that the counter belongs to."
        )
    return mark


def _place(counter: Counter) -> str:
    if isinstance(counter, CounterBeside):
        return f"the counter {counter.path.name!r}"
    if isinstance(counter, CounterFolder):
        return f"the counter in {str(counter.folder)!r}"
    return f"the counter elsewhere ({type(counter).__name__})"


# ------------------------------------------------------------------------------------------------------------
# How far the run of one payment has come, known to the account: of copies of a run's record, one goes on.


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
