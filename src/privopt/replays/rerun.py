"""A run again, on recorded answers: the solver is rebuilt from its recipe and must ask for what was released.

Nothing of a recipe is believed: the plan that follows from it is compared with the report's, by `replays.check`.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from privopt.curator.replay import Replay
from privopt.curator.transcript import Transcript
from privopt.estimators.records import Shape
from privopt.estimators.saving import SAVED
from privopt.estimators.setup import Setup
from privopt.estimators.stages import Fitted, StagedPlan
from privopt.later import jnp
from privopt.ledger.amounts import Budget
from privopt.planning.plan import Plan
from privopt.planning.row_length import SourceColumn
from privopt.precision import in_float64
from privopt.problems.problem import Problem
from privopt.public import Public, Relation
from privopt.replays.recipes import ESTIMATOR, MINIMIZE, Unwritten, read, recipe_of, recipe_of_fit
from privopt.report.kept import Recipe
from privopt.report.report import PrivacyReport
from privopt.solve import announce
from privopt.solvers.base import Solver

MOST_PARAMETERS = 10**6
MOST_UNITS = 10**8
MOST_STEPS = 10**6  # or any other whole number among the fields of a solver
MOST_WORK = 10**10  # releases, times parameters


@dataclass(frozen=True)
class Again:
    """What a run would be, rebuilt from its recipe.

    Attributes:
        plan: what is announced.
        parameters: how many numbers it ends with.
        recipe: what was asked, written down anew from what was rebuilt.
        run: runs it on recorded answers, and gives its report, and its coefficients and intercept where it is a model.
    """

    plan: Plan
    parameters: int
    recipe: Recipe
    run: Callable[[Transcript], tuple[PrivacyReport, tuple[Any, ...]]]


class Unreplayable(ValueError):
    """A recipe that describes no run of this version of privopt; the sentence has no full stop."""


def rebuilt(recipe: Mapping[str, Any]) -> Again:
    """The run that a recipe describes.

    Raises:
        Unreplayable: it describes none.
    """
    kinds = {MINIMIZE: _minimized, ESTIMATOR: _fitted}
    make = kinds.get(str(recipe.get("kind")))
    if make is None:
        raise Unreplayable("its recipe is of a kind that is not known here")
    arguments: Any = recipe.get("arguments")
    given = [recipe.get("solver"), arguments.get("solver") if isinstance(arguments, dict) else None]
    if _largest(given) > MOST_STEPS or _largest(arguments) > MOST_UNITS:
        raise Unreplayable(
            f"its solver takes more than {MOST_STEPS:,} steps, or its data have too many units"
        )
    try:
        with in_float64():
            return make(recipe)
    except Unreplayable:
        raise
    except Unwritten as error:
        raise Unreplayable(str(error)) from None
    except Exception:  # a part of it is missing, of another type, or out of its range
        raise Unreplayable("its recipe describes no run that this version of privopt makes") from None


def _minimized(recipe: Mapping[str, Any]) -> Again:
    problem, given = read(recipe["problem"]), read(recipe["solver"])
    stated: dict[str, Any] = {name: read(value) for name, value in recipe["public"].items()}
    stated["relation"] = Relation.parse(stated["relation"])
    public = Public(**stated)
    epsilon, delta = read(recipe["budget"])
    if not isinstance(problem, Problem) or not isinstance(given, Solver | str):
        raise Unreplayable("its recipe names no problem or no solver")
    parameters = _require_small(public.n, problem.parameter_shape(public))
    start = None if recipe["start"] is None else jnp.asarray(read(recipe["start"]), jnp.float64)
    budget = Budget(epsilon, delta)
    solver, plan = announce(problem, public, budget, given)
    asked = recipe_of(problem, public, budget, given, start)

    def run(recorded: Transcript) -> tuple[PrivacyReport, tuple[Any, ...]]:
        curator = Replay(recorded, public)
        result = solver.solve(curator, problem, start)
        curator.require_end()
        report = PrivacyReport.of(result._replace(plan=plan, recipe=asked))
        return report, (np.asarray(result.params),)

    return Again(plan, parameters, asked, run)


def _fitted(recipe: Mapping[str, Any]) -> Again:
    kind = str(recipe["estimator"])
    if kind not in SAVED:
        raise Unreplayable("it is no linear model of the library")
    made = getattr(importlib.import_module("privopt"), kind)
    model: Any = made(**{name: read(value) for name, value in recipe["arguments"].items()})
    labels, names, columns = read(recipe["labels"]), recipe["names"], recipe.get("columns")
    width, n = _whole(recipe["width"]), _whole(recipe["n"])
    _require_small(n, (width,))
    shape = Shape(
        width=width,
        n=n,
        by_user=recipe["by_user"] is True,
        is_sparse=recipe["sparse"] is True,
        row_entries=recipe.get("row_entries"),  # of older reports none
        names=names,
        columns=None if columns is None else [SourceColumn(**column) for column in columns],
        budget=model._budget(model._specification(), n),
    )
    setup = model._setup(shape, labels)
    parameters = _require_small(n, (width + 1, setup.problem.loss.outputs))
    plan, fit = _planned(model, setup)
    plan = setup.specification.penalty.shown_in(setup.noted(plan), setup.alpha)
    asked = recipe_of_fit(
        kind,
        model.get_params(deep=False),
        shape,
        names=names,
        labels=setup.target.labels,
    )

    def run(recorded: Transcript) -> tuple[PrivacyReport, tuple[Any, ...]]:
        fitted = fit(recorded)
        fitted = fitted._replace(result=fitted.result._replace(plan=plan, recipe=asked))
        bounds = () if setup.loose is None else (fitted.setup.features.low, fitted.setup.features.high)
        return fitted.report(names, ()), (*fitted.setup.unscaled(fitted.result.params), *bounds)

    return Again(plan, parameters, asked, run)


def _planned(model: Any, setup: Setup) -> tuple[Plan, Callable[[Transcript], Fitted]]:
    """The plan of a fit, and the fit on recorded answers."""
    staged, public = StagedPlan.of(setup, model._solver(setup)), setup.planned
    if staged is not None:

        def in_stages(recorded: Transcript) -> Fitted:
            curator, within = Replay(recorded, setup.loose_public if staged.scales else public), setup
            if staged.scales is not None:
                within = setup.within(staged.scales.release(curator))
                curator = curator.beside(within.public)
            fitted = staged.fitted(lambda name, event: curator, within)
            curator.require_end()
            return fitted

        return staged.plan, in_stages
    solver, plan = announce(setup.problem, public, setup.shape.known_budget, model._solver(setup))

    def at_once(recorded: Transcript) -> Fitted:
        curator = Replay(recorded, public)
        result = solver.solve(curator, setup.problem)._replace(plan=plan)
        curator.require_end()
        return Fitted(result, setup, result.transcript.releases)

    return plan, at_once


def _largest(form: Any) -> int:
    """The largest whole number in JSON values, but for seeds."""
    if isinstance(form, dict):
        members = cast("dict[str, Any]", form)
        return max((_largest(value) for name, value in members.items() if "seed" not in name), default=0)
    if isinstance(form, list):
        return max((_largest(value) for value in cast("list[Any]", form)), default=0)
    return form if isinstance(form, int) else 0


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unreplayable("a size in its recipe is no whole number")
    return value


def _require_small(n: int, shape: Sequence[int]) -> int:
    parameters = int(np.prod([int(size) for size in shape], dtype=object))
    if not (0 < parameters <= MOST_PARAMETERS and n <= MOST_UNITS):
        raise Unreplayable(f"its sizes are beyond what is replayed ({MOST_PARAMETERS:,} parameters)")
    return parameters
