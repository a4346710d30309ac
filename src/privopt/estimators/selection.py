"""A private choice among hyper-parameters, paid for as a whole.

scikit-learn's GridSearchCV fits many models and keeps the one with the best raw validation score. Each of those fits
has a price, and so has the choice; here both are part of one plan, priced before anything is released.
"""

# pyright: reportPrivateUsage=none
# A model's steps are hidden from its users, not from the search among models.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from privopt.curator.journals import asking
from privopt.errors import ArgumentTypeError, tells_what_was_spent
from privopt.estimators import arguments
from privopt.estimators.base import PrivateLinearModel
from privopt.estimators.records import Shape
from privopt.estimators.search import Candidate, SearchPlan, plan_search, run_search
from privopt.estimators.searched import describe_choice, marked
from privopt.estimators.table_arguments import arguments_of, asked_of_a_table
from privopt.ledger.account import Account, checked_account
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.named_arguments import NamedArguments, refuses_unknown
from privopt.planning.plan import Plan
from privopt.replays.recipes import asked_of
from privopt.report.report import PrivacyReport
from privopt.tables.table import Table

# What a candidate may not change: the budget, what is public about the data, or the question that is asked.
FIXED = frozenset(
    {
        "account",
        "bounds",
        "classes",
        "delta",
        "epsilon",
        "indicator",
        "loose_bounds",
        "max_records_per_user",
        "missing",
        "n",
        "quantile",
        "random_state",
        "relation",
        "scale_share",
        "storage",
        "target_bounds",
        "typical_records",
        "user_weighting",
    }
)


def _chosen_has(method: str) -> Callable[[Any], bool]:
    return lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), method)


@final
@dataclass(eq=False, repr=False)
class PrivateSearchCV(NamedArguments, MetaEstimatorMixin, BaseEstimator):
    """Fit every point of a grid privately, choose one by a charged mechanism, and fit it again on everything.

    The units are split at random into a training and a holdout part. Every candidate is fitted on the training part;
    the exponential mechanism chooses one by its mean score on the holdout part (accuracy for a classifier, a bounded
    loss for a regression; averaged within users first); the winner is fitted again on all units. All noise is
    scaled together so that the whole costs (epsilon, delta), fixed beforehand.

    Args:
        estimator: an unfitted estimator of this package, without epsilon and delta of its own.
        param_grid: names of its parameters and the values to try, or a list of such grids. Public.
        epsilon: of the whole search. Required.
        delta: of the whole search. Required.
        holdout: fraction of the units in the holdout part.
        selection_share: share of the budget (in rho) for finding the winner; the rest is for the refit. The training
            part spends it on the candidates' fits, in equal shares, and the holdout part spends as much on the choice:
            the parts are disjoint. Without a refit it is the whole budget.
        refit: whether to fit the winner again on all units; otherwise its fit on the training part is kept.
        account: a budget that several fits share; charged for the whole plan before anything is released.
        random_state: None draws secret noise. A seed makes the search reproducible and *not private*.
    Attributes:
        best_params_, best_index_, best_estimator_: the choice. Scores are not published, since nothing noised them.
        privacy_: the report with the whole price.
        plan_: the plan that was announced.
    Privacy:
        The split is drawn without looking at the units, and one unit lies in one part. If it lies in the training
        part, the candidates' fits depend on it and, given these, the choice does not; if in the holdout part, only the
        choice does. So the pair costs what the dearer of the two costs (`Parallel`), under both relations: under
        replace-one the sizes are fixed and the replaced unit keeps its place; under add-or-remove-one each place
        joins a part independently and means divide by nominal sizes. The refit sees everybody and is composed with
        it. Which candidate is refitted depends on the choice: see `search.dominating`. The sensitivity of the scores
        is argued in `HoldoutScores`.
    """

    estimator: Any
    param_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]
    _: KW_ONLY
    epsilon: float | None = None
    delta: float | None = None
    holdout: float = 0.2
    selection_share: float = 0.5
    refit: bool = True
    account: Account | None = None
    random_state: int | None = None

    best_index_: int = field(init=False)
    best_params_: dict[str, Any] = field(init=False)
    best_estimator_: Any = field(init=False)
    privacy_: PrivacyReport = field(init=False)
    plan_: Plan = field(init=False)

    @tells_what_was_spent
    @refuses_unknown
    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Search, choose and refit.

        Args:
            X: (rows, d) numbers, dense or sparse; or a `Table`, see `PrivateLinearModel.fit`.
            y: (rows,) labels or numbers; none for a `Table`.
            groups: (rows,) user keys, or (rows, k) where k columns together name a user; then users are split, scored
                and protected as wholes. Of a `Table` the name of a column, or several.
        Raises:
            ValueError, TypeError: an argument is missing, or has a wrong shape, type or range.
            BudgetExceeded: the account cannot pay; nothing was released.
        """
        checked_account(self.account)
        arguments.check_switch("refit", self.refit)
        models = self._models()
        base: Any = clone(self.estimator)
        noise = NoiseSource(self.random_state)
        told = X.asked(groups) if isinstance(X, Table) else {}
        with asking({**told, **asked_of(self)}, self.account):
            return self._fit(models, base, noise, X, y, groups)

    def _fit(
        self,
        models: Sequence[PrivateLinearModel],
        base: Any,
        noise: NoiseSource,
        X: Any,
        y: Any,
        groups: Any,
    ) -> Self:
        """Search among the models, where it is stated what is asked."""
        if isinstance(X, Table):
            base.encoder_ = asked_of_a_table(X, y, groups, base)
            for model in (base, *models):
                model.set_params(**arguments_of(X, base.encoder_, model.get_params(deep=False)))
            given = base._specification()
            records = given.table_records(X, base.encoder_, groups, noise)
            base.n_features_in_ = records.source.width
        else:
            given = base._specification()
            records = given.records(base, X, y, groups, noise)
        shape = records.shape(given.n, base._names())
        shape = replace(shape, budget=self._budget(shape.n))
        search = self._search(models, base, shape, records.private_targets)
        name = f"PrivateSearchCV({type(base).__name__})"
        best, fitted = run_search(search, records, account=self.account, name=name)
        chosen = models[best]
        for noted in ("n_features_in_", "feature_names_in_", "encoder_"):
            if hasattr(base, noted):
                setattr(chosen, noted, getattr(base, noted))
        chosen._adopt(
            fitted._replace(selection=marked(describe_choice(search)), kept=records.kept),
            f"Grid, given by the user: {len(models)} candidates.",
        )
        found = {"best_index_": best, "best_params_": self._grid()[best], "best_estimator_": chosen}
        vars(self).update(found, privacy_=chosen.privacy_, plan_=search.plan)  # all or nothing
        return self

    def plan(
        self,
        *,
        n_features: int,
        n: int | None = None,
        by_user: bool = False,
        row_entries: int | None = None,
    ) -> Plan:
        """What `fit` would cost, said without any data.

        Args:
            n_features: number of features.
            n: public number of units; default: the estimator's `n`.
            by_user: whether `fit` will be given `groups`.
            row_entries: the most entries of a row that are not zero, where features will be sparse; None of dense ones.
        Raises:
            ValueError: a privacy argument or n is missing.
        """
        n = arguments.planned_units(self.estimator.n if n is None else n)
        given, budget = self.estimator._specification(), self._budget(n)
        shape = given.planned(n_features, n, by_user=by_user, budget=budget, row_entries=row_entries)
        return self._search(self._models(), self.estimator, shape, None).plan

    def _grid(self) -> list[dict[str, Any]]:
        return list(ParameterGrid(self.param_grid))

    def _models(self) -> list[PrivateLinearModel]:
        """One unfitted estimator a candidate."""
        if not isinstance(self.estimator, PrivateLinearModel):
            raise TypeError(
                f"estimator must be one of privopt's, got {type(self.estimator).__name__}: put PrivateSearchCV "
                "itself at the end of a Pipeline rather than a Pipeline into it."
            )
        if (self.estimator.epsilon, self.estimator.delta, self.estimator.account) != (None, None, None):
            raise ValueError(
                "give epsilon, delta and account to PrivateSearchCV and leave them out of its estimator: the budget "
                "is that of the whole search."
            )
        fixed = sorted({name for point in self._grid() for name in point} & FIXED)
        if fixed:
            raise ValueError(
                f"param_grid cannot vary {', '.join(fixed)}: candidates differ in how they are fitted, not in the "
                "budget, in what is public about the data, or in what is predicted."
            )
        copies: list[Any] = [clone(self.estimator) for _ in self._grid()]
        models = [model.set_params(**point) for model, point in zip(copies, self._grid(), strict=True)]
        if any(model._specification().penalty.is_chosen for model in models):
            raise ValueError(
                "alpha='private' is a search of its own, which cannot stand inside another: put strengths into "
                "param_grid instead."
            )
        return models

    def _budget(self, n: int) -> Budget:
        return arguments.checked_budget(self.epsilon, self.delta, n)

    def _search(
        self,
        models: Sequence[PrivateLinearModel],
        base: PrivateLinearModel,
        shape: Shape,
        y: NDArray[Any] | None,
    ) -> SearchPlan:
        """The whole plan; the base is the estimator, with what a table says."""
        arguments.fraction("holdout", self.holdout, "the part of the units that candidates are scored on")
        arguments.fraction("selection_share", self.selection_share, "the share of the budget for the choice")
        setups = [model._setup(shape, y) for model in models]
        if any(setup.target.groups is not None for setup in setups):
            raise ArgumentTypeError(
                f"{type(base).__name__} is not searched: candidates are scored by the accuracy over all records, which "
                "is not what it minimises, and a search knows of no groups. Fit it with each setting, from one account."
            )
        return plan_search(
            [
                Candidate(setup=setup, solver=model._solver(setup))
                for model, setup in zip(models, setups, strict=True)
            ],
            base._scored(shape, y),
            holdout=self.holdout,
            selection_share=self.selection_share,
            refit=self.refit,
        )

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels of the chosen classifier."""
        return self.best_estimator_.classes_

    @property
    def n_features_in_(self) -> int:
        """The number of features of the chosen estimator."""
        return self.best_estimator_.n_features_in_

    def predict(self, X: Any) -> NDArray[Any]:
        """The chosen estimator's predictions."""
        return self._chosen().predict(X)

    @available_if(_chosen_has("predict_proba"))
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The chosen estimator's probabilities."""
        return self._chosen().predict_proba(X)

    @available_if(_chosen_has("decision_function"))
    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """The chosen estimator's scores."""
        return self._chosen().decision_function(X)

    def score(self, X: Any, y: Any) -> float:
        """The chosen estimator's score."""
        return float(self._chosen().score(X, y))

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the chosen estimator, see `PrivateLinearModel.save`: `privopt.load` gives that, not the search."""
        return self._chosen().save(folder, overwrite=overwrite)

    def _chosen(self) -> Any:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        tags.input_tags, tags.target_tags = inner.input_tags, inner.target_tags
        return tags
