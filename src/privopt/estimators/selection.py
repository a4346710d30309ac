"""A private choice among hyper-parameters, paid for as a whole.

scikit-learn's GridSearchCV fits many models and keeps the one with the best raw validation score. Each of those fits
has a price, and so has the choice; here both are part of one plan, priced before anything is released.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from privopt.data import Units
from privopt.estimators import arguments
from privopt.estimators.base import PrivateLinearModel, Setup
from privopt.estimators.holdout import HoldoutScores
from privopt.estimators.search import Candidate, SearchPlan, SearchRun, plan_search, stack
from privopt.ledger.account import Account
from privopt.mechanisms.noise import NoiseSource
from privopt.plan import Plan
from privopt.precision import double_precision
from privopt.report.report import PrivacyReport, Selection

# What a candidate may not change: the budget, what is public about the data, or the question that is asked.
FIXED = frozenset(
    {
        "account",
        "bounds",
        "classes",
        "delta",
        "epsilon",
        "max_records_per_user",
        "n",
        "quantile",
        "random_state",
        "relation",
        "target_bounds",
        "user_weighting",
    }
)


def _chosen_has(method: str) -> Callable[[Any], bool]:
    return lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), method)


@dataclass(eq=False, repr=False)
class PrivateSearchCV(MetaEstimatorMixin, BaseEstimator):
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

    estimator: PrivateLinearModel
    param_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]
    _: KW_ONLY
    epsilon: float | None = None
    delta: float | None = None
    holdout: float = 0.2
    selection_share: float = 0.5
    refit: bool = True
    account: Account | None = None
    random_state: int | None = None

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Search, choose and refit.

        Args:
            X: (rows, d) numbers, dense or sparse.
            y: (rows,) labels or numbers.
            groups: (rows,) user keys; then users are split, scored and protected as wholes.
        Raises:
            ValueError, TypeError: an argument is missing, or has a wrong shape, type or range.
            BudgetExceeded: the account cannot pay; nothing was released.
        """
        models = self._models()
        base = clone(self.estimator).set_params(fit_intercept=True, row_bound=None)
        private_features, private_targets = base._checked_arrays(X, y)
        width, is_sparse = private_features.shape[1], sparse.issparse(private_features)
        scored = base._setup(width, private_targets, is_sparse=is_sparse)
        candidates = [
            Candidate(model=model, setup=model._setup(width, private_targets, is_sparse=is_sparse)) for model in models
        ]
        noise = NoiseSource(self.random_state)

        def units_of(model: PrivateLinearModel, setup: Setup) -> Units:
            return setup.units(model, private_features, private_targets, groups, noise)

        with double_precision():
            private_scored = units_of(base, scored)
            search = self._search(candidates, private_scored.public.n, by_user=groups is not None)
            if self.account is not None:
                self.account.spend(
                    f"PrivateSearchCV({type(base).__name__})",
                    search.plan.event,
                    search.plan.budget.epsilon,
                    search.plan.budget.delta,
                    relation=private_scored.public.relation,
                )
            run = SearchRun(search, private_scored.public, noise)
            results = [
                run.fit(index, candidate, units_of(candidate.model, candidate.setup))
                for index, candidate in enumerate(candidates)
            ]
            for candidate, result in zip(candidates, results, strict=True):
                candidate.model._set_parameters(result.params, candidate.setup)
            models_there = stack([candidate.model._parameters_in(scored) for candidate in candidates])
            best = run.choose(HoldoutScores(score=base._score_of_record(scored), models=models_there), private_scored)
            winner, result = candidates[best], results[best]
            if self.refit:
                result = run.refit(best, winner, units_of(winner.model, winner.setup))
        ...
        return self
