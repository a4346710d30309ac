"""Where the runs of a program keep their journals: one folder, one journal a run, in the order of the runs."""

import contextlib
import fcntl
import os
import stat
import threading
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from privopt.curator.cuts import Standing
from privopt.curator.journal import FORMAT, Journal, digest, forget_keys, kept_layout, require_own, users_key
from privopt.errors import ArgumentError, DataUnavailable
from privopt.ledger.account import Account
from privopt.ledger.default_account import paying_account
from privopt.mechanisms.noise import KEPT_CHOICE
from privopt.process import Process, this_process

DATA = "name of the data"


def _here() -> tuple[Process, int]:
    return this_process(), threading.get_ident()


@dataclass
class Journals:
    """The journals of the runs that one thread makes in one folder, in their order.

    Attributes:
        folder: where they are.
        handle: of that folder, which is locked.
        data: what their user calls the data of all of them; None where an account or their files name them.
        made: those of the runs so far.
        owner: the process and the thread that they belong to.
        ended: whether the block around the runs was left: a context that was copied there, such as a task's, lives on.
    """

    folder: Path
    handle: int
    data: str | None = None
    made: list[Journal] = field(default_factory=list["Journal"])
    owner: tuple[Process, int] = field(default_factory=_here)
    ended: bool = False

    @property
    def is_here(self) -> bool:
        """Whether this is the block that they belong to: contexts are copied to threads, tasks and forked children."""
        return not self.ended and self.owner == _here()

    def next(self) -> Journal:
        """The journal of the next run.

        Raises:
            ArgumentError: it cannot be used.
        """
        self._require_locked()
        journal = Journal(self.path)
        self.made.append(journal)
        return journal

    def begun(self) -> Mapping[str, Any] | None:
        """What was asked of the next run before it was stopped; None for a run that is new.

        Raises:
            ArgumentError: its journal cannot be used.
        """
        self._require_locked()
        if not self.path.exists():
            return None
        with contextlib.closing(Journal(self.path)) as journal:
            return journal.lines[0].header if journal.lines else None

    def paid(self, account: Account) -> bool:
        """Whether this account has paid for the next run already, before it was stopped."""
        before = self.begun()
        return before is not None and account.has_paid(before.get("id", ""))

    def standing(self, origin: str, laid_out: str) -> Standing:
        """What says where the units of the next run stand, see `Standing`."""
        return Standing(origin, laid_out, kept_layout(self.path))

    def users_key(self) -> bytes | None:
        """The key that lays out the users of the next run; None in another thread, whose runs are not kept."""
        if not self.is_here:
            return None
        self._require_locked()
        return users_key(self.path)

    def _require_locked(self) -> None:
        """Refuse another folder than the one that is locked.

        Raises:
            ArgumentError: it was moved away, or replaced.
        """
        try:
            is_same = os.path.samestat(self.folder.stat(), os.fstat(self.handle))
        except OSError:
            is_same = False
        if not is_same:
            raise ArgumentError(
                f"{str(self.folder)!r} is another folder than when the runs began: it was moved or replaced, and what "
                "was released stands in the one that was there. Bring it back, and start the same program again."
            )

    def close(self) -> None:
        """Close the journals. A key of a run that was not begun has laid out what nobody asked: it is deleted."""
        for journal in self.made:
            journal.close()
        if self.is_here and not self.path.exists():
            with contextlib.suppress(DataUnavailable):
                forget_keys(self.path)
        self.ended = True

    @property
    def path(self) -> Path:
        """Of the next run's journal."""
        return self.folder / f"run-{len(self.made) + 1:04d}.journal"


_JOURNALS: ContextVar[Journals | None] = ContextVar("privopt_journals", default=None)
_ASKED: ContextVar[Mapping[str, str] | None] = ContextVar("privopt_asked", default=None)


def journals() -> Journals | None:
    """Where the runs of this context keep their releases; None where nobody asked for that, or in another thread."""
    kept = _JOURNALS.get()
    return kept if kept is not None and kept.is_here else None


def asked() -> Mapping[str, str]:
    """Digests of what the call around the next run was asked for, by name."""
    return _ASKED.get() or {}


@contextlib.contextmanager
def asking(arguments: Mapping[str, Any], account: Account | None) -> Generator[None]:
    """Around a call that makes one run: what it was asked for, compared before it reads anything.

    Args:
        arguments: public ones, by the names that a user knows them by.
        account: that was given to it.
    Raises:
        ArgumentError: the run that was stopped was asked for something else.
    """
    kept = journals()
    if kept is None:
        yield
        return
    told = {name: digest(value) for name, value in arguments.items()}
    before = kept.begun()
    if before is not None:
        require_same(kept.path, {**versions(), "account": account_named(account), DATA: kept.data}, before)
        require_same(kept.path, told, before["arguments"])
    token = _ASKED.set(told)
    try:
        yield
    finally:
        _ASKED.reset(token)


def versions() -> dict[str, Any]:
    """Of the journal's form, and of what writes it."""
    return {"format": FORMAT, "version of privopt": metadata.version("privopt")}


def account_named(account: Account | None) -> str | list[str] | None:
    """The owner's name of the data whose account in a file pays; a list for one in memory, None where none pays.

    Raises:
        AccountError: one is required, or the project's cannot be opened.
    """
    paying = paying_account(account)
    if paying is None:
        return None
    return paying.name if paying.file is not None else ["in memory"]  # no account in a file has such a name


def require_same(path: Path, asked_for: Mapping[str, Any], stated: Mapping[str, Any]) -> None:
    """Refuse what is not as it was when the run began, and say what it is.

    Raises:
        ArgumentError: something differs.
    """
    for name, value in asked_for.items():
        if name not in stated or stated[name] != value:
            raise ArgumentError(
                f"{str(path)!r} belongs to another run: it differs in its {name}. Start the program that was stopped, "
                "on the same files, or give a folder of its own."
            )


def require_named(kept: Journals, account: Account | None, origin: str, begun_as: str | None = None) -> None:
    """Refuse a run of which nothing says whose data it is: with another's journal it would release other people's.

    Args:
        kept: where its journal would be.
        account: that pays for it; one in memory says so of the runs that it has paid for itself.
        origin: what its records are read from; empty for arrays.
        begun_as: the key of the run whose releases the journal holds; None for a run that is new.
    Raises:
        ArgumentError: nothing does; nothing was paid or read.
    """
    if kept.data is not None or origin or "files" in asked():
        return
    if account is None or (account.file is None and begun_as is not None and not account.has_paid(begun_as)):
        lost = "" if account is None else "An account in memory is lost with its process. "
        raise ArgumentError(
            "a run on arrays that no account pays for cannot be resumed: fits in another order would be taken for one "
            f"another, and release some people twice. {lost}Give the account of the data (account=), name them, as in "
            "resumable(folder, data='patients 2026'), or read them from files (Table.open)."
        )


@contextlib.contextmanager
def resumable(folder: str | Path, *, data: str | None = None) -> Generator[None]:
    """Around fits and solves that go on where they were stopped, when the same program is started again.

    Every release is on disk before the solver sees it. After a crash, a power cut or `kill -9` the same calls with the
    same folder repeat the releases that were made from there and go on with fresh noise, under the same plan and the
    same payment. After a run that came to its end they give its result again, and nothing is charged. A run in another
    thread or process than the one that entered, or of a task that goes on after the block, keeps no journal, and is
    charged again when it is made again.

    Args:
        folder: made if it is not there, with access for its owner only; one that others may enter is refused. It holds
            what was released, the names of what was asked, and while a run is under way that cuts units into blocks, or
            is of users, the keys of its cuts and of where its users stand, which are secrets; the data are not in it.
            One process at a time uses it.
        data: what you call the data set that all runs inside are of, where neither an account pays for them nor files
            are read, or the account was in memory of a process that is gone: a name of your choice, written to the
            folder. A run under another name is refused. Give the runs of each data set a folder of their own: by one
            name they count as of the same people.
    Raises:
        ArgumentError: it cannot be used, or is in use by another process. Inside, a run is refused that is not the one
            that was stopped, that is of arrays without a name or an account, whose noise comes from a seed, or that
            keeps secrets which are lost with the process: streams, held points, and blocks of arrays, or of more users
            than one part holds that were opened before the block was entered, or for a run before this one.
        AccountError: inside, a run of which another copy of the folder went on.
    Privacy:
        A repeated release is charged to the run's ledger as it was; so what is repeated and what is new add up to the
        plan that was paid for. The account counts every line before the run sees it (`ledger.claims`), so of copies of
        the folder one goes on, whenever they were made. Without an account nothing knows of copies: one from an earlier
        time would go on from there with noise of its own, a second release of what came after. Do not copy or restore
        it then; the keys of a run under way belong in no copy at all.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> import privopt
        >>> features = np.linspace(-1.0, 1.0, 200)[:, None]
        >>> model = privopt.LogisticRegression(epsilon=1.0, delta=1e-6, bounds=(-1.0, 1.0), classes=[0, 1])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with privopt.resumable(folder, data="made up"):
        ...         first = model.fit(features, features[:, 0] > 0).coef_
        ...     with privopt.resumable(folder, data="made up"):
        ...         again = model.fit(features, features[:, 0] > 0).coef_
        >>> bool(first == again)
        True
    """
    path = Path(folder).absolute()  # for all runs, wherever the program goes meanwhile
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ArgumentError(
            f"the folder {str(path)!r} cannot be used: {(error.strerror or '').lower()}."
        ) from None
    name: Any = data
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise ArgumentError(f"data must be a name for the data set, such as 'patients 2026', got {data!r}.")
    kept = Journals(path, handle, data)
    try:
        require_own(path, os.fstat(handle), stat.S_ISDIR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ArgumentError(
                f"the folder {str(path)!r} is in use by another process: two that go on from the same releases would "
                "release the rest twice."
            ) from None
        token, choice = _JOURNALS.set(kept), KEPT_CHOICE.set(kept.users_key)
        try:
            yield
        finally:
            _JOURNALS.reset(token)
            KEPT_CHOICE.reset(choice)
            kept.close()
    finally:
        os.close(handle)
