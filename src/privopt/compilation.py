"""Loops that numba compiles when they are first called: without the lock of the interpreter, and kept on disk.

Numba is loaded by the first call. It looks for changes at the file that holds a function, not at those that it calls: a
kernel would go on with a table of slopes that has since been edited. So the stamp of a function kept on disk also
holds a digest of all files that compiled code comes from.
"""

import functools
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

FAST = frozenset({"reassoc", "contract", "arcp", "nsz"})
EXACT = frozenset({"contract"})


class Compiled:
    """A function that numba compiles when it is first called; functions that call each other find each other so."""

    def __init__(self, function: Callable[..., Any], make: Callable[[Callable[..., Any]], Any]) -> None:
        self._make = make
        functools.update_wrapper(self, function)

    @functools.cached_property
    def made(self) -> Any:
        """What numba makes of it."""
        _watch_forks()
        names = self.__wrapped__.__globals__  # pyright: ignore[reportAttributeAccessIssue]
        called = {
            name: one.made for name, one in names.items() if self._calls(name) and isinstance(one, Compiled)
        }
        return self._make(self.in_python(**called))

    def __call__(self, *arguments: Any) -> Any:
        return self.made(*arguments)

    @property
    def is_made(self) -> bool:
        """Whether numba has been loaded for it."""
        return "made" in vars(self)

    def in_python(self, **names: Any) -> Callable[..., Any]:
        """The function as Python runs it, with other values in the place of some that it reads from its module."""
        function: Any = self.__wrapped__  # pyright: ignore[reportAttributeAccessIssue]
        copy = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
        copy.__module__, copy.__qualname__, copy.__doc__ = (
            function.__module__,
            function.__qualname__,
            function.__doc__,
        )
        return copy

    def _calls(self, name: str) -> bool:
        return name in self.__wrapped__.__code__.co_names  # pyright: ignore[reportAttributeAccessIssue]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.made, name)

    def __reduce__(self) -> str:
        return self.__qualname__  # pyright: ignore[reportAttributeAccessIssue]


def compiled(
    flags: frozenset[str] = frozenset(), *, inline: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """Compile by numba.

    Args:
        flags: what the compiler may do to operations on floats, such as `FAST`; nothing by default.
        inline: whether the function becomes part of those that call it.
    """

    def make(function: Callable[..., Any]) -> Any:
        from numba import njit

        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "forceinline": inline}
        if flags:
            options["fastmath"] = set(flags)
        try:
            dispatcher = njit(cache=True, **options)(function)
        except RuntimeError:  # no writable cache directory
            return njit(**options)(function)
        index = getattr(
            getattr(dispatcher, "_cache", None), "_cache_file", None
        )  # numba's own, without a promise
        if index is not None:
            index._source_stamp = (index._source_stamp, _digest_of_sources())
        return dispatcher

    return functools.partial(Compiled, make=make)


def instruction(function: Callable[..., Any]) -> Any:
    """An instruction that numba inserts as it is; see `numba.extending.intrinsic`."""

    def make(function: Callable[..., Any]) -> Any:
        from numba.extending import intrinsic

        return intrinsic(function)

    return Compiled(function, make)


@functools.cache
def _digest_of_sources() -> str:
    """Of every file that compiled code can come from: the engine's, and the one that numbers the formulas."""
    package = Path(__file__).parent
    files = [*sorted((package / "engine").glob("*.py")), package / "problems" / "glm.py", Path(__file__)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@functools.cache
def _watch_forks() -> None:
    """A fork waits for numba's lock, which guards the compiler's state: a child would wait for it for ever."""
    if sys.platform != "win32":
        from numba.core.compiler_lock import global_compiler_lock

        os.register_at_fork(
            before=global_compiler_lock.acquire,
            after_in_parent=global_compiler_lock.release,
            after_in_child=global_compiler_lock.release,
        )
