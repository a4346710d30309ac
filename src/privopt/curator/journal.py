"""The releases of a run on disk, each for good before its solver sees it, so that a restarted run can go on from there.

A journal is a file of lines that are only ever added: a JSON header with a name, an event and the shape of an array,
the array's bytes, and a hash of both and of the line before. A line that a crash cut short is dropped when the journal
is opened again: nobody has seen what it was to hold. Beside it a mark says how many lines there are, and the hash of
the last one: it is written after a line is on disk, so a journal that does not reach its mark was cut or replaced.
"""

import fcntl
import hashlib
import io
import json
import os
import stat
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.atomic_files import keep_names
from privopt.errors import AccountError, ArgumentError, DataUnavailable
from privopt.ledger.claims import Claim
from privopt.process import this_process

FORMAT = 3
_LENGTHS = struct.Struct("<QQ8s")  # of a line's header and of its array, in bytes, and a hash of these
_HASH_BYTES = 32
_MARK = struct.Struct("<Q32s")  # how many lines there are, and the hash of the last


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
        ended: whether nothing is added to it any more.
    Raises:
        ArgumentError: the file is no journal, was changed or cut, is open to others, or is in use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        self._hashes = [b""]  # of no line, and of each line
        self.ended = False
        self._position = 0
        self._owner, self._thread = this_process(), threading.get_ident()
        handle = open_own(path)
        self._file: BinaryIO = open(handle, "r+b", buffering=0)  # noqa: PTH123, SIM115  # a handle, kept open
        self._mark: int | None = None
        self._claim: Claim | None = None
        try:
            _lock(handle, path)
            self._mark = open_own(path.with_suffix(".mark"))
            self._read()
        except BaseException:
            self.close()
            raise

    def follow(self, claim: Claim, *, paid: bool) -> None:
        """Have the account that pays for the run count its lines from now on.

        Args:
            claim: of the run.
            paid: whether the payment was made before this process began.
        Raises:
            AccountError: this is not the record that goes on, see `Claim`.
        """
        self._claim = claim
        claim.begin([found.hex() for found in self._hashes[1:]], paid=paid)

    def add(self, header: Mapping[str, Any], values: NDArray[Any]) -> None:
        """Add a line, for good.

        Raises:
            DataUnavailable: it could not be written; whoever asked for the values must not see them.
        """
        if self.ended:
            raise DataUnavailable(
                f"the run of {str(self.path)!r} came to its end, and what it would release now is none of what it "
                "released: this is not the program that was stopped. Give a folder of its own."
            )
        if this_process() != self._owner:
            raise DataUnavailable(
                "a run that is to be resumed belongs to the process that began it: what this forked process computed "
                "was shown to nobody."
            )
        if threading.get_ident() != self._thread:
            raise DataUnavailable(
                "a run that is to be resumed belongs to the thread that began it, since its releases are repeated in "
                "their order: what this thread computed was shown to nobody."
            )
        values = np.asarray(values, order="C")
        described = {**header, "dtype": values.dtype.str, "shape": list(values.shape)}
        name, content = json.dumps(described, allow_nan=True).encode(), values.tobytes()
        before = self._hashes[-1]
        lengths, found = _lengths(before, name, content), _hash(before, name, content)
        try:
            self._file.seek(self._end)
            packed = b"".join((lengths, name, content, found))
            written = self._file.write(packed)
            while written < len(packed):
                written += self._file.write(packed[written:]) or 0
            os.fsync(self._file.fileno())
            if not self.lines:
                keep_names(self.path.parent)
            assert self._mark is not None
            os.pwrite(self._mark, _MARK.pack(len(self._hashes), found), 0)
            if self._claim is not None:
                self._claim.advance(len(self._hashes), found.hex())
            self._end += len(packed)
            self._hashes.append(found)
            self.lines.append(Line(described, values))
            self._position = len(self.lines)
        except BaseException as error:
            self.close()  # a later line would hide that this one is missing
            if not isinstance(error, OSError | AccountError):
                raise
            why = (error.strerror or "no reason given").lower() if isinstance(error, OSError) else str(error)
            raise DataUnavailable(
                f"the journal {str(self.path)!r} cannot be written: {why.rstrip('.')}. "
                "What the run was charged stays charged; what was computed last was shown to nobody. Make room, and "
                "start the same run again to go on."
            ) from None

    def next(self) -> Line | None:
        """The next line that was there when the journal was opened; None after the last."""
        if self._position == len(self.lines):
            return None
        self._position += 1
        return self.lines[self._position - 1]

    def end(self) -> None:
        """Repeat what stands here, and add no line to it any more."""
        self.ended = True

    def close(self) -> None:
        """Close the files, and let another process go on."""
        self._file.close()
        if self._mark is not None:
            os.close(self._mark)
            self._mark = None
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def _read(self) -> None:
        """Read the lines; what follows the last whole one is cut off."""
        content, self._end = io.BytesIO(self._file.read()), 0
        while True:
            lengths = content.read(_LENGTHS.size)
            if len(lengths) < _LENGTHS.size:
                break
            long, size, check = _LENGTHS.unpack(lengths)
            if check != _check(self._hashes[-1], long, size):  # else a damaged length would hide what follows
                if not (lengths + content.read()).strip(
                    b"\0"
                ):  # what a power cut leaves of a line not yet on disk
                    break
                raise self._damaged()
            name, values, stored = content.read(long), content.read(size), content.read(_HASH_BYTES)
            if len(stored) < _HASH_BYTES:
                break
            found = _hash(self._hashes[-1], name, values)
            if found != stored:
                if content.read(1):  # not the end, which a crash may have left half written
                    raise self._damaged()
                break
            header = json.loads(name)  # written by us: the hash says so
            array = np.frombuffer(values, np.dtype(header["dtype"])).reshape(header["shape"])
            self.lines.append(Line(header, array))
            self._hashes.append(found)
            self._end = content.tell()
        self._check_mark()
        try:
            os.ftruncate(self._file.fileno(), self._end)
        except OSError as error:
            raise ArgumentError(
                f"{str(self.path)!r} cannot be written: {(error.strerror or '').lower()}."
            ) from None

    def _check_mark(self) -> None:
        """Refuse a journal that does not reach its mark, before anything in it is changed.

        Raises:
            ArgumentError: lines that were there are not.
        """
        assert self._mark is not None
        stored = os.pread(self._mark, _MARK.size, 0)
        if len(stored) < _MARK.size or not stored.strip(b"\0"):  # of no line, or lost with the power
            return
        count, found = _MARK.unpack(stored)
        if not (count < len(self._hashes) and self._hashes[count] == found):
            raise ArgumentError(
                f"{str(self.path)!r} does not hold the {count} lines that were written to it: it was cut, replaced or "
                "restored. What is missing was released, and would be released a second time: bring the file back, or "
                "give another folder and pay anew."
            )

    def _damaged(self) -> ArgumentError:
        return ArgumentError(
            f"{str(self.path)!r} is no journal of a run, or was changed by something other than privopt."
        )


def open_own(path: Path) -> int:
    """A handle to a file of ours alone, made where there is none.

    Raises:
        ArgumentError: it cannot be opened, is no file, or others may read or write it.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError as error:
        raise ArgumentError(f"{str(path)!r} cannot be opened: {(error.strerror or '').lower()}.") from None
    try:
        require_own(path, os.fstat(handle), stat.S_ISREG)
    except BaseException:
        os.close(handle)
        raise
    return handle


def require_own(path: Path, found: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    """Refuse a file or folder that others own, or may enter, read or write.

    Raises:
        ArgumentError: they do, or it is of another kind.
    """
    if not is_kind(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ArgumentError(
            f"{str(path)!r} must be yours alone, and is open to others or no such file: whoever changed it could have "
            "a run release something twice. Take their access away (chmod go-rwx), or give another folder."
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
