"""Private linear regressions."""

import math
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from privopt.estimators import arguments
from privopt.estimators.base import PrivateLinearModel
from privopt.estimators.penalised import PenalisedModel
from privopt.estimators.penalties import Penalty
from privopt.estimators.scoring import measured
from privopt.estimators.table_arguments import in_batches
from privopt.estimators.targets import Counts, Numbers, TargetScaling
from privopt.problems import losses
from privopt.public import real


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(RegressorMixin, PrivateLinearModel):
    """A private linear regression; see `PrivateLinearModel` for what it shares.

    Args:
        target_bounds: public range (low, high) of the target, required; targets outside are moved to the nearer end.
    """

    target_bounds: tuple[float, float] | None = None

    def _scaling(self) -> TargetScaling:
        """The scaling by the declared bounds."""
        return TargetScaling.of(self._declared_bounds(), centered=self.fit_intercept)

    def _declared_bounds(self) -> tuple[float, float]:
        if self.target_bounds is None:
            raise arguments.missing_target_bounds(type(self).__name__)
        return self.target_bounds

    @in_batches
    def predict(self, X: Any) -> NDArray[np.float64]:
        """`X @ coef_ + intercept_`."""
        return self._linear(self._checked_features(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the variance that the model explains (R^2)."""
        return measured("r2_score", y, self.predict(X), sample_weight=sample_weight)


@final
@dataclass(kw_only=True, eq=False, repr=False)
class LinearRegression(PenalisedModel, PrivateRegressor):
    """Private least squares, by default without a penalty.

    Minimises `mean (w.a + b - t)^2 / 2`, plus a penalty if one is asked for, a the scaled features and t the target
    scaled into [-1, 1]. `penalty="l1"` or `l1_radius` makes it the lasso, `penalty="elasticnet"` the elastic net.

    Args:
        epsilon, delta, bounds, loose_bounds, scale_share, relation, n, row_bound, fit_intercept, solver, account,
            random_state, max_records_per_user, user_weighting, typical_records, storage, missing, indicator: see
            `PrivateLinearModel`.
        penalty, alpha, alphas, l1_ratio, feature_groups, l1_radius: see `PenalisedModel`.
        target_bounds: see `PrivateRegressor`.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`.
    """

    penalty: Penalty | None = None

    def _target(self, y: NDArray[Any] | None) -> Numbers:
        del y
        return Numbers(scaling=self._scaling(), loss=losses.squared)


@final
@dataclass(kw_only=True, eq=False, repr=False)
class Ridge(PenalisedModel, PrivateRegressor):
    """Private least squares with a penalty.

    Minimises `mean (w.a + b - t)^2 / 2 + alpha / 2 ||w||^2`, a the scaled features and t the target scaled into
    [-1, 1]: scikit-learn's Ridge on scaled data with its `alpha` equal to n times this one.

    Args:
        epsilon, delta, bounds, loose_bounds, scale_share, relation, n, row_bound, fit_intercept, solver, account,
            random_state, max_records_per_user, user_weighting, typical_records, storage, missing, indicator: see
            `PrivateLinearModel`.
        penalty, alpha, alphas, l1_ratio, feature_groups, l1_radius: see `PenalisedModel`.
        target_bounds: see `PrivateRegressor`.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`.
    """

    def _target(self, y: NDArray[Any] | None) -> Numbers:
        del y
        return Numbers(scaling=self._scaling(), loss=losses.squared)


@final
@dataclass(kw_only=True, eq=False, repr=False)
class HuberRegressor(PenalisedModel, PrivateRegressor):
    """Private regression that outliers pull with bounded force.

    Minimises `mean h(w.a + b - t) + penalty(w)`, a the scaled features and t the scaled target, with
    `h(r) = r^2 / 2` up to the threshold and linear beyond.

    Args:
        threshold: the residual, in the target's units, at which the loss turns from square to linear; by default a
            tenth of the width of `target_bounds`.
        epsilon, delta, bounds, loose_bounds, scale_share, relation, n, row_bound, fit_intercept, solver, account,
            random_state, max_records_per_user, user_weighting, typical_records, storage, missing, indicator: see
            `PrivateLinearModel`.
        penalty, alpha, alphas, l1_ratio, feature_groups, l1_radius: see `PenalisedModel`.
        target_bounds: see `PrivateRegressor`.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`.
    Source:
        Huber 1964, Robust estimation of a location parameter.
    """

    threshold: float | None = None

    def _target(self, y: NDArray[Any] | None) -> Numbers:
        del y
        scaling = self._scaling()
        if self.threshold is None:
            threshold = 0.2  # measured to be a good start on two tables
        else:
            meaning = "the residual at which the loss turns from square to linear"
            threshold = arguments.positive("threshold", self.threshold, meaning) / scaling.spread
        return Numbers(scaling=scaling, loss=losses.huber(threshold))


@final
@dataclass(kw_only=True, eq=False, repr=False)
class QuantileRegressor(PenalisedModel, PrivateRegressor):
    """Private regression of a quantile, such as the median.

    Minimises `mean pinball(t - w.a - b) + penalty(w)`, a the scaled features and t the scaled target, with
    the corner of the pinball loss made smooth over residuals within `smoothing`.

    The share of the training targets below the fit is the level, but for the noise that the plan states: the default
    solver releases counts that set the intercept right. By user, without an intercept and with another solver it may be
    off by the share of targets within `smoothing` of the fit.

    Args:
        quantile: the level, strictly between 0 and 1.
        smoothing: half the length, in the target's units, over which the corner is made smooth; 0 for none; by default
            a twentieth of the width of `target_bounds`.
        epsilon, delta, bounds, loose_bounds, scale_share, relation, n, row_bound, fit_intercept, solver, account,
            random_state, max_records_per_user, user_weighting, typical_records, storage, missing, indicator: see
            `PrivateLinearModel`.
        penalty, alpha, alphas, l1_ratio, feature_groups, l1_radius: see `PenalisedModel`.
        target_bounds: see `PrivateRegressor`.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`.
    Source:
        Fernandes, Guerre, Horta 2021, Smoothing quantile regressions (uniform kernel).
    """

    quantile: float = 0.5
    smoothing: float | None = None

    def _target(self, y: NDArray[Any] | None) -> Numbers:
        del y
        scaling, level = self._scaling(), real("quantile", self.quantile)
        if self.smoothing is None:
            smoothing = 0.1  # curvature 5: less smoothing needs more steps
        else:
            meaning = "half the length over which the corner is made smooth"
            smoothing = arguments.positive("smoothing", self.smoothing, meaning, zero=True) / scaling.spread
        return Numbers(scaling=scaling, loss=losses.quantile(level, smoothing))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the pinball loss of the constant quantile that the model explains (D2)."""
        prediction = self.predict(X)
        return measured("d2_pinball_score", y, prediction, sample_weight=sample_weight, alpha=self.quantile)


@final
@dataclass(kw_only=True, eq=False, repr=False)
class PoissonRegressor(PenalisedModel, PrivateRegressor):
    """Private Poisson regression of counts, with a logarithmic link.

    Minimises `mean (exp(z) - y z) + penalty(w)`, `z = w.a + b` and a the scaled features; the exponential is
    continued linearly beyond rates of `max_rate`, which keeps the loss convex and its gradient bounded.

    Args:
        max_rate: largest rate the model predicts; by default the upper target bound.
        epsilon, delta, bounds, loose_bounds, scale_share, relation, n, row_bound, fit_intercept, solver, account,
            random_state, max_records_per_user, user_weighting, typical_records, storage, missing, indicator: see
            `PrivateLinearModel`.
        penalty, alpha, alphas, l1_ratio, feature_groups, l1_radius: see `PenalisedModel`.
        target_bounds: see `PrivateRegressor`; the lower one is at least 0.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`.
    """

    max_rate: float | None = None

    max_rate_: float = field(init=False)

    def _target(self, y: NDArray[Any] | None) -> Counts:
        del y
        return Counts.of(self._declared_bounds(), self.max_rate)

    @in_batches
    def predict(self, X: Any) -> NDArray[np.float64]:
        """The rate `exp(X @ coef_ + intercept_)`, at most `max_rate`."""
        with np.errstate(under="ignore"):
            return np.exp(np.minimum(self._linear(self._checked_features(X)), math.log(self.max_rate_)))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the Poisson deviance of the constant rate that the model explains (D2)."""
        return measured("d2_tweedie_score", y, self.predict(X), sample_weight=sample_weight, power=1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
