"""What is said of an argument that a function or a class does not have. Everything here is public."""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np

from privopt.errors import ArgumentTypeError

P = ParamSpec("P")
R = TypeVar("R")

RENAMED = {"seed": "random_state", "level": "quantile"}
_WEIGHTS = (
    "records are weighted alike. privopt.minimize takes a loss of your own, which may multiply by a column that holds "
    "the weights"
)
WAYS_OUT = {
    "sample_weight": _WEIGHTS,
    "class_weight": _WEIGHTS,
    "exposure": "give the count divided by the exposure as the target, with target_bounds for that rate, or "
    "log(exposure) as one more column of X",
    "offset": "in a linear regression subtract the offset from the target; in other models give it as one more column "
    "of X",
}


def unknown_argument(owner: str, name: str, known: Collection[str]) -> ArgumentTypeError:
    """The error for an argument that is not there, with what to give in its place.

    Args:
        owner: the function or class, as the user called it.
        name: of the argument.
        known: the arguments that there are.
    """
    if RENAMED.get(name) in known:
        return ArgumentTypeError(f"{owner} has no argument {name!r}: it is called {RENAMED[name]!r} here.")
    if name in WAYS_OUT:
        return ArgumentTypeError(f"{owner} has no argument {name!r} yet: {WAYS_OUT[name]}.")
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}."
    return ArgumentTypeError(f"{owner} has no argument {name!r}: {hint}")


def refuses_unknown(function: Callable[P, R]) -> Callable[P, R]:
    """A function, or a method, that answers an argument it does not have with a sentence."""
    parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    is_method = len(parameters) < len(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*given: P.args, **named: P.kwargs) -> R:
        owner = f"{type(given[0]).__name__}.{function.__name__}" if is_method and given else function.__name__
        _check(owner, parameters, len(given) - is_method, named)
        return function(*given, **named)

    return checked


class NamedArguments:
    """A class whose constructor answers an argument that it does not have with a sentence."""

    def __new__(cls, *given: Any, **named: Any) -> Self:
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        # A class of the user's own may take whatever it likes.
        if not any(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in parameters):
            _check(cls.__name__, parameters, len(given), named)
        return super().__new__(cls)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """As scikit-learn prints an estimator; labels that NumPy holds are printed as Python's."""
        inherited: Any = super().__repr__
        with np.printoptions(legacy="1.25"):
            return inherited(N_CHAR_MAX)


def _check(owner: str, parameters: Collection[inspect.Parameter], given: int, named: Collection[str]) -> None:
    """Refuse arguments that a function does not have, by name, or more by position than it takes."""
    known = [one.name for one in parameters]
    for name in named:
        if name not in known:
            raise unknown_argument(owner, name, known)
    by_place = [one.name for one in parameters if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    if given > len(by_place):
        raise _too_many(owner, by_place, [name for name in known if name not in by_place])


def _too_many(owner: str, by_place: Collection[str], by_name: Collection[str]) -> ArgumentTypeError:
    """The error for more arguments by position than there are."""
    if not by_place:
        return ArgumentTypeError(f"{owner} takes every argument by its name: {', '.join(by_name)}.")
    keys = (
        " User keys are given as groups=..., and there are no sample weights." if "groups" in by_name else ""
    )
    return ArgumentTypeError(
        f"{owner} takes only {' and '.join(by_place)} without a name: name the others ({', '.join(by_name)}).{keys}"
    )


def check_observer(observer: Any) -> None:
    """Refuse an observer that cannot be called.

    Raises:
        TypeError: it cannot.
    """
    if not (observer is None or callable(observer)):
        raise TypeError(
            f"observer must be a function of (name, count) or None, got {type(observer).__name__}."
        )
