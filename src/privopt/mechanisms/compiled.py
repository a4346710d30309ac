"""Compilation of the loops over integers: without the interpreter's lock, and kept on disk where that is possible."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """Compile by numba, without the lock of the interpreter; cached on disk where there is a place to write."""
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # no writable cache directory
        return njit(nogil=True, error_model="numpy")(function)
