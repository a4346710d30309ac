"""Counters: what is known of an account outside its file, so that an older copy of the file is not spent from again.

A payment is over, and data may be read, once the file *and* every counter have it. A counter that is behind the file
therefore speaks of a payment for which nothing was read, and is brought forward; one that is ahead, or that has another
hash for the same payment, speaks of another file than this one: a copy, or one that was restored.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from privopt.atomic_files import replace_file
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

    It should refuse to go back. `Account(path=..., counter=...)` takes one; it is pickled with the account.
    """

    def read(self, account: str) -> Mark | None:
        """The latest mark of an account; None where it has none yet."""
        ...

    def advance(self, mark: Mark) -> None:
        """Keep a mark for good before returning; an exception stops the run that is being paid for."""
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
        try:
            if not self.path.exists() and not self.path.is_symlink():
                return None
            return Mark(**read_json(self.path, follow=True))
        except UntrustedFile as error:
            raise AccountError(f"the counter of the account cannot be read: {error}") from None
        except (ValueError, TypeError):
            raise AccountError(f"the counter {str(self.path)!r} cannot be read: it is not one.") from None

    def advance(self, mark: Mark) -> None:
        """Replace the file.

        Raises:
            AccountError: it cannot be written.
        """
        try:
            replace_file(self.path, json.dumps(asdict(mark)).encode("utf-8"))
        except OSError as error:
            raise AccountError(
                f"the counter {str(self.path)!r} cannot be written: {error.strerror or error}. The payment may stand "
                "in the account, but nothing was read for it."
            ) from error


def check_counter(counter: Counter, file: Path, account: str, hashes: list[str]) -> None:
    """Refuse a file that a counter has moved on from.

    Args:
        counter: one of the file's.
        file: the account's.
        account: its random name.
        hashes: of the terms and of every payment in the file.
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


def _place(counter: Counter) -> str:
    if isinstance(counter, CounterBeside):
        return f"the counter {counter.path.name!r}"
    return f"the counter elsewhere ({type(counter).__name__})"
