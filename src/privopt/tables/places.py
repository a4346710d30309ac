"""Which files make up a table, wherever they are: a file, a folder, a glob, a list, a URI, a Delta table.

They stand in one order, that of their names, and each is known by its version, see `version_of`: one that is another by
the time it is read is refused, as its records may be counted twice or be somebody else's.
"""

import contextlib
import fnmatch
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow import fs

from privopt.errors import STAYS_CHARGED, DataUnavailable
from privopt.tables.errors import TableError
from privopt.tables.io import DELIMITERS, PARQUET, delimiter, extension

OURS = frozenset({"file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss"})  # that pyarrow itself opens
_HTTP = ("http", "https")  # of the extra [http]
_URI = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_SECRET_PORT = re.compile(r"[^\[:]*:(?!\d*$)")
_LOG = "_delta_log"
_PATIENCE, _PATIENCE_SECONDS = "retry_limit_seconds", 20  # with a store of Google's that does not answer


class StoredFile(NamedTuple):
    """One file as it was when the table was opened.

    Attributes:
        path: within its file system.
        shown: how it was named, without what may be a password.
        size: in bytes.
        stamp: what tells its version from others, see `version_of`.
    """

    path: str
    shown: str
    size: int
    stamp: str

    @property
    def name(self) -> str:
        """The path without what a URL may carry behind it, such as a signature: its end says the format."""
        return self.path.partition("?")[0] if "://" in self.path else self.path

    def __repr__(self) -> str:
        return f"StoredFile({self.shown!r})"


@dataclass(frozen=True, kw_only=True)
class Place:
    """The files of a table, in the order in which they are read. Can be pickled.

    Attributes:
        system: the file system.
        files: at least one.
        partitions: columns of a Delta table that stand in the names of its folders, not in its files.
    """

    system: Any = field(repr=False)  # of either the text may hold a password
    files: tuple[StoredFile, ...] = field(repr=False)
    partitions: tuple[str, ...] = ()

    @property
    def delimiter(self) -> str | None:
        """What stands between the cells of texts; None for Parquet."""
        return delimiter(self.files[0].name)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    @property
    def is_local(self) -> bool:
        """Whether they are files of this machine."""
        return isinstance(self.system, fs.LocalFileSystem)

    def holds(self, file: Path) -> bool:
        """Whether a file on this machine is among them."""
        if not self.is_local or not file.exists():
            return False
        return any(Path(one.path).exists() and file.samefile(one.path) for one in self.files)

    def fingerprint(self) -> str:
        """A digest of the names, sizes and versions of the files; passwords in URIs do not enter it.

        Nor does what stands behind a URL, unless its store tells no version: then that alone may tell two files apart.
        """
        told = "\n".join(
            f"{file.shown}{'' if file.stamp else file.path[len(file.name) :]} {file.size} {file.stamp}"
            for file in self.files
        )
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()

    def require_unchanged(self, file: StoredFile) -> None:
        """Refuse a file that is gone, or is not the one that was there when the table was opened.

        Raises:
            DataUnavailable: it is.
        """
        try:
            size, stamp = version_of(self.system, file.path)
        except Exception:  # whatever a file system raises; its text may hold what it was opened with
            raise _unavailable(file, "cannot be reached any more") from None
        if size < 0:
            raise _unavailable(file, "is gone")
        if (size, stamp) != (file.size, file.stamp):
            raise _unavailable(file, "has changed")


def _unavailable(file: StoredFile, what: str) -> DataUnavailable:
    return DataUnavailable(f"the file {file.shown!r} {what} since the table was opened. {STAYS_CHARGED}")


def shown_name(where: str | Path) -> str:
    """How a table is named to people: a URI without its user, password and query, which may hold keys and signatures.

    A password need not be written as URIs ask for: behind a colon everything up to the last @ is taken for one, and
    without an @ what no port can be. What is nearly a URI (a slip, or a chain of fsspec's) loses the same.
    """
    name = str(where)
    scheme = _URI.match(name)
    if scheme is None:
        return name if name[:1] in ("", "/", ".", "~") else _masked(name)
    rest = name[scheme.end() :]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in (rest if ":" in authority else authority):
        rest = rest.rpartition("@")[2] if ":" in authority else rest[authority.rindex("@") + 1 :]
    elif _SECRET_PORT.match(authority):
        rest = authority.partition(":")[0]
    if scheme.group(1).lower() in _HTTP:
        rest = rest.partition("#")[0]
    return scheme.group() + rest.partition("?")[0]


def _masked(name: str) -> str:
    """What was typed in place of a URI."""
    if "@" in name.partition(":")[2]:
        name = f"...@{name.rpartition('@')[2]}"
    elif not re.search(r":[/\\]", name):
        return name
    return name.partition("?")[0]


def located(where: str | Path | Iterable[str | Path]) -> Place:
    """The files that a table was said to be in.

    Args:
        where: a file, a folder (with all files in it and in its folders, but for those whose names begin with a dot or
            an underscore), a glob (`*`, `?`, `[...]`, and `**` for folders of any depth), a folder of Delta, a URI of
            one of these, or a list of them.
    Raises:
        TableError: there is no such file, or none; they are of several formats, or the same one twice.
    """
    given: Any = where
    several = isinstance(given, Iterable) and not hasattr(given, "columns")  # which a data frame has
    named: list[Any] = [given] if isinstance(given, str | Path) else list(given) if several else []
    if not named or not all(isinstance(one, str | Path) and str(one) for one in named):
        raise TableError(
            "No table was given: name a file, a folder, a glob or a URI, or several of them in a list. A data frame is "
            "no file: TabularEncoder(schema) encodes it for a fit."
        )
    found = [_found(one) for one in named]
    systems = [system for system, _, _ in found]
    if any(system != systems[0] for system in systems):
        raise TableError("The tables given lie in several file systems: give those of one at a time.")
    files = sorted({file.path: file for _, files, _ in found for file in files}.values())
    if len(files) < sum(len(files) for _, files, _ in found):
        raise TableError(
            "A table was given twice: each record must be read once, or one person has several shares in the result."
        )
    _require_different(systems[0], files)
    _require_one_format(files)
    partitions = dict.fromkeys(column for _, _, columns in found for column in columns)
    return Place(system=systems[0], files=tuple(files), partitions=tuple(partitions))


def _found(where: str | Path) -> tuple[Any, list[StoredFile], list[str]]:
    """The file system, the files and the columns of partitions of one name."""
    name, partitions = str(where), list[str]()
    system, path, shown, pattern = _opened(where)
    if pattern:
        paths = _matching(system, path, pattern)
        if not paths:
            raise TableError(f"No table matches {shown!r}.")
    else:
        kind = _kind(system, path, shown)
        if kind == fs.FileType.NotFound and name != "-":
            access = ", or you have no access to it" if "://" in shown else ""
            raise TableError(f"There is no table {shown!r}{access}.")
        if kind == fs.FileType.Unknown or kind == fs.FileType.NotFound:
            raise TableError(
                f"{shown!r} is a pipe or a device, which can be read once: a table is read several times, so write it "
                "to a file first."
            )
        if kind == fs.FileType.File:
            paths = [path]
        elif _kind(system, f"{path.rstrip('/')}/{_LOG}", shown) == fs.FileType.Directory:
            paths, partitions = _of_delta(name, shown)
        else:
            paths = _in_folder(system, path)
            _require_tables_alone(paths, path, shown)
    prefix = shown.partition("://")[0] + "://" if "://" in shown else ""
    shown_as = [shown_name(one) if "://" in one else prefix + one for one in paths]
    return system, [_stored(system, *both) for both in zip(paths, shown_as, strict=True)], partitions


def _opened(where: str | Path) -> tuple[Any, str, str, str]:
    """The file system, the path in it, the name to show, and the glob below the path, if it is one."""
    name = str(where)
    scheme = _URI.match(name)
    if scheme is None:
        base, pattern = (name, "") if Path(name).exists() else _split(name, "*?[")
        return fs.LocalFileSystem(), str(Path(base or ".").absolute()), shown_name(name), pattern
    shown = shown_name(name)
    plain, mark, query = name.partition("?")
    base, pattern = _split(plain, "*[")
    if pattern and len(base) <= len(scheme.group()):
        raise TableError(f"The URI {shown!r} has its first wildcard where the name of its store should be.")
    try:
        system, path = _system(base + mark + query, scheme.group(1).lower())
    except TableError:
        raise
    except Exception:  # a text of the library below may hold a password
        raise TableError(
            f"The store of {shown!r} cannot be opened: look at its URI and at your access."
        ) from None
    return system, path, shown, pattern


def _system(uri: str, scheme: str) -> tuple[Any, str]:
    """The file system of a URI, and the path in it."""
    if scheme in ("gs", "gcs") and _PATIENCE not in uri:  # by itself it tries for a quarter of an hour
        uri += f"{'&' if '?' in uri else '?'}{_PATIENCE}={_PATIENCE_SECONDS}"
    if scheme in OURS:
        return fs.FileSystem.from_uri(uri)
    try:
        import fsspec  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]  # of the user's choice
    except ImportError:
        needed = "'privopt[http]'" if scheme in _HTTP else f"fsspec, and what it needs for {scheme}"
        raise TableError(
            f"{scheme}:// is opened by the package fsspec, which is not installed: pip install {needed}. Without it: "
            f"{', '.join(sorted(OURS))}."
        ) from None
    try:
        opened: Any = fsspec.core.url_to_fs(uri)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    except ImportError:
        needed = (
            "pip install 'privopt[http]'"
            if scheme in _HTTP
            else f"look up in the pages of fsspec which one it needs for {scheme}, and install it"
        )
        raise TableError(
            f"{scheme}:// is opened by fsspec with a package that is not installed: {needed}."
        ) from None
    except ValueError:  # it knows no such scheme
        raise TableError(
            f"{scheme}:// is opened by nobody: pyarrow knows {', '.join(sorted(OURS))}, and fsspec does not know it."
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(opened[0])), str(opened[1])


def _split(name: str, magic: str) -> tuple[str, str]:
    """The part of a glob without wildcards, and the rest."""
    parts = name.split("/")
    first = next((k for k, part in enumerate(parts) if any(sign in part for sign in magic)), None)
    if first is None:
        return name, ""
    return "/".join(parts[:first]) + ("/" if first == 1 and not parts[0] else ""), "/".join(parts[first:])


def _kind(system: Any, path: str, shown: str) -> Any:
    try:
        return system.get_file_info(path).type
    except Exception:
        raise TableError(
            f"The table {shown!r} cannot be reached: look at its name and at your access."
        ) from None


def _listed(system: Any, folder: str, *, deep: bool) -> list[str]:
    """The files in a folder, as paths below it."""
    selector = fs.FileSelector(folder, allow_not_found=True, recursive=deep)
    start = folder.rstrip("/") + "/"
    try:
        found = system.get_file_info(selector)
        return [info.path.removeprefix(start) for info in found if info.type == fs.FileType.File]
    except UnicodeError:  # raised where the path is asked for
        raise TableError(
            f"The folder {shown_name(folder)!r} holds a file whose name is not UTF-8 text: rename it, or move it "
            "elsewhere."
        ) from None
    except Exception:
        raise TableError(
            f"The folder {shown_name(folder)!r} cannot be listed: look at your access."
        ) from None


def _in_folder(system: Any, folder: str) -> list[str]:
    below = _listed(system, folder, deep=True)
    return [
        f"{folder.rstrip('/')}/{path}"
        for path in below
        if not any(part[0] in "._" for part in path.split("/"))
    ]


def _require_tables_alone(paths: Sequence[str], folder: str, shown: str) -> None:
    """Refuse a folder without tables, or with other files beside them: it is read whole."""
    tables = [path for path in paths if extension(path)]
    others = [path.removeprefix(f"{folder.rstrip('/')}/") for path in paths if not extension(path)]
    if not tables:
        raise TableError(f"The folder {shown!r} holds no table.")
    if others:
        glob = f"{shown.rstrip('/')}/*{extension(min(tables))}"
        raise TableError(
            f"The folder {shown!r} holds other files beside tables, such as {others[0]!r}, and a folder is read whole: "
            f"give a folder of tables alone, or their names as a glob in quotes, such as {glob!r}."
        )


def _matching(system: Any, folder: str, pattern: str) -> list[str]:
    """The files below a folder that match a glob."""
    wanted = pattern.split("/")
    below = _listed(system, folder, deep=len(wanted) > 1 or wanted == ["**"])
    return [f"{folder.rstrip('/')}/{path}" for path in below if _matches(path.split("/"), wanted)]


def _matches(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    if not wanted or not parts:
        return not wanted and not parts
    if wanted[0] == "**":
        rest = wanted[1:] or ["*"]
        return _matches(parts, rest) or (parts[0][0] not in "._" and _matches(parts[1:], wanted))
    hidden = parts[0][0] in "._" and wanted[0][0] not in "._"
    return not hidden and fnmatch.fnmatchcase(parts[0], wanted[0]) and _matches(parts[1:], wanted[1:])


def _of_delta(uri: str, shown: str) -> tuple[list[str], list[str]]:
    """The files of the latest version of a Delta table, within its file system, and the columns of its partitions."""
    try:
        import deltalake  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]  # the extra [delta]
    except ImportError:
        raise TableError(
            f"{shown!r} is a Delta table, which is read with the package deltalake: pip install 'privopt[delta]'. Its "
            "folder also holds files that are no part of the table any more."
        ) from None
    delta: Any = deltalake
    try:
        table = delta.DeltaTable(uri)
        features = set(table.protocol().reader_features or ())
        partitions = [str(column) for column in table.metadata().partition_columns]
        uris = [str(one) for one in table.file_uris()]
    except Exception:
        raise TableError(
            f"The Delta table {shown!r} cannot be read: its log is damaged, or out of reach."
        ) from None
    unknown = features & {"deletionVectors", "columnMapping"}
    if unknown:
        raise TableError(
            f"The Delta table {shown!r} uses {', '.join(sorted(unknown))}, which the files alone do not show: write "
            "a copy without (or ALTER TABLE ... DROP FEATURE)."
        )
    if not uris:
        raise TableError(f"The Delta table {shown!r} holds no file.")
    return [_opened(one)[1] if _URI.match(one) else str(Path(one).absolute()) for one in uris], partitions


def _stored(system: Any, path: str, shown: str) -> StoredFile:
    try:
        size, stamp = version_of(system, path)
    except Exception:
        size, stamp = -1, ""
    if size < 0:
        raise TableError(f"There is no table {shown!r}, or it cannot be reached.")
    return StoredFile(path, shown, size, stamp)


def _require_different(system: Any, files: Sequence[StoredFile]) -> None:
    """Refuse one local file under two names, and one version of a URL with two signatures or passwords."""
    with contextlib.suppress(OSError):  # one that is gone is refused when it is read
        known: set[Any] = {(file.shown, file.size, file.stamp or file.path) for file in files}
        if isinstance(system, fs.LocalFileSystem):
            known = {(stat.st_dev, stat.st_ino) for stat in (Path(file.path).stat() for file in files)}
        if len(known) < len(files):
            raise TableError(
                "One file stands under two names among the tables given: each record must be read once, or one person "
                "has several shares in the result."
            )


def _require_one_format(files: Sequence[StoredFile]) -> None:
    for file in files:
        if not extension(file.name):
            raise TableError(
                f"The table {file.shown!r} is of no known format: its name must end in one of "
                f"{', '.join((*PARQUET, *DELIMITERS))}."
            )
    if len({delimiter(file.name) for file in files}) > 1:
        raise TableError(
            "The tables given are of several formats: give Parquet files alone, or CSV files, or TSV files."
        )


# ---- Which version of a file stands under its name: what is another by now was replaced, or written to -----
# A file on this machine is known by its size, the time of its last change, that of the last change of its entry, which
# nobody can set, and on a disk of this machine its number there: one that is put in its place, or written over, differs
# in these even if size and time of change were made the same. Numbers of network and user-space file systems are left
# out: some give them anew. A file in a store is known by what the store says of versions: an ETag, a generation, a
# time.
_OF_STORES = ("ETag", "etag", "VersionId", "version_id", "generation", "Last-Modified")
_OF_FSSPEC = (*_OF_STORES, "LastModified", "last_modified", "updated", "checksum", "md5", "mtime", "created")
_GONE = (-1, "")


def version_of(system: Any, path: str) -> tuple[int, str]:
    """The size of a file, -1 where there is none, and what tells its version from others.

    Args:
        system: its file system, of pyarrow or of fsspec.
        path: in it.
    Raises:
        Exception: whatever a file system raises that cannot be reached.
    """
    if isinstance(system, fs.PyFileSystem):
        return _of_fsspec(system.handler.fs, path)
    if isinstance(system, fs.LocalFileSystem):
        return _of_this_machine(Path(path))
    return _of_store(system, path)


def _of_store(system: Any, path: str) -> tuple[int, str]:
    """One question where a store has tags, whose listings tell times to the second alone; two where it has none."""
    try:
        with system.open_input_file(path) as stream:
            size, told = int(stream.size()), stream.metadata() or {}
    except FileNotFoundError:
        return _GONE
    tags = [told[tag].decode(errors="replace") for tag in _OF_STORES if tag in told]
    return size, " ".join(tags or [str(system.get_file_info(path).mtime_ns)])


def _of_this_machine(path: Path) -> tuple[int, str]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return _GONE
    if not stat.S_ISREG(found.st_mode):
        return _GONE
    on_disk = os.major(found.st_dev) != 0  # network and user-space file systems have no device of their own
    number = f" {found.st_ino}" if on_disk else ""
    return found.st_size, f"{found.st_mtime_ns} {found.st_ctime_ns}{number}"


def _of_fsspec(system: Any, path: str) -> tuple[int, str]:
    system.invalidate_cache()
    try:
        told = system.info(path)
    except FileNotFoundError:
        return _GONE
    return int(told["size"] or 0), " ".join(str(told[tag]) for tag in _OF_FSSPEC if tag in told)
