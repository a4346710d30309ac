"""The releases of a run on disk, each for good before its solver sees it, so that a restarted run can go on from there.

A journal is a file of lines that are only ever added: a JSON header with a name, an event and the shape of an array,
the array's bytes, and a hash of both and of the line before. A line that a crash cut short is dropped when the journal
is opened again: nobody has seen what it was to hold. Beside it a mark says how many lines there are, and the hash of
the last one: it is written after a line is on disk, so a journal that does not reach its mark was cut or replaced.
"""

import dataclasses
import enum
import fcntl
import functools
import hashlib
import io
import json
import os
import stat
import struct
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.atomic_files import keep_names
from privopt.data.user_keys import UserSecret
from privopt.data.user_parts import laid_out_by
from privopt.errors import AccountError, ArgumentError, DataUnavailable
from privopt.ledger.claims import Claim
from privopt.mechanisms.noise import RepeatedChoice
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


# ------------------------------------------------------------------------------------------------------------
# Digests of public arguments: equal for what is the same in another process, different for what differs.


_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, Path)


def digest(value: Any) -> str:
    """A digest of an argument: of its type and of all that it holds, of a function its code and what it captured.

    Args:
        value: a public argument: a loss, a penalty, bounds, a schema, a solver. Arrays count by their bytes.
    Returns:
        64 hexadecimal digits. Functions have another digest under another version of Python.
    Privacy:
        A digest confirms a guess, so it hides nothing: arguments are public.
    """
    hashed = hashlib.sha256()
    _enter(hashed.update, value, ())
    return hashed.hexdigest()


def _enter(add: Callable[[bytes], object], value: Any, above: tuple[int, ...]) -> None:
    """Add a value; `above` are the ids of those that hold it."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
        _text(add, kind, repr(value))
    elif id(value) in above:
        _text(add, "a value that holds itself", str(len(above) - above.index(id(value))))
    else:
        _text(add, kind, "")
        _enter_parts(add, value, (*above, id(value)))


def _enter_parts(add: Callable[[bytes], object], value: Any, above: tuple[int, ...]) -> None:
    def each(values: Iterable[Any]) -> None:
        held = list(values)
        _text(add, "parts", str(len(held)))
        for part in held:
            _enter(add, part, above)

    if isinstance(value, enum.Enum):
        each((value.name, value.value))
    elif isinstance(value, Mapping):
        each(part for pair in value.items() for part in pair)
    elif isinstance(value, set | frozenset):
        each(sorted(map(digest, value)))
    elif isinstance(value, tuple | list | range):
        each(value)
    elif isinstance(value, types.ModuleType):
        _text(add, "module", value.__name__)
    elif isinstance(value, type):
        _text(add, value.__module__, value.__qualname__)
    elif isinstance(value, functools.partial):
        each((value.func, value.args, value.keywords))
    elif isinstance(value, types.MethodType):
        each((value.__func__, value.__self__))
    elif isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        _text(add, value.__module__, value.__qualname__)
        each((value.__code__, value.__defaults__, value.__kwdefaults__, cells))
    elif isinstance(value, types.CodeType):
        each((value.co_code, value.co_consts, value.co_names, value.co_varnames[: value.co_argcount]))
    elif dataclasses.is_dataclass(value):
        each((one.name, getattr(value, one.name, None)) for one in dataclasses.fields(value))
    elif hasattr(value, "__wrapped__"):
        each((value.__wrapped__,))
    elif hasattr(value, "__array__"):
        array = np.asarray(value)
        each((array.dtype.str, array.shape))
        if array.dtype == object:
            each(array.ravel().tolist())
        else:
            add(np.ascontiguousarray(array).tobytes())
    elif hasattr(value, "get_params"):
        each(sorted(value.get_params(deep=False).items()))
    elif parts := _attributes(value):
        each(parts.items())
    else:
        shown = repr(value)
        _text(add, "shown", "" if " at 0x" in shown else shown)


def _attributes(value: Any) -> dict[str, Any]:
    """What an object holds by name, in its slots as well."""
    slots = [getattr(kind, "__slots__", ()) for kind in reversed(type(value).__mro__)]
    names = [name for some in slots for name in ((some,) if isinstance(some, str) else some)]
    held = {
        name: getattr(value, name) for name in names if not name.startswith("__") and hasattr(value, name)
    }
    return {**held, **(getattr(value, "__dict__", None) or {})}


def _text(add: Callable[[bytes], object], kind: str, text: str) -> None:
    content = f"{kind}\0{text}".encode("utf-8", "surrogatepass")
    add(b"%d:" % len(content) + content)


# ------------------------------------------------------------------------------------------------------------
# Keys that lie beside a run's journal until the run has ended: of its cuts, and of where its users stand.


KEY_BYTES = 32
CUTS, USERS = ".key", ".users"  # in place of a journal's suffix


def stored_key(path: Path) -> bytes:
    """What is stored of a key; nothing where it was not written, or lost with the power.

    Raises:
        ArgumentError: the file is not ours alone.
    """
    if not path.exists():
        return b""
    handle = open_own(path)
    try:
        found = os.pread(handle, KEY_BYTES, 0)
    finally:
        os.close(handle)
    return found if len(found) == KEY_BYTES and found.strip(b"\0") else b""


def new_key(path: Path, undone: str) -> bytes:
    """A key from the operating system, on disk for good, in a file of mode 0600.

    Args:
        path: of the file; whatever was in it is written over.
        undone: what did not happen where it cannot be written, in words.
    Raises:
        ArgumentError: the file is not ours alone.
        DataUnavailable: it cannot be written.
    """
    handle = open_own(path)
    try:
        key = os.urandom(KEY_BYTES)
        written = os.pwrite(handle, key, 0)
        os.fsync(handle)
        keep_names(path.parent)
    except OSError as error:
        raise DataUnavailable(
            f"the key {str(path)!r} cannot be written: {(error.strerror or '').lower()}. {undone} "
            "Make room, and start the same run again to go on."
        ) from None
    finally:
        os.close(handle)
    if written < KEY_BYTES:
        raise DataUnavailable(f"the key {str(path)!r} cannot be written whole. {undone}")
    return key


def users_key(journal: Path) -> bytes:
    """The key that lays out the users of a run, and chooses their records, wherever the run goes on.

    Args:
        journal: of the run.
    """
    path = journal.with_suffix(USERS)
    return stored_key(path) or new_key(path, "Nothing was read.")


def kept_layout(journal: Path) -> str:
    """What tells how users are laid out by the key beside a journal, see `Units.laid_out`; empty without one."""
    key = stored_key(journal.with_suffix(USERS))
    return laid_out_by(UserSecret.drawn(RepeatedChoice.of(key), 0)) if key else ""


def forget_keys(journal: Path) -> None:
    """Delete the keys beside a journal: that of its cuts first, without which no block answers any more.

    Raises:
        DataUnavailable: one cannot be deleted.
    """
    paths = [path for path in map(journal.with_suffix, (CUTS, USERS)) if path.exists()]
    for path in paths:
        try:
            path.unlink(missing_ok=True)
            keep_names(path.parent)
        except OSError as error:
            raise DataUnavailable(
                f"the key {str(path)!r} of a run that has ended cannot be deleted: "
                f"{(error.strerror or '').lower()}. Delete it: it tells which records were in which block."
            ) from None
