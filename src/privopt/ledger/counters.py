"""Counters: what is known of an account outside its file, so that an older copy of the file is not spent from again.

A payment is over, and data may be read, once the file *and* every counter have it. A counter that is behind the file
therefore speaks of a payment for which nothing was read, and is brought forward; one that is ahead, or that has another
hash for the same payment, speaks of another file than this one: a copy, or one that was restored.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from privopt.atomic_files import add_file, replace_file
from privopt.errors import AccountError
from privopt.untrusted import UntrustedFile, read_json


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
