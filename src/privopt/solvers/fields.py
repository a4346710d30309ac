"""Fields of a solver: each declares its range where it stands, so that a solver checks and completes itself.

    step_size: float = derived(above=0)          left open, it is derived from public numbers
    growth: KL | None = None                     any other field, as in every dataclass
    smoothness: float | None = optional(above=0) stays None unless it is given
    failure: float = number(0.1, above=0, below=1)
    gain: Literal["optimal", "average"] = choice("optimal")

A field that is derived holds None until `Solver.filled` has set it; `is_set` tells. A derived `clip` may also be given
as "auto": it is then chosen privately, see `clip_choice`. What may stand in a field follows
from its annotation: `int` wants a whole number, `Literal[...]` one of its words, `bool` True or False.
"""

import dataclasses
import functools
import math
import re
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
from collections.abc import Callable
from typing import TypeVar

from privopt.later import jax, jnp
from privopt.precision import is_in_numpy

_KEY = "declared"
AUTO_CLIP = "auto"  # for the field `clip`: chosen privately


@dataclass(frozen=True)
class Declared:
    """What a field may hold.

    Attributes:
        derived: whether it is derived from public numbers where it was left open.
        above, at_least, below, at_most: the range of a number.
    """

    derived: bool = False
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None

    def contains(self, value: float) -> bool:
        """Whether a number is in the range; no range contains NaN."""
        return not math.isnan(value) and not (
            (self.above is not None and value <= self.above)
            or (self.at_least is not None and value < self.at_least)
            or (self.below is not None and value >= self.below)
            or (self.at_most is not None and value > self.at_most)
        )

    def __str__(self) -> str:
        ends = [
            f"{words} {end:g}"
            for words, end in (
                ("above", self.above),
                ("at least", self.at_least),
                ("below", self.below if self.below != math.inf else None),
                ("at most", self.at_most),
            )
            if end is not None
        ]
        return " and ".join([*ends, *(["finite"] if self.below == math.inf else [])])


def derived(
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> Any:
    """A field that is derived from public numbers where it was left open."""
    return _field(None, Declared(True, above, at_least, below, at_most))


def optional(
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> Any:
    """A number that may be missing."""
    return _field(None, Declared(False, above, at_least, below, at_most))


def number(
    default: float,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> Any:
    """A number with a default."""
    return _field(default, Declared(False, above, at_least, below, at_most))


def choice(default: str) -> Any:
    """One of the words of the field's `Literal` annotation."""
    return _field(default, Declared())


def _field(default: Any, allowed: Declared) -> Any:
    return dataclasses.field(default=default, metadata={_KEY: allowed})


def declared(kind: type[Any]) -> dict[str, Declared]:
    """The declared fields of a solver's class, in order."""
    return {f.name: f.metadata[_KEY] for f in dataclasses.fields(kind) if _KEY in f.metadata}


def check_fields(program: "DataclassInstance") -> None:
    """Refuse what a field may not hold.

    Raises:
        ValueError, TypeError: it says the field, what was given, and what would be right.
    """
    kind = type(program)
    hints = _annotations(kind)
    for field in dataclasses.fields(kind):
        value = getattr(program, field.name)
        if value is not None and not asks_for_clip(field.name, value):
            _check(kind, field.name, field.metadata.get(_KEY, Declared()), hints[field.name], value)


def asks_for_clip(name: str, value: Any) -> bool:
    """Whether a field's value asks for a private choice of the clip."""
    return name == "clip" and isinstance(value, str) and value == AUTO_CLIP


def _check(kind: type[Any], name: str, allowed: Declared, hints: tuple[Any, ...], value: Any) -> None:
    words = [word for hint in hints if typing.get_origin(hint) is Literal for word in typing.get_args(hint)]
    if words:
        if value not in words:
            raise ValueError(f"{name} must be one of {words}, got {value!r}.")
        return
    if bool in hints:
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}{_reason(kind, name)}.")
        return
    whole = int in hints and float not in hints
    numbers = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    if not (whole or float in hints):
        return
    if isinstance(value, bool) or not isinstance(value, numbers):
        noun = "a whole number" if whole else "a number"
        noun += f" or {AUTO_CLIP!r}" if name == "clip" else ""
        raise TypeError(f"{name} must be {noun}, got {value!r}{_reason(kind, name)}.")
    if not allowed.contains(float(value)):
        raise ValueError(f"{name} must be {allowed}, got {value!r}{_reason(kind, name)}.")


@functools.cache
def _annotations(kind: type[Any]) -> dict[str, tuple[Any, ...]]:
    """The members of every field's annotation: (float, NoneType) for `float | None`."""
    return {
        name: typing.get_args(hint) if _is_union(hint) else (hint,)
        for name, hint in typing.get_type_hints(kind).items()
    }


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, type(int | None))


@functools.cache
def _reason(kind: type[Any], name: str) -> str:
    """What the class says a field is, as the end of a sentence; empty where it says nothing."""
    for base in kind.__mro__:
        found = re.search(
            rf"^ +{name}: (.*?)(?:\.$|\. |; |\n {{4,8}}\w+: |\n\n)",
            base.__doc__ or "",
            re.MULTILINE | re.DOTALL,
        )
        if found:
            return f": it is {' '.join(found.group(1).split()).rstrip('.')}"
    return ""


# ---- Steps that stop by themselves: from the first state that is not finite on, nothing moves --------------


LARGEST = 1e30  # no descent on float32 rows ends there; squares of what is larger soon overflow

State = TypeVar("State", bound=tuple[Any, ...])


def guarded(step: Callable[..., State]) -> Callable[..., State]:
    """A step that keeps the last finite state.

    Args:
        step: `step(state, ...) -> state`; the state is a NamedTuple with a boolean field `finite`, which the step may
            leave as it is.
    Returns:
        The same step; where an entry of the new state is not finite, or beyond `LARGEST`, it returns the old one with
        `finite` false, and from there on it returns that. Both are functions of releases: looking costs nothing.
    """

    @functools.wraps(step)
    def kept(state: State, *arguments: Any, **options: Any) -> State:
        moved = step(state, *arguments, **options)
        if is_in_numpy():
            leaves = (np.abs(leaf) for leaf in moved if getattr(leaf, "dtype", np.dtype(float)).kind == "f")
            finite = bool(state.finite) and all(leaf.max() <= LARGEST for leaf in leaves)  # type: ignore[attr-defined]
            ended: Any = moved if finite else state
            return ended._replace(finite=np.bool_(finite))
        finite = _is_finite(moved) & state.finite  # type: ignore[attr-defined]
        still = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, state)
        return still._replace(finite=finite)

    return kept


def _is_finite(state: Any) -> Any:
    leaves = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
    return functools.reduce(
        jnp.logical_and, (jnp.all(jnp.abs(leaf) <= LARGEST) for leaf in leaves), jnp.asarray(True)
    )
