"""The releases of a run on disk, each for good before its solver sees it, so that a restarted run can go on from there.

A journal is a file of lines that are only ever added: a JSON header with a name, an event and the shape of an array,
the array's bytes, and a hash of both and of the line before. A line that a crash cut short is dropped when the journal
is opened again: nobody has seen what it was to hold. While a journal is open its folder is locked.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import os
import struct
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.atomic_files import keep_names
from privopt.errors import ArgumentError, DataUnavailable

FORMAT = 1
_LENGTHS = struct.Struct("<QQ8s")  # of a line's header and of its array, in bytes, and a hash of these
_HASH_BYTES = 32


class Line(NamedTuple):
    """One line: what was answered, at which price, and the values."""

    header: Mapping[str, Any]
    values: NDArray[Any]


class Journal:
    """The journal of one run.

    Args:
        path: of the file; made where there is none.
    Attributes:
        lines: what stands in it.
    Raises:
        ArgumentError: the file is no journal, or was changed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        self._hash = b""
        self._position = 0
        self._owner = os.getpid()
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        except OSError as error:
            raise ArgumentError(
                f"{str(path)!r} cannot be opened: {(error.strerror or '').lower()}."
            ) from None
        self._file: BinaryIO = open(handle, "r+b", buffering=0)  # noqa: PTH123, SIM115  # a handle, kept open
        try:
            _lock(handle, path)
            self._read()
        except BaseException:
            self.close()
            raise

    def add(self, header: Mapping[str, Any], values: NDArray[Any]) -> None:
        """Add a line, for good.

        Raises:
            DataUnavailable: it could not be written; whoever asked for the values must not see them.
        """
        if os.getpid() != self._owner:
            raise DataUnavailable(
                "a run that is to be resumed belongs to the process that began it: what this forked process computed "
                "was shown to nobody."
            )
        values = np.ascontiguousarray(values)
        described = {**header, "dtype": values.dtype.str, "shape": list(values.shape)}
        name, content = json.dumps(described, allow_nan=True).encode(), values.tobytes()
        lengths, found = _lengths(self._hash, name, content), _hash(self._hash, name, content)
        try:
            self._file.seek(self._end)
            packed = b"".join((lengths, name, content, found))
            written = self._file.write(packed)
            while written < len(packed):
                written += self._file.write(packed[written:]) or 0
            os.fsync(self._file.fileno())
        except OSError as error:
            self.close()  # a later line would hide that this one is missing
            raise DataUnavailable(
                f"the journal {str(self.path)!r} cannot be written: {(error.strerror or 'no reason given').lower()}. "
                "What the run was charged stays charged; what was computed last was shown to nobody. Make room, and "
                "start the same run again to go on."
            ) from None
        self._end, self._hash = self._end + len(packed), found
        if not self.lines:
            keep_names(self.path.parent)
        self.lines.append(Line(described, values))
        self._position = len(self.lines)

    def next(self) -> Line | None:
        """The next line that was there when the journal was opened; None after the last."""
        if self._position == len(self.lines):
            return None
        self._position += 1
        return self.lines[self._position - 1]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self) -> None:
        """Read the lines; what follows the last whole one is cut off."""
        content, self._end = io.BytesIO(self._file.read()), 0
        while True:
            lengths = content.read(_LENGTHS.size)
            if len(lengths) < _LENGTHS.size:
                break
            long, size, check = _LENGTHS.unpack(lengths)
            if check != _check(self._hash, long, size):  # else a damaged length would hide what follows
                raise self._damaged()
            name, values, stored = content.read(long), content.read(size), content.read(_HASH_BYTES)
            if len(stored) < _HASH_BYTES:
                break
            found = _hash(self._hash, name, values)
            if found != stored:
                if content.read(1):  # not the end, which a crash may have left half written
                    raise self._damaged()
                break
            header = json.loads(name)  # written by us: the hash says so
            array = np.frombuffer(values, np.dtype(header["dtype"])).reshape(header["shape"])
            self.lines.append(Line(header, array))
            self._hash, self._end = found, content.tell()
        try:
            os.ftruncate(self._file.fileno(), self._end)
        except OSError as error:
            raise ArgumentError(
                f"{str(self.path)!r} cannot be written: {(error.strerror or '').lower()}."
            ) from None

    def _damaged(self) -> ArgumentError:
        return ArgumentError(
            f"{str(self.path)!r} is no journal of a run, or was changed by something other than privopt."
        )


def _lock(handle: int, path: Path) -> None:
    """One process at a time, wherever the file has a name.

    Raises:
        ArgumentError: another has it.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ArgumentError(
            f"{str(path)!r} is in use by another process: two that go on from the same releases would release the rest "
            "twice."
        ) from None


def _check(before: bytes, long: int, size: int) -> bytes:
    return hashlib.blake2b(b"%d %d" % (long, size), key=before, digest_size=8).digest()


def _lengths(before: bytes, name: bytes, values: bytes) -> bytes:
    return _LENGTHS.pack(len(name), len(values), _check(before, len(name), len(values)))


def _hash(before: bytes, name: bytes, values: bytes) -> bytes:
    digest = hashlib.blake2b(before, digest_size=_HASH_BYTES)
    digest.update(_lengths(before, name, values))
    digest.update(name)
    digest.update(values)
    return digest.digest()


@dataclass
class Journals:
    """The journals of the runs that are made in one folder, in their order."""

    folder: Path
    made: list[Journal] = field(default_factory=list["Journal"])

    def next(self) -> Journal:
        """The journal of the next run."""
        journal = Journal(self._path)
        self.made.append(journal)
        return journal

    def paid(self) -> bool:
        """Whether an account has paid for the next run already, before it was stopped."""
        if not self._path.exists():
            return False
        with contextlib.closing(Journal(self._path)) as journal:
            return len(journal.lines) > 1 and journal.lines[1].header.get("paid") is not None

    @property
    def _path(self) -> Path:
        return self.folder / f"run-{len(self.made) + 1:04d}.journal"


_JOURNALS: ContextVar[Journals | None] = ContextVar("privopt_journals", default=None)


def journals() -> Journals | None:
    """Where the runs of this context keep their releases; None where nobody asked for that."""
    return _JOURNALS.get()


@contextlib.contextmanager
def resumable(folder: str | Path) -> Generator[None]:
    """Around fits and solves that go on where they were stopped, when the same program is started again.

    Every release is on disk before the solver sees it. After a crash, a power cut or `kill -9` the same calls with the
    same folder repeat the releases that were made from there and go on with fresh noise, under the same plan and the
    same payment. After a run that came to its end they give its result again, and nothing is charged.

    Args:
        folder: made if it is not there, with access for its owner only. It holds what was released, and the names of
            what was asked; the data are not in it. One process at a time uses it.
    Raises:
        ArgumentError: it cannot be used, or is in use by another process. Inside, a run is refused whose noise comes
            from a seed, or that keeps hidden state between its releases: streams, blocks of units, held points.
    Privacy:
        A repeated release is charged to the run's ledger as it was; so what is repeated and what is new add up to the
        plan that was paid for. A *copy* of the folder from an earlier time would go on from there with noise of its
        own, a second release of what came after: do not copy or restore it.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> import privopt
        >>> features = np.linspace(-1.0, 1.0, 200)[:, None]
        >>> model = privopt.LogisticRegression(epsilon=1.0, delta=1e-6, bounds=(-1.0, 1.0), classes=[0, 1])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with privopt.resumable(folder):
        ...         first = model.fit(features, features[:, 0] > 0).coef_
        ...     with privopt.resumable(folder):
        ...         again = model.fit(features, features[:, 0] > 0).coef_
        >>> bool(first == again)
        True
    """
    path = Path(folder)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ArgumentError(
            f"the folder {str(path)!r} cannot be used: {(error.strerror or '').lower()}."
        ) from None
    kept = Journals(path)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ArgumentError(
                f"the folder {str(path)!r} is in use by another process: two that go on from the same releases would "
                "release the rest twice."
            ) from None
        token = _JOURNALS.set(kept)
        try:
            yield
        finally:
            _JOURNALS.reset(token)
            for journal in kept.made:
                journal.close()
    finally:
        os.close(handle)
