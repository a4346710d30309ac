"""Files that nobody vouches for: read within stated limits or refused with a sentence.

A report or a model may come from anywhere. What is read here is a regular file of limited size (no link, no pipe, no
device), never unpacked, and JSON in it is of limited depth, names every member once and holds finite numbers only.
"""

import json
import math
import os
import stat
from pathlib import Path
from typing import Any, cast

from privopt.errors import PrivoptError

MOST_JSON_BYTES = 16 * 2**20
MOST_ARRAY_BYTES = 2**31
DEEPEST = 64
MOST_DIGITS = 40  # of a whole number
_PACKED = {b"PK": "zip", b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstandard"}


class UntrustedFile(PrivoptError, ValueError):
    """A file is not what it should be, or is beyond what is read; the sentence quotes none of its content."""


def read_regular(path: Path, most_bytes: int, *, follow: bool = False) -> bytes:
    """The content of a regular file.

    Args:
        path: the file.
        most_bytes: the largest file that is read.
        follow: whether it may be a link to a regular file: where a person named it, not where it came with others.

    Raises:
        UntrustedFile: it is missing, a link, no regular file, not readable, too large, or changes while it is read.
    """
    name = repr(str(path))
    try:
        if not follow and path.is_symlink():
            raise UntrustedFile(f"{name} is a symbolic link, which is not followed: give the file itself.")
        # Not blocking: opening a pipe would wait for somebody to write.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
        with open(os.open(path, flags), "rb") as file:  # noqa: PTH123  # a Path has no way to say "no link"
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UntrustedFile(f"{name} is no regular file.")
            if found.st_size > most_bytes:
                raise UntrustedFile(
                    f"{name} is larger than {most_bytes / 2**20:,.0f} MiB, the most that is read."
                )
            content = file.read(found.st_size + 1)  # a buffer of that size: not of the largest there may be
    except (OSError, ValueError) as error:
        if isinstance(error, UntrustedFile):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not readable"
        raise UntrustedFile(f"{name} cannot be read: {reason.lower()}.") from None
    if len(content) != found.st_size:
        raise UntrustedFile(f"{name} changed while it was read: read it again once nobody writes to it.")
    return content


def read_json(path: Path, *, follow: bool = False) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: the file.
        follow: as in `read_regular`.

    Raises:
        UntrustedFile: as `read_regular`, or the content is no JSON object within the limits of this file.
    """
    return parse_json(read_regular(path, MOST_JSON_BYTES, follow=follow), repr(str(path)))


def parse_json(content: bytes, name: str) -> dict[str, Any]:
    """The JSON object in some bytes.

    Args:
        content: UTF-8.
        name: what to call it in a refusal.

    Raises:
        UntrustedFile: it is no JSON object, nested too deeply, names a member twice, or holds a number that is not
            finite or has too many digits.
    """
    for mark, kind in _PACKED.items():
        if content.startswith(mark):
            raise UntrustedFile(
                f"{name} is a {kind} archive, and nothing is unpacked here: give the JSON file."
            )
    try:
        document: Any = json.loads(
            content.decode("utf-8"),
            parse_constant=_constant,
            parse_int=_whole,
            parse_float=_fraction,
            object_pairs_hook=_members,
        )
    except UntrustedFile as error:
        raise UntrustedFile(f"{name} is refused: {error}") from None
    except RecursionError:
        raise UntrustedFile(f"{name} is refused: it is nested more than {DEEPEST} deep.") from None
    except UnicodeDecodeError:
        raise UntrustedFile(f"{name} is not JSON, nor any UTF-8 text.") from None
    except json.JSONDecodeError as error:
        raise UntrustedFile(f"{name} is not JSON: see line {error.lineno}, column {error.colno}.") from None
    if depth(document) > DEEPEST:
        raise UntrustedFile(f"{name} is refused: it is nested more than {DEEPEST} deep.")
    if not isinstance(document, dict):
        raise UntrustedFile(f"{name} holds no JSON object.")
    return cast("dict[str, Any]", document)


def depth(document: Any) -> int:
    """How deeply lists and objects are nested; 0 for a number or a text."""
    level: list[Any] = [document]
    for deep in range(DEEPEST + 2):
        inside: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inside.extend(cast("dict[str, Any]", value).values())
            elif isinstance(value, list):
                inside.extend(cast("list[Any]", value))
        if not any(isinstance(value, dict | list) for value in level):
            return deep
        level = inside
    return DEEPEST + 2


def _constant(text: str) -> Any:
    raise UntrustedFile(f"it holds {text}, which is no JSON number.")


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise UntrustedFile(f"it holds a whole number of more than {MOST_DIGITS} digits.")
    return int(text)


def _fraction(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise UntrustedFile("it holds a number beyond the range of 64-bit floating point.")
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise UntrustedFile("an object in it names a member twice.")
    return members
