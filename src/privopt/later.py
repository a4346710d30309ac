"""JAX where it is needed: a module says `from privopt.later import jax, jnp`, and JAX is loaded when it is first used.

`jax.jit` and `jax.tree_util.register_...` are remembered until then. Array shapes in annotations are jaxtyping's for
type checkers, and stand-ins that cost nothing otherwise.
"""

import functools
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING or os.environ.get("PRIVOPT_TYPECHECK") == "1":
    from jaxtyping import Array, Bool, Float, Int, UInt32
else:

    class _Shape:
        """An array of any shape."""

        def __class_getitem__(cls, shape: Any) -> Any:
            del shape
            return cls

    Array = Bool = Float = Int = UInt32 = _Shape

__all__ = [
    "Array",
    "Bool",
    "DoublePrecision",
    "Float",
    "Int",
    "UInt32",
    "deferred",
    "is_array",
    "is_double",
    "is_jax",
    "is_of",
    "is_traced",
    "jax",
    "jnp",
    "namespace",
]


def is_of(value: Any, module: str, name: str) -> bool:
    """Whether a value is of the class of this name in a module, which need not be loaded: then it is not."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def is_jax(value: Any) -> bool:
    """Whether a value is an array of JAX, traced or not; does not load JAX."""
    return is_of(value, "jax", "Array")


def is_traced(value: Any) -> bool:
    """Whether a value is traced by JAX; does not load JAX."""
    return is_of(value, "jax.core", "Tracer")


def is_array(value: Any) -> bool:
    """Whether a value is an array of NumPy or of JAX."""
    return isinstance(value, np.ndarray) or is_jax(value)


def namespace(*values: Any) -> Any:
    """`jax.numpy` if one of the values is an array of JAX, else NumPy."""
    return jnp if any(map(is_jax, values)) else np


# ---- Loading JAX once, and what waits for it ---------------------------------------------------------------

_lock = threading.RLock()
_waiting: list[Callable[[], object]] = []
_loaded: ModuleType | None = None
_unsettled = 0  # open contexts of double precision, of all threads, that JAX does not know of


class _Contexts(threading.local):
    """The open contexts of double precision of one thread."""

    def __init__(self) -> None:
        self.open: list[DoublePrecision] = []


_contexts = _Contexts()


def _load() -> ModuleType:
    """JAX, with everything registered that waited for it, in the precision that the thread is in."""
    if _loaded is None:
        _register(importlib.import_module("jax"))
    for context in _contexts.open:
        context.settle()
    assert _loaded is not None
    return _loaded


def _register(loaded: ModuleType) -> None:
    """Register what waited for JAX, which somebody has loaded; without the lock, an import may wait for another."""
    global _loaded
    importlib.import_module("jax.numpy")
    with _lock:
        while _waiting:
            _waiting.pop(0)()
        _loaded = loaded


def _is_loaded() -> bool:
    """Whether JAX is there, by whomever it was loaded."""
    return _loaded is not None or hasattr(sys.modules.get("jax"), "numpy")


def _when_loaded(register: Callable[[], object]) -> None:
    """Register now if JAX is there, or as soon as it is."""
    with _lock:
        if not _is_loaded():
            _waiting.append(register)
            return
    register()


class _Watch:
    """Tells when somebody else imports JAX: their own `jax.jit` then knows our classes."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module's own, whose loader registers what waits once it has loaded it."""
        del path, target
        if name != "jax" or getattr(_watching, "now", False):
            return None
        _watching.now = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            _watching.now = False
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def load(module: ModuleType) -> None:
            run(module)
            _register(module)

        spec.loader.exec_module = load
        return spec


_watching = threading.local()
if "jax" not in sys.modules:
    sys.meta_path.insert(0, _Watch())  # pyright: ignore[reportArgumentType]


class DoublePrecision:
    """A context of 64-bit JAX; where JAX is not loaded yet, from the moment on that it is."""

    def __init__(self) -> None:
        self._context: Any = None

    def __enter__(self) -> None:
        global _unsettled
        _contexts.open.append(self)
        with _lock:
            _unsettled += 1
        if _is_loaded():
            _load()

    def settle(self) -> None:
        """Enter JAX's own context."""
        global _unsettled
        if self._context is None:
            assert _loaded is not None
            self._context = _loaded.enable_x64(True)
            self._context.__enter__()
            with _lock:
                _unsettled -= 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _unsettled
        _contexts.open.remove(self)
        if self._context is not None:
            self._context.__exit__(kind, error, trace)
        else:
            with _lock:
                _unsettled -= 1


def is_double() -> bool:
    """Whether the thread computes in float64; does not load JAX."""
    if not _is_loaded():
        return bool(_contexts.open)
    return bool(_load().config.read("jax_enable_x64"))


# ---- What stands for a module until it is used ------------------------------------------------------------


class _Deferred:
    """A module, or something in it, that is loaded when it is first called, or a name in it is read."""

    def __init__(self, module: str, name: str | None) -> None:
        self._module, self._wanted = module, name

    @property
    def _loaded(self) -> Any:
        module = importlib.import_module(self._module)
        return module if self._wanted is None else getattr(module, self._wanted)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loaded, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._loaded(*arguments, **named)


def deferred(module: str, name: str | None = None) -> Any:
    """A module, or the function or class of this name in it, loaded when it is first used; not for `isinstance`."""
    return _Deferred(module, name)


class _Module:
    """A module of JAX, which is loaded by the first name that is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _load()
        value = getattr(importlib.import_module(self._name), name)
        if not _unsettled:  # else some thread has to settle its precision here
            setattr(self, name, value)
        return value


class _Jitted:
    """`jax.jit(function, **options)`, made at the first call."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._options = options
        functools.update_wrapper(self, function)

    @functools.cached_property
    def _made(self) -> Any:
        return _load().jit(self.__wrapped__, **self._options)  # pyright: ignore[reportAttributeAccessIssue]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if _unsettled:
            _load()
        return self._made(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._made, name)

    def __reduce__(self) -> str:
        return self.__qualname__  # pyright: ignore[reportAttributeAccessIssue]


class _TreeUtil(_Module):
    """`jax.tree_util`, whose registrations wait for JAX."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("register_"):
            return super().__getattr__(name)

        def register(kind: Any, *arguments: Any, **named: Any) -> Any:
            _when_loaded(
                lambda: getattr(importlib.import_module(self._name), name)(kind, *arguments, **named)
            )
            return kind

        return register


class _Jax(_Module):
    """`jax`, whose `jit` waits for the first call."""

    tree_util = _TreeUtil("jax.tree_util")

    @staticmethod
    def jit(function: Callable[..., Any], **options: Any) -> _Jitted:
        return _Jitted(function, options)


if TYPE_CHECKING:
    import jax as jax
    import jax.numpy as jnp
else:
    jax, jnp = _Jax("jax"), _Module("jax.numpy")
