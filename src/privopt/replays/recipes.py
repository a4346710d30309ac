"""What a run was asked, written down, so that it can be rebuilt beside its released values."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from privopt import papers, solvers
from privopt.ledger.amounts import Budget
from privopt.planning.kl_theory import FallingNoise
from privopt.problems import constraints, losses, regularisers
from privopt.problems.constraints import Constraint
from privopt.problems.glm import GLMLoss
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Regulariser
from privopt.public import Public
from privopt.report.kept import Recipe
from privopt.solvers.base import Solver
from privopt.solvers.registry import SOLVERS

if TYPE_CHECKING:
    from privopt.estimators.specification import Shape

MINIMIZE, ESTIMATOR = "minimize", "estimator"
UNRECORDED = ("account", "random_state")  # arguments of an estimator that no release depends on


def asked_of(estimator: Any) -> dict[str, Any]:
    """The arguments of an estimator that its releases depend on, those of an estimator inside it first."""
    given = {name: value for name, value in estimator.get_params().items() if name not in UNRECORDED}
    return dict(sorted(given.items(), key=lambda pair: "__" not in pair[0]))


def recipe_of(problem: Problem, public: Public, budget: Budget, solver: Solver | str, start: Any) -> Recipe:
    """What `minimize` was asked, the start flat.

    Returns:
        The recipe; one with an obstacle where a part of it is the user's own.
    """
    try:
        values = {
            "problem": written(problem),
            "public": {name: written(value) for name, value in _plain(public).items()},
            "budget": written([budget.epsilon, budget.delta]),
            "solver": written(solver),
            "start": None if start is None else written(np.asarray(start, np.float64)),
        }
    except Unwritten as error:
        return Recipe(obstacle=str(error))
    return Recipe(MINIMIZE, values)


def recipe_of_fit(
    kind: str,
    arguments: dict[str, Any],
    shape: "Shape",
    *,
    names: Sequence[str] | None,
    labels: Any,
) -> Recipe:
    """What a linear model was asked.

    Args:
        kind: its class.
        arguments: as they were given.
        shape: the sizes of the fit.
        names: of the features, where they are known.
        labels: of the classes; None of a regression.

    Returns:
        The recipe; one with an obstacle where an argument is the user's own.
    """
    try:
        values = {
            "estimator": kind,
            "arguments": {
                name: written(value) for name, value in arguments.items() if name not in UNRECORDED
            },
            "width": shape.width,
            "n": shape.n,
            "by_user": shape.by_user,
            "sparse": shape.is_sparse,
            "row_entries": shape.row_entries,
            "columns": None if shape.columns is None else [asdict(column) for column in shape.columns],
            "names": None if names is None else [str(name) for name in names],
            "labels": None if labels is None else written(np.asarray(labels)),
        }
    except Unwritten as error:
        return Recipe(obstacle=str(error))
    return Recipe(ESTIMATOR, values)


def _plain(public: Public) -> dict[str, Any]:
    return asdict(public) | {"relation": public.relation.value}


# ------------------------------------------------------------------------------------------------------------
# Solvers, losses, regularisers and constraint sets as JSON values, and back; of no other class is anything
# built.
# Whoever reads a report may have got it from anywhere. What is built here is one of the library's own frozen values by
# its name, from numbers, texts and further such values; its own checks refuse what is out of range.


_KIND, _TUPLE, _NUMBER, _ARRAY = "$kind", "$tuple", "$number", "$array"


class Unwritten(ValueError):
    """A value has no such form; the sentence says which."""


def _parts() -> dict[str, type]:
    """Losses, regularisers, constraint sets, and what puts them together."""
    parts = {
        value
        for module in (constraints, losses, regularisers)
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Constraint | GLMLoss | Regulariser)
        and dataclasses.is_dataclass(value)
    }
    return {one.__name__: one for one in {*parts, Problem, KL, FallingNoise}}


PARTS = _parts()
OFFERED = frozenset(name for make in SOLVERS.values() for name in make.classes)


def _kind(name: str) -> type | None:
    """The class of such values; a solver's is loaded where it occurs."""
    if name in PARTS:
        return PARTS[name]
    room = solvers if name in OFFERED else papers if name in papers.SOLVERS.values() else None
    return None if room is None else getattr(room, name)


def written(value: Any) -> Any:
    """A value as JSON values.

    Raises:
        Unwritten: it has no such form, or does not come back as it was.
    """
    form = _written(value)
    if written_form(read(form)) != form:
        raise Unwritten(f"a {type(value).__name__} does not come back as it was")
    return form


def written_form(value: Any) -> Any:
    """`written`, without the way back."""
    return _written(value)


def _written(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_NUMBER: repr(value)}
    if isinstance(value, tuple):
        return {_TUPLE: [_written(one) for one in cast("tuple[Any, ...]", value)]}
    if isinstance(value, list):
        return [_written(one) for one in cast("list[Any]", value)]
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufU":
            raise Unwritten("an array of objects has no plain form")
        return {_ARRAY: [_written(one) for one in np.ravel(value).tolist()], "shape": list(value.shape)}
    if _kind(type(value).__name__) is type(value):
        fields = [field for field in dataclasses.fields(value) if field.init]
        return {
            _KIND: type(value).__name__,
            **{field.name: _written(getattr(value, field.name)) for field in fields},
        }
    raise Unwritten(f"a {type(value).__name__} of the user's own has no plain form")


def without_tuples(form: Any) -> Any:
    """A written value with lists in place of tuples, as JSON has them; but for what is within a solver and the like."""
    if isinstance(form, list):
        return [without_tuples(one) for one in cast("list[Any]", form)]
    if not isinstance(form, dict) or _KIND in form:
        return cast("Any", form)
    members = cast("dict[str, Any]", form)
    if set(members) == {_TUPLE}:
        return without_tuples(members[_TUPLE])
    return {name: without_tuples(one) for name, one in members.items()}


def read(form: Any) -> Any:
    """The value that was written.

    Raises:
        Unwritten: nothing of the library is written like that.
        ValueError, TypeError: a number is out of its range.
    """
    if isinstance(form, list):
        return [read(one) for one in cast("list[Any]", form)]
    if not isinstance(form, dict):
        return form
    members = cast("dict[str, Any]", form)
    if set(members) == {_NUMBER}:
        return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[members[_NUMBER]]
    if set(members) == {_TUPLE}:
        return tuple(read(one) for one in _list(members[_TUPLE]))
    if set(members) == {_ARRAY, "shape"}:
        return np.asarray(read(_list(members[_ARRAY]))).reshape(_list(members["shape"]))
    return _built(members)


def _built(members: Mapping[str, Any]) -> Any:
    kind = _kind(str(members.get(_KIND)))
    if kind is None:
        raise Unwritten("it names no solver, loss, regulariser or constraint set of the library")
    known = {field.name for field in dataclasses.fields(kind) if field.init}
    given = {name: read(value) for name, value in members.items() if name != _KIND}
    if set(given) - known:
        raise Unwritten(f"{kind.__name__} has no such fields")
    return kind(**given)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Unwritten("a list is missing")
    return cast("list[Any]", value)
