"""What every private linear model shares: its arguments, one fit, and predictions in the user's units.

A fit says everything public first (`Setup`), turns the arrays into privacy units, asks `minimize` for released
parameters, and translates them back. A fitted model keeps no data, no noise and no door.
"""

# pyright: reportPrivateUsage=none
# A model's hooks are hidden from its users, not from the functions of this file, which are the only ones to call them.

import abc
import inspect
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from privopt.curator import Observer
from privopt.engine.users import Weighting
from privopt.estimators import arguments
from privopt.estimators.holdout import Score
from privopt.estimators.scaling import FeatureScaling, TargetScaling
from privopt.estimators.setup import Setup
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.plans import Plan
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser, Regulariser, Ridge
from privopt.public import Relation
from privopt.report.model import ModelSummary
from privopt.report.report import PrivacyReport, Selection
from privopt.result import Result
from privopt.solve import minimize
from privopt.solve import plan as plans_for
from privopt.solvers.base import Solver

UNIT = "unit"
INTERCEPT = 1.0  # value of the constant column: as large as the largest scaled feature
ROUNDED_UP = 1.0 + 2.0**-20  # so that rounding to float32 never makes a row longer than its bound
SEARCHED = Selection(
    sentence="Selection not private: chosen on raw validation scores. The model was fitted inside scikit-learn's "
    "GridSearchCV or RandomizedSearchCV, which no budget paid for; PrivateSearchCV pays for the choice.",
    private=False,
)


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLinearModel(BaseEstimator, abc.ABC):
    """A linear model fitted with (epsilon, delta)-differential privacy.

    With features a scaled into [-1, 1] by `bounds` (and a target to predict scaled by `target_bounds`) it minimises
    the mean loss over units plus a penalty on the weights, by gradient steps that see the data through noise. `coef_`
    and `intercept_` are in the units of the features and targets given.

    Args:
        epsilon: privacy budget: the log of how much one unit can change the odds of any model. Required; `math.inf`
            fits without privacy.
        delta: probability with which the epsilon bound may fail; required, well below 1 / n, such as 1 / n**2.
        bounds: public range of the features, (low, high) as numbers or as arrays with one entry a feature. Required.
            Values outside are moved to the nearer end. Features that are mostly 0, such as one-hot columns and pixels,
            do best with symmetric bounds such as (-1, 1), which keep zeros zero. Sparse features are only divided,
            never shifted; their bounds include 0.
        relation: "replace-one" (one unit's data are replaced by any other) or "add-or-remove-one" (one unit is there
            or not; needs `n`).
        n: public number of units: under add-or-remove-one a nominal number that no data set exceeds; under
            replace-one the number of rows (or of users) by default.
        row_bound: public bound on the l2 norm of a scaled row; longer rows are shortened to it. A smaller bound needs
            less noise. Features of a `TabularEncoder` are no longer than its `row_norm_bound_`. Default for a
            regression: sqrt(d), which no row exceeds. Default for a classifier: "unit", see `PrivateClassifier`.
        fit_intercept: whether to fit a constant; it is not penalised.
        solver: "auto", a name such as "gradient-descent", or a configured solver.
        account: a budget that several fits share; charged before data are read. A clone has the same account.
        random_state: None draws secret noise. A seed makes the fit reproducible and *not private*.
        max_records_per_user: public cap on the records of a user that are used, with `groups`.
        user_weighting: "user", "sqrt" or "record": how a user's weight grows with their number of records.
    Attributes:
        coef_, intercept_: released parameters.
        n_features_in_, feature_names_in_, n_iter_: number and names of the features, number of gradient steps.
        privacy_: the `PrivacyReport`: what was protected, how, and at what price.
        plan_: the `Plan` that was announced before the data were read.
    Privacy:
        Everything released passes the curator's door, priced before data are read. A record with a feature or a
        target that is NaN or infinite, or a label that is not among the classes, counts as zero; it changes nothing
        else. A scaler or encoder fitted on the same data, upstream in a pipeline, voids the guarantee.
    """

    epsilon: float | None = None
    delta: float | None = None
    bounds: Any = None
    relation: Relation | str = "replace-one"
    n: int | None = None
    row_bound: float | str | None = None
    fit_intercept: bool = True
    solver: Solver | str = "auto"
    account: Account | None = None
    random_state: int | None = None
    max_records_per_user: int = 100
    user_weighting: Weighting = "sqrt"

    coef_: NDArray[np.float64] = field(init=False)
    intercept_: Any = field(init=False)
    n_features_in_: int = field(init=False)
    n_iter_: int = field(init=False)
    privacy_: PrivacyReport = field(init=False)
    plan_: Plan = field(init=False)

    _penalised: ClassVar[bool] = True
    _unit_rows: ClassVar[bool] = (
        False  # whether rows are divided by their lengths if `row_bound` does not say
    )

    # What a model adds ----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _domain(self, y: NDArray[Any] | None) -> tuple[TargetScaling | None, NDArray[Any] | None]:
        """What the user declared about the target: its scaling, or its labels (read off y if declared public)."""

    @abc.abstractmethod
    def _loss(self, targets: TargetScaling | None, labels: NDArray[Any] | None) -> GLMLoss:
        """The loss of scaled targets."""

    @abc.abstractmethod
    def _adopt(self, weights: NDArray[np.float64], offset: NDArray[np.float64], setup: Setup) -> None:
        """Set `coef_` and `intercept_` from what `Setup.unscaled` gives."""

    @abc.abstractmethod
    def _adopted(self, setup: Setup) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The inverse of `_adopt`."""

    @abc.abstractmethod
    def _record_score(self, setup: Setup) -> Score:
        """How well a prediction fits one record, for a charged selection."""

    @abc.abstractmethod
    def _declared_target(self) -> str:
        """What was declared public about the target, in a sentence."""

    # Fitting --------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, groups: Any = None, *, observer: Observer | None = None) -> Self:
        """Fit the model.

        Args:
            X: (rows, d) numbers, dense or sparse (kept sparse).
            y: (rows,) labels or numbers.
            groups: (rows,) user keys; then all records of a user are protected together.
            observer: called with (name, count) after releases, for progress bars.
        Raises:
            ValueError, TypeError: a privacy argument is missing, or an argument has a wrong shape, type or range.
            BudgetExceeded: the account cannot pay; no data have been read.
        """
        budget = checked_budget(self, getattr(X, "shape", (None,))[0] if groups is None else None)
        private_features, private_targets = checked_arrays(self, X, y)
        setup = setup_of(
            self,
            private_features.shape[1],
            units_in(self, len(private_targets), groups),
            private_targets,
            is_sparse=sparse.issparse(private_features),
        )
        noise = NoiseSource(self.random_state)
        result = minimize(
            setup.problem,
            setup.units(private_features, private_targets, groups, noise),
            budget=budget,
            solver=self.solver,
            account=self.account,
            random_state=self.random_state,
            observer=observer,
        )
        set_parameters(self, result.params, setup)
        selection = SEARCHED if in_search() else None
        set_report(
            self,
            result,
            setup,
            declared=declarations(self, setup, by_user=groups is not None),
            selection=selection,
        )
        return self

    def plan(self, *, n_features: int, n: int | None = None, by_user: bool = False) -> Plan:
        """What `fit` would cost and achieve, said without any data.

        Args:
            n_features: number of features.
            n: public number of units; default: the estimator's `n`.
            by_user: whether `fit` will be given `groups`.
        Raises:
            ValueError: a privacy argument or n is missing.
        """
        n = self.n if n is None else n
        if n is None:
            raise ValueError("n is missing: give the public number of units, of users if by_user=True.")
        budget = checked_budget(self, n)
        setup = setup_of(self, n_features, n, None, is_sparse=False)
        public = setup.public(n, by_user=by_user)
        return plans_for(
            setup.problem,
            n=n,
            d=public.d,
            epsilon=budget.epsilon,
            delta=budget.delta,
            relation=public.relation,
            row_bound=public.row_bound,
            records_per_unit=public.records_per_unit,
            solver=self.solver,
        ).default

    # Predicting -----------------------------------------------------------------------------------------------------

    def _checked_features(self, X: Any) -> Any:
        """Features to predict from, checked by shape and type only."""
        check_is_fitted(self)
        arguments.refuse_non_numeric(X)
        return validate_data(self, X, accept_sparse="csr", ensure_all_finite=False, reset=False, dtype=None)

    def _linear(self, features: Any) -> NDArray[np.float64]:
        """`features @ coef_.T + intercept_`."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(features @ self.coef_.T, np.float64) + self.intercept_

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        if self.account is not None and hasattr(self, "privacy_"):
            # This fit is paid for, so the account stays behind. Before a fit its own refusal to be pickled is right.
            state = {**state, "account": None, "_account_lost": True}
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        return tags


def checked_budget(model: PrivateLinearModel, rows: int | None) -> Budget:
    """The model's budget; `rows`, if public, is named in the advice on delta.

    Raises:
        ValueError, TypeError: epsilon, delta or, under add-or-remove-one, n is missing; or the account was lost.
    """
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


def checked_arrays(model: PrivateLinearModel, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
    """Features and targets, checked by shape and type only.

    Raises:
        ValueError, TypeError: a shape or a type is wrong.
    """
    name = type(model).__name__
    if y is None:
        raise ValueError(f"{name} requires y to be passed, but the target y is None.")
    arguments.refuse_non_numeric(X)
    # Under add-or-remove-one the number of rows is private: even none is a data set.
    least = 1 if Relation.parse(model.relation) is Relation.REPLACE_ONE else 0
    private_features = validate_data(
        model, X, accept_sparse="csr", ensure_all_finite=False, ensure_min_samples=least, dtype=None
    )
    private_targets = column_or_1d(y, warn=True)
    check_consistent_length(private_features, private_targets)
    if least == 1 and model.n is None and len(private_targets) < 2:
        raise ValueError(
            "a private fit needs at least 2 units, got n_samples = 1: a mean over one hides nobody."
        )
    return private_features, private_targets


def units_in(model: PrivateLinearModel, rows: int, groups: Any) -> int:
    """The public number of units: the model's n, or under replace-one that of the rows or users."""
    if model.n is not None:
        return model.n
    return rows if groups is None or np.ndim(groups) != 1 else int(pd.Series(np.asarray(groups)).nunique())


def setup_of(
    model: PrivateLinearModel, width: int, n: int, y: NDArray[Any] | None, *, is_sparse: bool
) -> Setup:
    """Everything public about a fit, from the arguments and sizes.

    Args:
        model: the estimator.
        width: number of features.
        n: number of units.
        y: the targets, for labels that the user declared public by classes="from_y"; None without data.
        is_sparse: whether the features are sparse.
    Raises:
        ValueError, TypeError: an argument is missing or out of its range.
    """
    if model.bounds is None:
        raise arguments.missing_bounds(type(model).__name__)
    targets, labels = model._domain(y)
    features = FeatureScaling.of(model.bounds, width, centered=model.fit_intercept, keep_zero=is_sparse)
    unit_rows = model._unit_rows if model.row_bound is None else is_unit(model.row_bound)
    if unit_rows and not model._unit_rows:
        raise ValueError("row_bound='unit' is for classifiers: it would not leave a linear regression.")
    if unit_rows:
        row_bound = ROUNDED_UP
    elif model.row_bound is None:
        row_bound = math.sqrt(width) * ROUNDED_UP
    else:
        row_bound = arguments.positive("row_bound", model.row_bound, "the largest l2 norm of a scaled row")
    return Setup(
        features=features,
        targets=targets,
        labels=labels,
        row_bound=row_bound,
        unit_rows=unit_rows,
        intercept=INTERCEPT if model.fit_intercept else None,
        problem=Problem(model._loss(targets, labels), _penalty(model, width, n)),
        relation=Relation.parse(model.relation),
        given_n=model.n,
        max_records_per_user=model.max_records_per_user,
        user_weighting=model.user_weighting,
    )


def is_unit(row_bound: Any) -> bool:
    """Whether a row bound asks for rows of length 1."""
    return isinstance(row_bound, str) and row_bound == UNIT


def _penalty(model: PrivateLinearModel, width: int, n: int) -> Regulariser:
    """The ridge on scaled weights, 1 / n by default; the intercept is free."""
    if not model._penalised:
        return NoRegulariser()
    given = getattr(model, "alpha", None)
    alpha = (
        1.0 / n
        if given is None
        else arguments.positive("alpha", given, "the strength of the penalty", zero=True)
    )
    if alpha == 0:
        return NoRegulariser()
    return Ridge(alpha, weights=(1.0,) * width + (0.0,) if model.fit_intercept else None)


def set_parameters(model: PrivateLinearModel, params: Any, setup: Setup) -> None:
    """Set `coef_` and `intercept_` from released parameters."""
    model._adopt(*setup.unscaled(params), setup)


def parameters_in(model: PrivateLinearModel, setup: Setup) -> NDArray[np.float64]:
    """A fitted model's parameters in the scaled units of another setup, (outputs, d + 1)."""
    return setup.scaled(*model._adopted(setup))


def record_score(model: PrivateLinearModel, setup: Setup) -> Score:
    """See `PrivateLinearModel._record_score`."""
    return model._record_score(setup)


def declarations(model: PrivateLinearModel, setup: Setup, *, by_user: bool) -> tuple[str, ...]:
    """What the user declared to be public, in sentences."""
    sentences = [
        f"Bounds, given by the user: {setup.features.describe()}; values outside were moved to the nearer end.",
        model._declared_target(),
    ]
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
    model: PrivateLinearModel,
    result: Result,
    setup: Setup,
    *,
    declared: tuple[str, ...],
    selection: Selection | None = None,
) -> None:
    """Set `plan_`, `n_iter_` and `privacy_` from a result whose parameters are set."""
    assert result.plan is not None
    model.plan_ = result.plan
    model.n_iter_ = result.plan.releases
    model.privacy_ = PrivacyReport.of(
        result,
        declared=declared,
        model=ModelSummary.of(
            type(model).__name__,
            model.coef_,
            features=getattr(model, "feature_names_in_", None),
            intercept=model.intercept_ if model.fit_intercept else None,
            classes=None if setup.labels is None else list(setup.labels),
        ),
        selection=selection,
    )


def in_search() -> bool:
    """Whether a fit was called by scikit-learn's GridSearchCV, RandomizedSearchCV or a halving search."""
    frame = inspect.currentframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("sklearn.model_selection._search"):
            return True
        frame = frame.f_back
    return False
