"""Exceptions at chosen lines of the package while something runs, as Ctrl-C or short memory raise them."""

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import privopt

Place = tuple[CodeType, int]
_HOUSE = Path(privopt.__file__).parent


def house(*rooms: str) -> tuple[str, ...]:
    """Beginnings of the names of the package's files, in some rooms or in all."""
    return tuple(str(_HOUSE / room) for room in rooms) or (str(_HOUSE),)


def _source(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def _traced(
    call: Callable[[], Any],
    inside: tuple[str, ...],
    at_line: Callable[[FrameType], None],
    only: CodeType | None = None,
) -> None:
    """Run `call`, and `at_line` before every line of the files whose names begin so, or of one function in them."""

    def at_lines(frame: FrameType, event: str, _: Any) -> Any:
        # A line of `with` is met once more on the way out, where an interpreter takes no signal.
        if event == "line" and not _source(frame).startswith("with "):
            at_line(frame)
        return at_lines

    def at_calls(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if only is not None and code is not only:
            return None
        # Between taking a lock and holding it no program is safe; everywhere else it is.
        ours = code.co_filename.startswith(inside) and code.co_name not in ("__enter__", "__exit__")
        return at_lines if ours else None

    before = sys.gettrace()
    sys.settrace(at_calls)
    try:
        call()
    finally:
        sys.settrace(before)


def lines_of(call: Callable[[], Any], inside: tuple[str, ...]) -> list[Place]:
    """Every different line that `call` runs, in the order of its first time."""
    met: dict[Place, None] = {}
    _traced(call, inside, lambda frame: met.setdefault((frame.f_code, frame.f_lineno)))
    return list(met)


def interrupted_at(
    line: int | Place, call: Callable[[], Any], kind: type[BaseException], inside: tuple[str, ...]
) -> BaseException | None:
    """Run `call` with an exception before a line; the exception that comes out, or None if it ended.

    Args:
        line: the so many-th line that is run, or the first time of a given one.
        call: what is run.
        kind: of the exception.
        inside: the files whose lines count.
    """
    seen = 0

    def stop(frame: FrameType) -> None:
        nonlocal seen
        seen += 1
        if line in (seen, (frame.f_code, frame.f_lineno)):
            sys.settrace(None)
            raise kind("by the user")

    try:
        _traced(call, inside, stop, only=None if isinstance(line, int) else line[0])
    except kind as error:
        return error
    return None
