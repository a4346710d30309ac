"""Digests of public arguments: equal for what is the same in another process, different for what differs."""

import dataclasses
import enum
import functools
import hashlib
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

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
