"""What every private linear model shares: its arguments, one fit, and predictions in the user's units.

A fit says everything public first (`Setup`), turns the arrays into privacy units, asks `minimize` for released
parameters, and translates them back. A fitted model keeps no data, no noise and no curator.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from privopt.errors import tells_what_was_spent
from privopt.estimators import arguments
from privopt.estimators.penalties import PRIVATE
from privopt.later import deferred, is_of
from privopt.named_arguments import NamedArguments, check_observer, refuses_unknown
from privopt.public import CAPS, DEFAULT_RECORDS, DEFAULT_WEIGHTING, Relation, Weighting

if TYPE_CHECKING:
    from privopt.curator.base import Observer
    from privopt.curator.journals import asking
    from privopt.data.rows import Storage
    from privopt.estimators import saving
    from privopt.estimators.penalties import Penalty
    from privopt.estimators.records import Records, Shape, given_back
    from privopt.estimators.scaling import Bounds
    from privopt.estimators.search import Candidate, SearchPlan, plan_search, run_search
    from privopt.estimators.searched import describe_strength, in_search, marked
    from privopt.estimators.setup import Setup
    from privopt.estimators.specification import Specification
    from privopt.estimators.stages import Fitted, StagedPlan, fit_in_stages, plan_fit
    from privopt.estimators.table_arguments import arguments_of, asked_of_a_table
    from privopt.estimators.targets import Target
    from privopt.ledger.account import Account, checked_account
    from privopt.ledger.amounts import Budget
    from privopt.mechanisms.noise import NoiseSource
    from privopt.planning.plan import Plan
    from privopt.planning.task import Instance
    from privopt.planning.users import CapPrice, compare_caps
    from privopt.replays.recipes import asked_of, recipe_of_fit
    from privopt.report.kept import Recipe
    from privopt.report.report import PrivacyReport
    from privopt.solve import minimize
    from privopt.solvers.base import Solver
    from privopt.tables.encoder import TabularEncoder
    from privopt.tables.table import Table
    from privopt.tables.values import TargetReading
else:  # a fit loads them, an import does not
    asking = deferred("privopt.curator.journals", "asking")
    saving = deferred("privopt.estimators.saving")
    given_back = deferred("privopt.estimators.records", "given_back")
    Candidate = deferred("privopt.estimators.search", "Candidate")
    plan_search = deferred("privopt.estimators.search", "plan_search")
    run_search = deferred("privopt.estimators.search", "run_search")
    describe_strength = deferred("privopt.estimators.searched", "describe_strength")
    in_search = deferred("privopt.estimators.searched", "in_search")
    marked = deferred("privopt.estimators.searched", "marked")
    Setup = deferred("privopt.estimators.setup", "Setup")
    Specification = deferred("privopt.estimators.specification", "Specification")
    Fitted = deferred("privopt.estimators.stages", "Fitted")
    StagedPlan = deferred("privopt.estimators.stages", "StagedPlan")
    fit_in_stages = deferred("privopt.estimators.stages", "fit_in_stages")
    plan_fit = deferred("privopt.estimators.stages", "plan_fit")
    arguments_of = deferred("privopt.estimators.table_arguments", "arguments_of")
    asked_of_a_table = deferred("privopt.estimators.table_arguments", "asked_of_a_table")
    checked_account = deferred("privopt.ledger.account", "checked_account")
    NoiseSource = deferred("privopt.mechanisms.noise", "NoiseSource")
    Instance = deferred("privopt.planning.task", "Instance")
    compare_caps = deferred("privopt.planning.users", "compare_caps")
    asked_of = deferred("privopt.replays.recipes", "asked_of")
    recipe_of_fit = deferred("privopt.replays.recipes", "recipe_of_fit")
    Recipe = deferred("privopt.report.kept", "Recipe")
    minimize = deferred("privopt.solve", "minimize")

HOLDOUT, SELECTION_SHARE = 0.2, 0.5  # of the choice of a penalty's strength


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLinearModel(NamedArguments, BaseEstimator, abc.ABC):
    """A linear model fitted with (epsilon, delta)-differential privacy.

    With features a scaled into [-1, 1] by `bounds` (and a target to predict scaled by `target_bounds`) it minimises
    the mean loss over units, by steps that see the data through noise. A penalty keeps the weights small, see
    `PenalisedModel`, or an l1 ball, see `LassoModel`. `coef_` and `intercept_` are in the units of the features and
    targets given.

    Args:
        epsilon: privacy budget: the log of how much one unit can change the odds of any model. Required; `math.inf`
            fits without privacy.
        delta: probability with which the epsilon bound may fail; required, well below 1 / n, such as 1 / n**2.
        bounds: public range of the features: (low, high) as numbers, or as a tuple of two arrays with one entry per
            feature; or one pair (low, high) per feature, as a list of pairs or as a dictionary by column name.
            Required, unless `loose_bounds` is given. Values outside are moved to the nearer end. Features that are
            mostly 0, such as one-hot columns and pixels, do best with symmetric bounds such as (-1, 1), which keep
            zeros zero. Sparse features are only divided, never shifted; their bounds include 0.
        loose_bounds: in place of `bounds`, a public range that is surely wide enough, possibly by orders of magnitude;
            tighter bounds are then estimated privately, for `scale_share` of the budget.
        scale_share: share of the budget (of its rho) for that, between 0 and 1.
        relation: "replace-one" (one unit's data are replaced by any other) or "add-or-remove-one" (one unit is there
            or not; needs `n`).
        n: public number of units: under add-or-remove-one a nominal number that no data set exceeds; under
            replace-one the number of rows (or of users) by default, and at most twice the number of rows.
        row_bound: "entries" (the default) leaves scaled rows as they are: their entries lie in [-1, 1], and their
            length is at most sqrt(d). A number is a public bound on that length, and longer rows are shortened to it:
            of use with solvers other than the default, whose clip and noise follow from it. Features of a
            `TabularEncoder` are no longer than its `row_norm_bound_`. For "unit" see `PrivateClassifier`.
        fit_intercept: whether to fit a constant; it is not penalised.
        solver: "auto", a name such as "gradient-descent", or a configured solver.
        account: a budget that several fits share; charged before data are read. A clone has the same account. Default:
            the account that the environment or the project's file names, if there is one.
        random_state: None draws secret noise. A seed makes the fit reproducible and *not private*.
        max_records_per_user: public cap on the records of a user that are used, with `groups`.
        user_weighting: "user", "sqrt" or "record": how a user's weight grows with their number of records.
        typical_records: a public guess of how many records a typical user keeps; default the root of the cap.
        storage: the format that scaled rows are stored in: "float32", "float64" (twice the memory), or for dense
            features "int16" (half) or "int8" (a quarter), see `Units.from_arrays`. Rows that bounds are estimated from,
            with `loose_bounds`, take float32 until that is done.
        missing, indicator: what a missing feature becomes: "midpoint" of its bounds; "zero": its record counts as zero;
            "indicator": the midpoint, and for the columns `indicator` (of plain features) a feature of 0 and 1 more.
    Attributes:
        coef_, intercept_: released parameters.
        n_features_in_, feature_names_in_, n_iter_: number and names of the features, number of gradient steps.
        alpha_: the strength of the penalty that was used; None without a penalty.
        bounds_: (low, high) arrays, the bounds that were given or estimated.
        privacy_: the `PrivacyReport`: what was protected, how, and at what price.
        plan_: the `Plan` that was announced before the data were read.
        usable_: the released estimate of the number of units that could be used, see `privacy_` for its deviation; None
            where it would be all noise. Read off a release of the solver, or counted for 1 % of the budget.
        encoder_: what turned the rows of a `Table` into features, from its schema alone; None where X was features.
    Privacy:
        Everything released passes the curator, priced before data are read. A missing feature becomes a public number
        within its bounds; a record whose target is no number, or no label among the classes, counts as zero. Neither
        changes anything else. A scaler or encoder fitted on the same data, upstream in a pipeline, voids the guarantee.
    """

    epsilon: float | None = None
    delta: float | None = None
    bounds: Any = None
    loose_bounds: Any = None
    scale_share: float = 0.05
    relation: Relation | str = "replace-one"
    n: int | None = None
    row_bound: float | str | None = None
    fit_intercept: bool = True
    solver: Solver | str = "auto"
    account: Account | None = None
    random_state: int | None = None
    max_records_per_user: int = DEFAULT_RECORDS
    user_weighting: Weighting = DEFAULT_WEIGHTING
    typical_records: float | None = None
    storage: Storage = "float32"
    missing: str = "midpoint"
    indicator: Sequence[Any] | None = None

    coef_: NDArray[np.float64] = field(init=False)
    intercept_: Any = field(init=False)
    n_features_in_: int = field(init=False)
    n_iter_: int = field(init=False)
    alpha_: float | None = field(init=False)
    bounds_: tuple[NDArray[np.float64], NDArray[np.float64]] = field(init=False)
    privacy_: PrivacyReport = field(init=False)
    plan_: Plan = field(init=False)
    usable_: int | None = field(init=False)
    encoder_: TabularEncoder | None = field(init=False, default=None)
    _asked: Recipe = field(init=False)  # of the latest fit, for `save`

    @abc.abstractmethod
    def _target(self, y: NDArray[Any] | None) -> Target:
        """What is predicted, as the user declared it; y, where it is known, for labels declared to be those in y."""

    # Fitting --------------------------------------------------------------------------------------------------------

    @tells_what_was_spent
    @refuses_unknown
    def fit(self, X: Any, y: Any = None, *, groups: Any = None, observer: Observer | None = None) -> Self:
        """Fit the model.

        Args:
            X: (rows, d) numbers, dense or sparse (kept sparse); or a `Table` in files, which also holds the target, and
                whose schema says what is not given of `bounds`, `classes` and `target_bounds`.
            y: (rows,) labels or numbers; none for a `Table`.
            groups: (rows,) user keys, or (rows, k) where k columns together name a user; then all records of a user
                are protected together. Of a `Table` the name of a column, or several.
            observer: for progress bars: called with (name, count) after releases, and with (what, 0) before a stage
                that may take a while, such as "rows".
        Raises:
            ValueError, TypeError: a privacy argument is missing, or an argument has a wrong shape, type or range.
            BudgetExceeded: the account cannot pay; no data have been read.
        """
        check_observer(observer)
        if is_of(X, "privopt.tables.table", "Table"):
            return self._fit_table(X, y, groups, observer)
        self.encoder_ = None
        given = self._specification()
        budget = self._budget(given, (*getattr(X, "shape", ()), None)[0] if groups is None else None)
        if observer is not None:
            observer("rows", 0)
        records = given.records(self, X, y, groups, NoiseSource(self.random_state))
        return self._fit_records(given, records, budget, observer)

    def _fit_table(
        self,
        table: Table,
        y: Any,
        groups: Any,
        observer: Observer | None,
        *,
        known: Mapping[str, Any] = MappingProxyType({}),
        reading: Callable[[Any], TargetReading] | None = None,
    ) -> Self:
        """Fit to a table; its schema and `known` say what was left out, `reading` is of targets in place of its own."""
        encoder = asked_of_a_table(table, y, groups, self)
        asked: Any = clone(self)
        asked.set_params(**arguments_of(table, encoder, self.get_params(deep=False)), **known)
        asked._account_lost = getattr(self, "_account_lost", False)
        given = asked._specification()
        budget = asked._budget(given, None)
        if observer is not None:
            observer("rows", 0)
        read, told = None if reading is None else reading(asked), table.asked(groups)
        if read is not None:
            told["columns of the target"] = list(read.columns)
        records = given.table_records(table, encoder, groups, NoiseSource(self.random_state), read)
        asked.encoder_, asked.n_features_in_ = encoder, records.source.width
        asked._fit_records(given, records, budget, observer, told)
        del asked._account_lost
        own = {name: value for name, value in vars(asked).items() if name not in asked.get_params(deep=False)}
        vars(self).pop("feature_names_in_", None)
        vars(self).update(own)
        return self

    def _fit_records(
        self,
        given: Specification,
        records: Records,
        budget: Budget,
        observer: Observer | None,
        told: Mapping[str, Any] = MappingProxyType({}),
    ) -> Self:
        """Fit to records, which were checked by shape and type only; `told` is what their table was asked for."""
        with asking({**told, **asked_of(self)}, self.account):
            shape, penalty = records.shape(given.n, self._names(), budget), given.penalty
            fitted = (self._fit_chosen if penalty.is_chosen else self._fit_alone)(shape, records, observer)
            assert fitted.result.plan is not None
            plan = penalty.shown_in(fitted.setup.noted(fitted.result.plan), fitted.setup.alpha)
            recipe = self._recipe(fitted.setup, is_chosen=penalty.is_chosen or in_search())
            self._adopt(
                fitted._replace(
                    result=fitted.result._replace(plan=plan, recipe=recipe),
                    kept=records.kept,
                    selection=marked(fitted.selection),
                )
            )
        return self

    def plan(
        self,
        *,
        n_features: int,
        n: int | None = None,
        by_user: bool = False,
        row_entries: int | None = None,
    ) -> Plan:
        """What `fit` would cost and achieve, said without any data.

        Args:
            n_features: number of features, those of `indicator` included.
            n: public number of units; default: the estimator's `n`.
            by_user: whether `fit` will be given `groups`.
            row_entries: the most entries of a row that are not zero, where features will be sparse; None of dense ones.
        Raises:
            ValueError: a privacy argument or n is missing.
        """
        n = arguments.planned_units(self.n if n is None else n)
        given = self._specification()
        penalty, budget = given.penalty, self._budget(given, n)
        shape = given.planned(n_features, n, by_user=by_user, budget=budget, row_entries=row_entries)
        if penalty.is_chosen:
            return penalty.shown_in(self._planned_search(shape, None).plan, None)
        setup = self._setup(shape, None)
        return penalty.shown_in(setup.noted(plan_fit(setup, self._solver(setup))), setup.alpha)

    def compare_caps(
        self, *, n_features: int, n: int | None = None, caps: Sequence[int] = CAPS
    ) -> tuple[CapPrice, ...]:
        """What it costs to protect users rather than records, for several caps on their records, without any data.

        Args:
            n_features: number of features, those of `indicator` included.
            n: public number of users; default: the estimator's `n`.
            caps: values of `max_records_per_user` to compare.
        Returns:
            First records as units, then users with each cap, all at the estimator's budget.
        Raises:
            ValueError: a privacy argument or n is missing.
        """
        n = arguments.planned_units(self.n if n is None else n)
        given = self._specification()
        budget = self._budget(given, n)
        shape = given.planned(n_features, n, by_user=True, budget=budget)
        plain = given.with_strength(None) if given.penalty.is_chosen else given
        setup = Setup.of(plain, self._target(None), shape)
        return compare_caps(
            Instance(setup.problem, setup.public, budget), typical=self.typical_records, caps=caps
        )

    def _specification(self) -> Specification:
        """The arguments, checked as far as no size is needed."""
        checked_account(self.account)
        return Specification.of(type(self).__name__, {**self.get_params(deep=False), **self._penalty()})

    def _penalty(self) -> Mapping[str, Any]:
        """What there is of `PenaltyArguments` beside arguments of the same names."""
        return {}

    def _budget(self, given: Specification, rows: int | None) -> Budget:
        """The budget of a fit, with bounds and groups of features checked; `rows`, if public, are named in advice."""
        given.penalty.check_groups()
        if self.account is None and getattr(self, "_account_lost", False):
            raise ValueError(
                "this estimator was pickled, and the account that paid for its fit stayed behind: give it one with "
                "set_params(account=...), or fit a clone."
            )
        budget = arguments.checked_budget(self.epsilon, self.delta, given.public_count(rows))
        given.check_bounds()
        return budget

    def _setup(self, shape: Shape, y: NDArray[Any] | None) -> Setup:
        """Everything public about a fit of some shape."""
        return Setup.of(self._specification(), self._target(y), shape)

    def _solver(self, setup: Setup) -> Solver | str:
        """What solves a fit."""
        del setup
        return self.solver

    def _fit_alone(self, shape: Shape, records: Records, observer: Observer | None) -> Fitted:
        """One model, after the stages that go before it."""
        setup = self._setup(shape, records.private_targets)
        staged = StagedPlan.of(setup, self._solver(setup))
        if staged is not None:
            records.require(lambda: staged.plan)
            return fit_in_stages(staged, records, account=self.account, observer=observer)
        records.require(lambda: plan_fit(setup, self._solver(setup)))
        with given_back(setup.units(records)) as units:
            result = minimize(
                setup.problem,
                units,
                budget=shape.known_budget,
                solver=self._solver(setup),
                account=self.account,
                random_state=self.random_state,
                observer=observer,
            )
        return Fitted(result, setup, result.transcript.releases)

    def _fit_chosen(self, shape: Shape, records: Records, observer: Observer | None) -> Fitted:
        """The model whose strength of the penalty is chosen privately."""
        search = self._planned_search(shape, records.private_targets)
        name = f"{type(self).__name__}(alpha='private')"
        _, fitted = run_search(search, records, account=self.account, name=name, observer=observer)
        return fitted._replace(selection=describe_strength(search, fitted.setup))

    def _planned_search(self, shape: Shape, y: NDArray[Any] | None) -> SearchPlan:
        """The search among the strengths."""
        given, target = self._specification(), self._target(y)
        default = Setup.of(given.with_strength(None), target, shape).alpha
        if default is None:
            raise ValueError(
                "alpha='private' needs a penalty whose strength it chooses: give penalty='l2' or another."
            )
        setups = [
            Setup.of(given.with_strength(alpha), target, shape) for alpha in given.penalty.strengths(default)
        ]
        return plan_search(
            [Candidate(setup=setup, solver=self._solver(setup)) for setup in setups],
            self._scored(shape, y),
            holdout=HOLDOUT,
            selection_share=SELECTION_SHARE,
            refit=True,
        )

    def _scored(self, shape: Shape, y: NDArray[Any] | None) -> Setup:
        """How candidates of a search are scored: on rows as they are, with a constant, without a penalty."""
        centered: Any = clone(self)
        target: Target = centered.set_params(fit_intercept=True)._target(y)
        return Setup.of(self._specification().plain(shape), target, shape)

    def _adopt(self, fitted: Fitted, *declared: str) -> None:
        """Set all that a fit sets, or nothing where that is stopped; `declared` is what the user declared besides."""
        recipe = fitted.result.recipe
        asked = self._written(fitted.setup) if recipe is None or recipe.obstacle else recipe
        vars(self).update(self._results(fitted, declared), _asked=asked)

    def _results(self, fitted: Fitted, declared: Iterable[str]) -> dict[str, Any]:
        """All that a fit sets, by name."""
        return fitted.attributes(self._names(), declared)

    def _recipe(self, setup: Setup, *, is_chosen: bool) -> Recipe:
        """What was asked of this fit, for a replay of its releases."""
        if is_chosen:
            return Recipe(obstacle="the model was chosen among several")
        if setup.target.groups is not None:
            return Recipe(obstacle="the fit was given more than features and targets")
        return self._written(setup)

    def _written(self, setup: Setup) -> Recipe:
        """The arguments and the public sizes of a fit as JSON values; a strength that was chosen is a number there."""
        given = {**self.get_params(deep=False), **setup.specification.plain_bounds(setup.shape)}
        if given.get("alpha") == PRIVATE:
            given |= {"alpha": setup.alpha, "alphas": None}
        labels, names = setup.target.labels, self._names()
        return recipe_of_fit(type(self).__name__, given, setup.shape, names=names, labels=labels)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the fitted model as a folder, such as `privopt fit` writes one; `privopt.load` reads it.

        The folder holds what was released and what is public: the model with its arguments (a strength that was chosen
        privately as the number, no account), its encoder and schema where it was fitted to a table, the report as a
        page and as JSON, and of a private fit the released values, for `privopt verify`. `privopt predict` reads it
        where the model was fitted to a table. Each file is written whole or not at all.

        Args:
            folder: where to; made if needed.
            overwrite: whether a model in it may be replaced.
        Returns:
            The folder.
        Raises:
            NotFittedError: the model is not fitted.
            ArgumentError: the folder is not empty, or is a file; or the model is of a class, or has an argument, that
                no folder holds.
            TableError: the folder cannot be written.
        """
        return saving.save(self, folder, overwrite=overwrite)

    def _restore(
        self,
        shape: Shape,
        coef: NDArray[np.float64],
        intercept: Any,
        labels: NDArray[Any] | None,
        bounds: Bounds | None,
        *,
        divided: bool,
    ) -> None:
        """Set what predictions need, from released numbers that were stored.

        The shape has the names of plain features; `labels` are given where they were declared to be those that
        occurred, `bounds` where they were released; `divided` says whether rows were divided by their length.
        """
        self.n_features_in_ = shape.width - len(self.indicator or ())
        if shape.names is not None:
            self.feature_names_in_ = np.asarray(shape.names[: self.n_features_in_], dtype=object)
        setup = replace(self._setup(shape, labels), unit_rows=divided)
        vars(self).update((setup if bounds is None else setup.within(bounds)).attributes(coef, intercept))

    def _meaning(self, columns: str) -> str:
        """What the fitted model's coefficients are, in sentences; `columns` says in which units the columns are."""
        target = self._target(getattr(self, "classes_", None))
        divided: Any = getattr(self, "row_lengths_", None)
        return target.coefficients(columns, divided=divided is not None)

    def _names(self) -> Sequence[str] | None:
        """The names of the features of the latest fit, where they are known."""
        if self.encoder_ is not None:
            return [str(name) for name in self.encoder_.get_feature_names_out()]
        return arguments.names_with_indicators(self)

    # Predicting -----------------------------------------------------------------------------------------------------

    def _checked_features(self, X: Any) -> Any:
        """Features to predict from, checked by shape and type only, none of them missing any more."""
        check_is_fitted(self)
        return arguments.features_to_predict(self, X)

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


# ---- The arguments of linear models with a penalty on their weights ----------------------------------------


@dataclass(kw_only=True, eq=False, repr=False)
class PenalisedModel(PrivateLinearModel, abc.ABC):
    """A private linear model whose weights a penalty keeps small, or an l1 ball in its place.

    Args:
        penalty: what keeps the weights of scaled features small: "l2" (`alpha / 2 ||w||^2`), "l1" (`alpha ||w||_1`),
            "elasticnet" (`alpha l1_ratio ||w||_1 + alpha (1 - l1_ratio) / 2 ||w||^2`), "group" (`alpha sqrt|g| ||w_g||`
            for each group g) or None. The intercept is free.
        alpha: strength of the penalty. Default: at most 1 / n with "l2", see `default_ridge`; with the others the noise
            level of a gradient, see `default_strength`. "private" chooses one of `alphas` by a charged search, see
            `PrivateSearchCV`.
        alphas: the strengths to choose from; default: 1, 10, 100 and 1000 times the default for "l2", 0.3, 1, 3 and 10
            times for the others.
        l1_ratio: share of the l1 term in an elastic net.
        feature_groups: for "group": lists of columns, or of their names with a DataFrame. A column in none is free.
        l1_radius: in place of a penalty, a public bound on `||w||_1` (of all classes together); the intercept then
            lies between -l1_radius and l1_radius.
    """

    penalty: Penalty | None = "l2"
    alpha: float | str | None = None
    alphas: Sequence[float] | NDArray[Any] | None = None
    l1_ratio: float = 0.5
    feature_groups: Any = None
    l1_radius: float | None = None
