"""What every private linear model shares: its arguments, one fit, and predictions in the user's units.

A fit says everything public first (`Setup`), turns the arrays into privacy units, asks `minimize` for released
parameters, and translates them back. A fitted model keeps no data, no noise and no curator.
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from privopt.curator.base import Observer
from privopt.data.users import Weighting
from privopt.estimators.fitting import (
    Shape,
    checked_arrays,
    checked_budget,
    checked_features,
    declarations,
    set_parameters,
    set_report,
    units_in,
    with_penalty,
)
from privopt.estimators.penalties import PRIVATE, Penalty, strengths
from privopt.estimators.scaling import TargetScaling
from privopt.estimators.search import Candidate, SearchPlan, plan_search
from privopt.estimators.search_run import Scorer, run_search, told_strength
from privopt.estimators.searched import SEARCHED, in_search
from privopt.estimators.setup import Setup
from privopt.estimators.stages import Records, fit_in_stages, plan_stages
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.plan import Plan
from privopt.problems.losses import GLMLoss
from privopt.public import Relation
from privopt.queries.holdout_scores import Score
from privopt.report.report import PrivacyReport, Selection
from privopt.result import Result
from privopt.solve import minimize
from privopt.solve import plan as plans_for
from privopt.solve_arguments import check_observer
from privopt.solvers.base import Solver

HOLDOUT, SELECTION_SHARE = 0.2, 0.5  # of the choice of a penalty's strength


class Fitted(NamedTuple):
    """A fit's result, the setup that translates it, the number of the model's own releases, how it was chosen."""

    result: Result
    setup: Setup
    releases: int
    selection: Selection | None = None


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
        bounds: public range of the features, (low, high) as numbers or as arrays with one entry a feature. Required,
            unless `loose_bounds` is given. Values outside are moved to the nearer end. Features that are mostly 0, such
            as one-hot columns and pixels, do best with symmetric bounds such as (-1, 1), which keep zeros zero. Sparse
            features are only divided, never shifted; their bounds include 0.
        loose_bounds: in place of `bounds`, a public range that is surely wide enough, possibly by orders of magnitude;
            tighter bounds are then estimated privately, for `scale_budget` of the budget.
        scale_budget: share of the budget (of its rho) for that, between 0 and 1.
        penalty: what keeps the weights of scaled features small: "l2" (`alpha / 2 ||w||^2`), "l1" (`alpha ||w||_1`),
            "elasticnet" (`alpha l1_ratio ||w||_1 + alpha (1 - l1_ratio) / 2 ||w||^2`), "group" (`alpha sqrt|g| ||w_g||`
            for each group g) or None. The intercept is free.
        alpha: strength of the penalty. Default: 1 / n with "l2"; with the others the noise level of a gradient, see
            `default_strength`. "private" chooses one of `alphas` by a charged search, see `PrivateSearchCV`.
        alphas: the strengths to choose from; default: 1, 10, 100 and 1000 times the default for "l2", 0.3, 1, 3 and 10
            times for the others.
        l1_ratio: share of the l1 term in an elastic net.
        feature_groups: for "group": lists of columns, or of their names with a DataFrame. A column in none is free.
        l1_radius: in place of a penalty, a public bound on `||w||_1` (of all classes together); the intercept then
            lies between -l1_radius and l1_radius.
        relation: "replace-one" (one unit's data are replaced by any other) or "add-or-remove-one" (one unit is there
            or not; needs `n`).
        n: public number of units: under add-or-remove-one a nominal number that no data set exceeds; under
            replace-one the number of rows (or of users) by default, and at most twice the number of rows.
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
        alpha_: the strength of the penalty that was used; None without a penalty.
        bounds_: (low, high) arrays, the bounds that were given or estimated.
        privacy_: the `PrivacyReport`: what was protected, how, and at what price.
        plan_: the `Plan` that was announced before the data were read.
    Privacy:
        Everything released passes the curator, priced before data are read. A record with a feature or a
        target that is NaN or infinite, or a label that is not among the classes, counts as zero; it changes nothing
        else. A scaler or encoder fitted on the same data, upstream in a pipeline, voids the guarantee.
    """

    epsilon: float | None = None
    delta: float | None = None
    bounds: Any = None
    loose_bounds: Any = None
    scale_budget: float = 0.05
    penalty: Penalty | None = "l2"
    alpha: float | str | None = None
    alphas: Sequence[float] | NDArray[Any] | None = None
    l1_ratio: float = 0.5
    feature_groups: Any = None
    l1_radius: float | None = None
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
    alpha_: float | None = field(init=False)
    bounds_: tuple[NDArray[np.float64], NDArray[np.float64]] = field(init=False)
    privacy_: PrivacyReport = field(init=False)
    plan_: Plan = field(init=False)

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
    def _score_means(self) -> str:
        """What `X @ coef_ + intercept_` of the fitted model is, in a few words."""

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
            observer: for progress bars: called with (name, count) after releases, and with (what, 0) before a stage
                that may take a while, such as "rows".
        Raises:
            ValueError, TypeError: a privacy argument is missing, or an argument has a wrong shape, type or range.
            BudgetExceeded: the account cannot pay; no data have been read.
        """
        check_observer(observer)
        budget = checked_budget(self, (*getattr(X, "shape", ()), None)[0] if groups is None else None)
        if observer is not None:
            observer("rows", 0)
        private_features, private_targets = checked_arrays(self, X, y)
        shape = Shape(
            width=private_features.shape[1],
            n=units_in(self, len(private_targets), groups),
            by_user=groups is not None,
            is_sparse=sparse.issparse(private_features),
            names=getattr(self, "feature_names_in_", None),
            budget=budget,
        )
        records = Records(
            private_features=private_features,
            private_targets=private_targets,
            groups=groups,
            noise=NoiseSource(self.random_state),
        )
        fitted = self._search(shape, budget, records, observer) or self._fit(shape, budget, records, observer)
        assert fitted.result.plan is not None
        plan = with_penalty(self, fitted.result.plan, fitted.setup.alpha)
        set_parameters(self, fitted.result.params, fitted.setup)
        set_report(
            self,
            fitted.result._replace(plan=plan),
            fitted.setup,
            steps=fitted.releases,
            declared=declarations(self, fitted.setup, by_user=shape.by_user),
            selection=SEARCHED if in_search() else fitted.selection,
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
        shape = Shape(width=n_features, n=n, by_user=by_user, budget=budget)
        if self.alpha == PRIVATE:
            return with_penalty(self, self._planned_search(shape, budget, None)[0].plan, None)
        setup = shape.setup(self, None)
        if setup.scales is not None:
            staged = plan_stages(setup, self.solver, n=n, by_user=by_user, budget=budget)
            return with_penalty(self, staged.plan, setup.alpha)
        public = setup.public(n, by_user=by_user)
        plans = plans_for(
            setup.problem,
            n=n,
            d=public.d,
            epsilon=budget.epsilon,
            delta=budget.delta,
            relation=public.relation,
            row_bound=public.row_bound,
            records_per_unit=public.records_per_unit,
            solver=self.solver,
        )
        return with_penalty(self, plans.default, setup.alpha)

    def _fit(self, shape: Shape, budget: Budget, records: Records, observer: Observer | None) -> Fitted:
        """One model, after the bounds where they are to be estimated."""
        setup = shape.setup(self, records.private_targets)
        if setup.scales is not None:
            staged = plan_stages(setup, self.solver, n=shape.n, by_user=shape.by_user, budget=budget)
            result, setup = fit_in_stages(staged, records, account=self.account, observer=observer)
            before = 1  # the bounds
            return Fitted(result, setup, result.transcript.releases - before)
        result = minimize(
            setup.problem,
            records.units(setup),
            budget=budget,
            solver=self.solver,
            account=self.account,
            random_state=self.random_state,
            observer=observer,
        )
        return Fitted(result, setup, result.transcript.releases)

    def _search(
        self, shape: Shape, budget: Budget, records: Records, observer: Observer | None
    ) -> Fitted | None:
        """The model whose strength of the penalty is chosen privately; None where it is given."""
        if self.alpha != PRIVATE:
            return None
        search, models, scorer = self._planned_search(shape, budget, records.private_targets)
        name = f"{type(self).__name__}(alpha='private')"
        found = run_search(
            search, models, scorer, records, account=self.account, name=name, observer=observer
        )
        assert found.setup.alpha is not None
        told = told_strength(search, found.setup.alpha)
        return Fitted(found.result, found.setup, found.releases, told)

    def _planned_search(
        self, shape: Shape, budget: Budget, y: NDArray[Any] | None
    ) -> tuple[SearchPlan, list[Self], Scorer]:
        """The search among the strengths, one unfitted model for each, and what they are scored with."""
        default = shape.setup(self._copy(None), y).alpha
        if default is None:
            raise ValueError(
                "alpha='private' needs a penalty whose strength it chooses: give penalty='l2' or another."
            )
        grid = strengths(self.alphas, default, is_sparse=self.penalty != "l2")
        models = [self._copy(alpha) for alpha in grid]
        search = plan_search(
            [Candidate(setup=shape.setup(model, y), solver=self.solver) for model in models],
            n=shape.n,
            by_user=shape.by_user,
            budget=budget,
            holdout=HOLDOUT,
            selection_share=SELECTION_SHARE,
            refit=True,
        )
        return search, models, Scorer.of(models[0], shape, y)

    def _copy(self, alpha: float | None) -> Self:
        """An unfitted model with another strength, which nothing pays for by itself."""
        copy: Any = clone(self)
        return copy.set_params(alpha=alpha, account=None)

    # Predicting -----------------------------------------------------------------------------------------------------

    def _checked_features(self, X: Any) -> Any:
        """Features to predict from, checked by shape and type only."""
        check_is_fitted(self)
        return checked_features(self, X, least=0, reset=False)

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
