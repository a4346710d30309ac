"""What a fit says in public before it looks at data, and what it sets afterwards, for every linear model.

The functions here ask a model for its arguments and hooks, and are the only ones beside the model to do so.
"""

# pyright: reportPrivateUsage=none
# A model's hooks are hidden from its users, not from these functions.

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d, validate_data

from privopt.data import cells
from privopt.errors import ArgumentError
from privopt.estimators import arguments
from privopt.estimators.penalties import PenaltyArguments, default_strength
from privopt.estimators.scale_estimation import ScaleEstimation, scale_estimation
from privopt.estimators.scaling import FeatureScaling
from privopt.estimators.setup import Setup
from privopt.ledger.amounts import Budget
from privopt.planning.plan import Plan
from privopt.problems.problem import Problem
from privopt.public import Relation
from privopt.queries.holdout_scores import Score
from privopt.report.model import ModelSummary
from privopt.report.report import PrivacyReport, Selection
from privopt.result import Result

if TYPE_CHECKING:
    from privopt.estimators.base import PrivateLinearModel

UNIT = "unit"
INTERCEPT = 1.0  # value of the constant column: as large as the largest scaled feature
GIVEN = "Columns are in the units that they were given in."
ROUNDED_UP = 1.0 + 2.0**-20  # so that rounding to float32 never makes a row longer than its bound


def checked_budget(model: "PrivateLinearModel", rows: int | None) -> Budget:
    """The model's budget, its arguments once checked; `rows`, if public, is named in the advice on delta.

    Raises:
        ValueError, TypeError: an argument is out of its range; epsilon, delta or, under add-or-remove-one, n is
            missing; or the account was lost.
    """
    arguments.check_model(model)
    arguments.check_groups_of_features(model)
    relation = Relation.parse(model.relation)
    if relation is Relation.ADD_OR_REMOVE_ONE and model.n is None:
        raise ValueError(
            "n is missing: under add-or-remove-one the number of units is private. Give a public nominal number that "
            "no data set exceeds, or use relation='replace-one', which takes the number as public."
        )
    if model.account is None and getattr(model, "_account_lost", False):
        raise ValueError(
            "this estimator was pickled, and the account that paid for its fit stayed behind: give it one with "
            "set_params(account=...), or fit a clone."
        )
    known = rows if relation is Relation.REPLACE_ONE else None
    return arguments.checked_budget(model.epsilon, model.delta, known if model.n is None else model.n)


def checked_arrays(model: "PrivateLinearModel", X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
    """Features and targets, checked by shape and type only.

    Raises:
        ValueError, TypeError: a shape or a type is wrong.
    """
    name = type(model).__name__
    if y is None:
        raise ValueError(f"{name} requires y to be passed, but the target y is None.")
    # Under add-or-remove-one the number of rows is private: even none is a data set.
    least = 1 if Relation.parse(model.relation) is Relation.REPLACE_ONE else 0
    private_features = checked_features(model, X, least=least, reset=True)
    private_targets = column_or_1d(cells.targets(y, labels=is_classifier(model)), warn=True)
    check_consistent_length(private_features, private_targets)
    if least == 1 and model.n is None and len(private_targets) < 2:
        raise ValueError(
            "a private fit needs at least 2 units, got n_samples = 1: a mean over one hides nobody."
        )
    return private_features, private_targets


def checked_features(model: "PrivateLinearModel", X: Any, *, least: int, reset: bool) -> Any:
    """Features as numbers, their names and number noted (`reset`) or compared with those of the fit.

    Raises:
        ValueError, TypeError: a shape or a type is wrong, or there are fewer than `least` rows.
    """
    private_features = cells.matrix(X)
    if private_features.ndim != 2:  # scikit-learn's sentence would print the cells
        raise ArgumentError(
            f"Expected 2D array, got {private_features.ndim}D array instead. "
            "Reshape your data to (rows, features): X[:, None] for a single feature, X[None, :] for a single row."
        )
    options: dict[str, Any] = {"accept_sparse": "csr", "ensure_all_finite": False, "dtype": None}
    private_features = check_array(
        private_features, **options, ensure_min_samples=least, estimator=model, input_name="X"
    )
    private_named: Any = X if isinstance(X, pd.DataFrame) else private_features
    validate_data(model, private_named, reset=reset, skip_check_array=True)
    return private_features


def units_in(model: "PrivateLinearModel", rows: int, groups: Any) -> int:
    """The public number of units: the model's n, or under replace-one that of the rows or users."""
    if model.n is not None:
        return model.n
    if groups is None:
        return rows
    return cells.user_count(int(cells.user_codes(groups, rows).max(initial=-1)) + 1)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The public sizes of a fit.

    Attributes:
        width: number of features.
        n: number of units.
        by_user: whether a unit is a user.
        is_sparse: whether the features are sparse.
        names: of the features, where they are known.
        budget: of the fit or search.
    """

    width: int
    n: int
    by_user: bool
    is_sparse: bool = False
    names: Sequence[str] | None = None
    budget: Budget | None = None

    def setup(self, model: "PrivateLinearModel", y: NDArray[Any] | None) -> Setup:
        """Everything public about a fit of this shape."""
        return setup_of(
            model, self.width, self.n, y, is_sparse=self.is_sparse, names=self.names, budget=self.budget
        )


def setup_of(
    model: "PrivateLinearModel",
    width: int,
    n: int,
    y: NDArray[Any] | None,
    *,
    is_sparse: bool,
    names: Sequence[str] | None = None,
    budget: Budget | None = None,
) -> Setup:
    """Everything public about a fit, from the arguments and sizes.

    Args:
        model: the estimator.
        width: number of features.
        n: number of units.
        y: the targets, for labels that the user declared public by classes="from_y"; None without data.
        is_sparse: whether the features are sparse.
        names: of the features, where they are known.
        budget: of the fit, for the default strength of a sparse penalty; not needed to translate parameters.
    Raises:
        ValueError, TypeError: an argument is missing or out of its range.
    """
    features, scales = _scaling(model, width, is_sparse=is_sparse)
    targets, labels = model._domain(y)
    unit_rows = model._unit_rows if model.row_bound is None else is_unit(model.row_bound)
    if unit_rows and not model._unit_rows:
        raise ValueError("row_bound='unit' is for classifiers: it would not leave a linear regression.")
    if unit_rows:
        row_bound = ROUNDED_UP
    elif model.row_bound is None:
        row_bound = math.sqrt(width) * ROUNDED_UP
    else:
        row_bound = arguments.positive("row_bound", model.row_bound, "the largest l2 norm of a scaled row")
    setup = Setup(
        features=features,
        scales=scales,
        targets=targets,
        labels=labels,
        row_bound=row_bound,
        unit_rows=unit_rows,
        intercept=INTERCEPT if model.fit_intercept else None,
        problem=Problem(model._loss(targets, labels)),
        relation=Relation.parse(model.relation),
        given_n=model.n,
        max_records_per_user=model.max_records_per_user,
        user_weighting=model.user_weighting,
    )
    default = strength_default(model, setup, n, budget)
    penalty, loss, intercept = penalty_of(model), setup.problem.loss, model.fit_intercept
    regulariser = penalty.regulariser(
        width=width, default=default, intercept=intercept, kind=type(model).__name__, names=names
    )
    constraint = penalty.constraint(width=width, outputs=loss.outputs, intercept=intercept)
    alpha = penalty.strength(default) if penalty.is_penalised else None
    return replace(setup, alpha=alpha, problem=Problem(loss, regulariser, constraint))


def strength_default(model: "PrivateLinearModel", setup: Setup, n: int, budget: Budget | None) -> float:
    """The strength of the penalty where none was given."""
    public = setup.public(n, by_user=False)
    return default_strength(penalty_of(model), Problem(setup.problem.loss), public, budget)


def _scaling(
    model: "PrivateLinearModel", width: int, *, is_sparse: bool
) -> tuple[FeatureScaling, ScaleEstimation | None]:
    """The scaling by the bounds; or by the loose ones, and how better ones will be estimated."""
    if model.bounds is not None and model.loose_bounds is not None:
        raise ValueError(
            "bounds and loose_bounds were both given: give bounds if the range of the features is known, or "
            "loose_bounds alone to have it estimated privately."
        )
    if model.bounds is None and model.loose_bounds is None:
        raise arguments.missing_bounds(type(model).__name__)
    known = model.bounds is not None
    given, name = (model.bounds, "bounds") if known else (model.loose_bounds, "loose_bounds")
    scaling = FeatureScaling.of(given, width, centered=model.fit_intercept, keep_zero=is_sparse, name=name)
    if known:
        return scaling, None
    return scaling, scale_estimation(given, model.scale_budget, width, keep_zero=is_sparse)


def penalty_of(model: "PrivateLinearModel") -> PenaltyArguments:
    """A model's arguments about its penalty."""
    return PenaltyArguments(
        penalty=model.penalty,
        alpha=model.alpha,
        l1_ratio=model.l1_ratio,
        feature_groups=model.feature_groups,
        l1_radius=model.l1_radius,
    )


def is_unit(row_bound: Any) -> bool:
    """Whether a row bound asks for rows of length 1."""
    return isinstance(row_bound, str) and row_bound == UNIT


def with_penalty(model: "PrivateLinearModel", plan: Plan, alpha: float | None) -> Plan:
    """The plan of a fit, with what it says about the penalty."""
    return replace(plan, settings={**plan.settings, **penalty_of(model).settings(alpha)})


def set_parameters(model: "PrivateLinearModel", params: Any, setup: Setup) -> None:
    """Set `coef_`, `intercept_` and what they were fitted with, from released parameters and a setup."""
    model.alpha_, model.bounds_ = setup.alpha, (setup.features.low, setup.features.high)
    model._adopt(*setup.unscaled(params), setup)


def parameters_in(model: "PrivateLinearModel", setup: Setup) -> NDArray[np.float64]:
    """A fitted model's parameters in the scaled units of another setup, (outputs, d + 1)."""
    return setup.scaled(*model._adopted(setup))


def record_score(model: "PrivateLinearModel", setup: Setup) -> Score:
    """See `PrivateLinearModel._record_score`."""
    return model._record_score(setup)


def declarations(model: "PrivateLinearModel", setup: Setup, *, by_user: bool) -> tuple[str, ...]:
    """What the user declared to be public, in sentences."""
    if setup.scales is None:
        told = f"Bounds, given by the user: {setup.features.describe()}; values outside were moved to the nearer end."
    else:
        told = (
            f"Loose bounds, given by the user: {setup.scales.loose.describe()}. Tighter ones were estimated privately, "
            f"in one release, for {100 * setup.scales.share:g} % of the budget (of its rho); values outside were moved "
            "to the nearer end."
        )
    sentences = [told, model._declared_target()]
    penalty = penalty_of(model).describe()
    if penalty is not None:
        sentences.append(penalty)
    if model.row_bound is not None and not setup.unit_rows:
        sentences.append(
            f"Longest scaled row, given by the user: {setup.row_bound:g}; longer rows were shortened."
        )
    units = "users" if by_user else "records"
    if model.n is not None:
        sentences.append(f"Number of {units}, given by the user: {model.n:,}.")
    else:
        sentences.append(f"Number of {units}: public under replace-one.")
    if by_user:
        sentences.append("User keys, given by the user: they name the owner of every record.")
    return tuple(sentences)


def set_report(
    model: "PrivateLinearModel",
    result: Result,
    setup: Setup,
    *,
    steps: int,
    declared: tuple[str, ...],
    selection: Selection | None = None,
) -> None:
    """Set `plan_`, `n_iter_` and `privacy_` from a result whose parameters are set."""
    assert result.plan is not None
    model.plan_ = result.plan
    model.n_iter_ = steps
    model.privacy_ = PrivacyReport.of(
        result,
        declared=declared,
        model=ModelSummary.of(
            type(model).__name__,
            model.coef_,
            features=getattr(model, "feature_names_in_", None),
            intercept=model.intercept_ if model.fit_intercept else None,
            classes=None if setup.labels is None else list(setup.labels),
            meaning=meaning(model),
        ),
        divided_rows=setup.unit_rows,
        selection=selection,
    )


def meaning(model: "PrivateLinearModel", columns: str = GIVEN) -> str:
    """What a fitted model's coefficients are, in sentences.

    Args:
        model: the fitted model.
        columns: in which units the columns are, in a sentence.
    """
    if _divided(model):
        what = (
            "A coefficient says what one unit of its column adds to a record's score; the score is then divided by the "
            f"length of the record's scaled row, which makes it {model._score_means()}."
        )
    else:
        what = f"A coefficient says what one unit of its column adds to {model._score_means()}."
    return f"{what} {columns}"


def _divided(model: "PrivateLinearModel") -> bool:
    """Whether a fitted model's rows were divided by their lengths."""
    return getattr(model, "row_lengths_", None) is not None
