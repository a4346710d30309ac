"""Private linear classifiers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, RegressorMixin

from privopt.estimators import arguments
from privopt.estimators.base import PenalisedModel, PrivateLinearModel
from privopt.estimators.table_arguments import in_batches
from privopt.estimators.targets import Target, TargetScaling, declared_classes
from privopt.later import deferred
from privopt.problems import losses
from privopt.public import real

if TYPE_CHECKING:
    from privopt.estimators.penalties import Penalty
    from privopt.estimators.scaling import RowLengths
    from privopt.estimators.search import measured
    from privopt.problems.glm import GLMLoss
else:
    measured = deferred("privopt.estimators.search", "measured")

LOG_ODDS = "the log-odds of the one class against the other, as headed"
PLAIN = (np.bool_, np.integer, np.str_)  # kinds of labels that Python has an equal of


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, PrivateLinearModel):
    """A private linear classifier; see `PrivateLinearModel` for what it shares.

    Scores are `X @ coef_.T + intercept_`: the model is fitted to scaled rows as they are. Where that would need a bound
    on the length of a row (without an intercept, or beyond 2000 columns), and with `row_bound="unit"`, each scaled
    row, with the constant 1 of the intercept appended, is divided by its own length, and scores are
    `(X @ coef_.T + intercept_) / length` with `row_lengths_.of(X)`; the boundary between classes is the same. With a
    number as `row_bound` the fit shortens longer rows to it.

    Args:
        row_bound: None (the default, see above), "unit" (rows are divided by their length, to fit and to predict:
            another model, at times better where lengths differ severalfold, as they do with few words among many),
            "entries" (rows stay as they are), or the largest l2 norm of a scaled row.
        classes: the labels, required: a list, or "from_y", which declares that the set of labels in y is public. A
            record with any other label counts as zero.
    Attributes:
        classes_: the labels, sorted. With two, scores are of the second.
        row_lengths_: the lengths that scores are divided by; None where scores are `X @ coef_.T + intercept_`.
    """

    classes: Sequence[Any] | NDArray[Any] | str | None = None

    classes_: NDArray[Any] = field(init=False)
    row_lengths_: RowLengths | None = field(init=False, default=None)

    def __setattr__(self, name: str, value: Any) -> None:
        """Labels in a list become Python's own, so that whatever prints them, such as a pipeline, shows 0 for 0."""
        if name == "classes" and type(value) in (list, tuple):
            plain = [label.item() if isinstance(label, PLAIN) else label for label in value]
            if any(label is not given for label, given in zip(plain, value, strict=True)):
                value = type(value)(plain)
        super().__setattr__(name, value)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of records whose class is predicted right."""
        read = arguments.read_labels(y, self.classes_)
        return measured("accuracy_score", read, self.predict(X), sample_weight=sample_weight)

    def _labels(self, y: NDArray[Any] | None) -> NDArray[Any]:
        """The declared labels; those in y if the user declared them public."""
        if self.classes is None:
            raise arguments.missing_classes(type(self).__name__)
        if not isinstance(self.classes, str) or self.classes != arguments.FROM_Y:
            return arguments.labels_of(self.classes)
        if y is None:
            raise ValueError(
                "classes='from_y' needs a y: to plan without data, give the labels as classes=[...]."
            )
        return arguments.labels_from(y)

    def _classes(self, labels: NDArray[Any], loss: GLMLoss, meaning: str) -> Target:
        """The labels, predicted by a loss of scores."""
        declared, found = declared_classes(self.classes), {"classes_": labels}
        return Target(labels=labels, loss=loss, meaning=meaning, declared=declared, attributes=found)

    @in_batches
    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores: (rows,) of the second class against the first, or (rows, classes)."""
        features = self._checked_features(X)
        scores = self._linear(features)
        if self.row_lengths_ is not None:
            scores = scores / self.row_lengths_.of(features)[:, None]
        return scores[:, 0] if scores.shape[1] == 1 else scores

    @in_batches
    def predict(self, X: Any) -> NDArray[Any]:
        """The class with the largest score."""
        scores = self._linear(self._checked_features(X))  # a row's length changes no sign and no order
        codes = (scores[:, 0] > 0).astype(np.intp) if scores.shape[1] == 1 else np.argmax(scores, axis=1)
        return self.classes_[codes]


@dataclass(kw_only=True, eq=False, repr=False)
class LogisticClassifier(PrivateClassifier):
    """A linear model of the log-odds of two classes, or of the scores of several; see `PrivateClassifier`."""

    def _target(self, y: NDArray[Any] | None) -> Target:
        labels = self._labels(y)
        if len(labels) == 2:
            return self._classes(labels, losses.logistic, LOG_ODDS)
        meaning = "the score of the class; the softmax of all scores gives their probabilities"
        return self._classes(labels, losses.softmax(len(labels)), meaning)

    @in_batches
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class, (rows, classes)."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.stack([expit(-scores), expit(scores)], axis=1)
        return softmax(scores, axis=1)


@final
@dataclass(kw_only=True, eq=False, repr=False)
class LogisticRegression(PenalisedModel, LogisticClassifier):
    """Private logistic regression, of two or several classes.

    Minimises `mean log(1 + exp(-y s)) + penalty(w)`, y = +-1 and s the score `w.a + b` of scaled features a
    (divided by `||(a, 1)||` with `row_bound="unit"`); with K > 2 classes the cross entropy of the softmax of K scores.
    It is scikit-learn's model of such rows with `C = 1 / (n alpha)`. `coef_` is (1, d), or (K, d).

    Args:
        epsilon, delta, bounds, loose_bounds, scale_share, relation, n, row_bound, fit_intercept, solver, account,
            random_state, max_records_per_user, user_weighting, typical_records, storage, missing, indicator: see
            `PrivateLinearModel`.
        penalty, alpha, alphas, l1_ratio, feature_groups, l1_radius: see `PenalisedModel`.
        classes: see `PrivateClassifier`.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`.
    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).uniform(-1, 1, (2000, 3))
        >>> model = LogisticRegression(epsilon=1.0, delta=1e-6, bounds=(-1, 1), classes=[0, 1])
        >>> model.fit(X, (X[:, 0] > 0).astype(int)).coef_.shape
        (1, 3)
        >>> model.privacy_.epsilon <= 1.0
        True
    """


@dataclass(kw_only=True, eq=False, repr=False)
class TwoClassScores(PenalisedModel, PrivateClassifier):
    """A linear model of two classes by the sign of a score."""

    def _two_labels(self, y: NDArray[Any] | None, other: str = "LogisticRegression") -> NDArray[Any]:
        """The labels, of which there must be two; `other` models are for more."""
        labels = self._labels(y)
        if len(labels) > 2:
            raise ValueError(
                f"Only binary classification is supported. The type of the target is multiclass ({len(labels)} "
                f"classes): use {other}."
            )
        return labels

    def _two_classes(self, y: NDArray[Any] | None, loss: GLMLoss) -> Target:
        """Two classes, by a loss of the margin."""
        meaning = "the decision score: where it is positive, the first class of the heading is predicted"
        return self._classes(self._two_labels(y), loss, meaning)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


@final
@dataclass(kw_only=True, eq=False, repr=False)
class LinearSVC(TwoClassScores):
    """A private linear support vector machine for two classes, with the corner of its hinge made smooth.

    Minimises `mean h(y s) + penalty(w)`, y = +-1 and s the score `w.a + b` of scaled features a (divided by
    `||(a, 1)||` with `row_bound="unit"`), with the hinge `h(m) = max(0, 1 - m)` replaced by
    `(1 + width - m)^2 / (4 width)` for margins within `width` of 1.

    Args:
        width: half the length of margins over which the hinge is made smooth; positive.
        epsilon, delta, bounds, loose_bounds, scale_share, relation, n, row_bound, fit_intercept, solver, account,
            random_state, max_records_per_user, user_weighting, typical_records, storage, missing, indicator: see
            `PrivateLinearModel`.
        penalty, alpha, alphas, l1_ratio, feature_groups, l1_radius: see `PenalisedModel`.
        classes: see `PrivateClassifier`; two labels.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`.
    Source:
        Chapelle 2007, Training a support vector machine in the primal, section 2 (the smooth hinge).
    """

    width: float = 0.5

    def _target(self, y: NDArray[Any] | None) -> Target:
        width = arguments.positive("width", self.width, "half the length over which the hinge is made smooth")
        return self._two_classes(y, losses.smoothed_hinge(width))


# ---- Private linear regressions ----------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(RegressorMixin, PrivateLinearModel):
    """A private linear regression; see `PrivateLinearModel` for what it shares.

    Args:
        target_bounds: public range (low, high) of the target, required; targets outside are moved to the nearer end.
    """

    target_bounds: tuple[float, float] | None = None

    def _target(self, y: NDArray[Any] | None) -> Target:
        del y
        scaling = TargetScaling.of(self._declared_bounds(), centered=self.fit_intercept)
        meaning = "the prediction, in units of the target"
        return Target(scaling=scaling, loss=self._loss(scaling), declared=scaling.declared, meaning=meaning)

    def _loss(self, scaling: TargetScaling) -> GLMLoss:
        """The loss of scaled targets: half the square, unless a model says otherwise."""
        del scaling
        return losses.squared

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

    def _loss(self, scaling: TargetScaling) -> GLMLoss:
        if self.threshold is None:
            threshold = 0.2  # measured to be a good start on two tables
        else:
            meaning = "the residual at which the loss turns from square to linear"
            threshold = arguments.positive("threshold", self.threshold, meaning) / scaling.spread
        return losses.huber(threshold)


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

    def _loss(self, scaling: TargetScaling) -> GLMLoss:
        level = real("quantile", self.quantile)
        if self.smoothing is None:
            smoothing = 0.1  # curvature 5: less smoothing needs more steps
        else:
            meaning = "half the length over which the corner is made smooth"
            smoothing = arguments.positive("smoothing", self.smoothing, meaning, zero=True) / scaling.spread
        return losses.quantile(level, smoothing)

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

    def _target(self, y: NDArray[Any] | None) -> Target:
        del y
        bounds = self._declared_bounds()
        low, high = arguments.as_range("target_bounds", bounds)
        if low < 0:
            raise ValueError(
                f"target_bounds must begin at 0 or above, got {bounds!r}: counts are not negative."
            )
        largest = high if self.max_rate is None else self.max_rate
        top = arguments.positive("max_rate", largest, "the largest rate that the model predicts")
        scaling = TargetScaling(0.0, 1.0, (low, high))
        return Target(
            scaling=scaling,
            loss=losses.poisson(math.log(top), high),
            declared=scaling.declared,
            meaning="the natural logarithm of the predicted rate",
            cap=1.0 + math.log1p(high),  # of the loss, which is half the deviance
            attributes={"max_rate_": top},
        )

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


# ---- Private linear models of records of which some are plainly wrong, by losses that level off ------------


Capped = Literal["absolute", "squared", "quantile"]
CAP = 0.4  # of the scaled target: a fifth of the width of its bounds


@final
@dataclass(kw_only=True, eq=False, repr=False)
class RobustClassifier(TwoClassScores):
    """A private linear classifier of two classes that a record with a wrong label cannot pull for ever.

    Minimises `mean r(y s) + penalty(w)`, y = +-1 and s the score `w.a + b` of scaled features a (divided by
    `||(a, 1)||` with `row_bound="unit"`), with the ramp `r(m) = min(1, max(0, (1 - m) / 2))`, its corners
    rounded over margins within `width`. The ramp levels off at 1: a record that the model is sure to be wrong has no
    gradient. It is about the share of wrong predictions, and it is not convex: there may be minima that are not the
    best, and solvers that rest on convexity refuse it.

    Args:
        width: half the length of margins over which the ramp's corners are rounded; in (0, 1].
        epsilon, delta, bounds, loose_bounds, scale_share, relation, n, row_bound, fit_intercept, solver, account,
            random_state, max_records_per_user, user_weighting, typical_records, storage, missing, indicator: see
            `PrivateLinearModel`.
        penalty, alpha, alphas, l1_ratio, feature_groups, l1_radius: see `PenalisedModel`.
        classes: see `PrivateClassifier`; two labels.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`.
    Source:
        Collobert, Sinz, Weston, Bottou 2006, Trading convexity for scalability (the ramp loss).
    """

    width: float = 0.5

    def _target(self, y: NDArray[Any] | None) -> Target:
        meaning = "half the length over which the ramp's corners are rounded, at most 1"
        return self._two_classes(y, losses.ramp(arguments.positive("width", self.width, meaning)))


@final
@dataclass(kw_only=True, eq=False, repr=False)
class RobustRegressor(PenalisedModel, PrivateRegressor):
    """A private regression that targets far off do not pull at all.

    Minimises `mean c(w.a + b - t) + penalty(w)`, a the scaled features and t the scaled target, with `c(r)` the
    absolute, squared or pinball loss of the residual up to the cap, and constant beyond, corners rounded. It is not
    convex: there may be minima that are not the best, and solvers that rest on convexity refuse it.

    Args:
        loss: which loss is capped: "absolute" (the median), "squared" (the mean) or "quantile".
        cap: the largest residual that counts, in the target's units; by default a fifth of the width of
            `target_bounds`.
        quantile: the level of loss="quantile", strictly between 0 and 1.
        epsilon, delta, bounds, loose_bounds, scale_share, relation, n, row_bound, fit_intercept, solver, account,
            random_state, max_records_per_user, user_weighting, typical_records, storage, missing, indicator: see
            `PrivateLinearModel`.
        penalty, alpha, alphas, l1_ratio, feature_groups, l1_radius: see `PenalisedModel`.
        target_bounds: see `PrivateRegressor`.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`.
    Source:
        Hinich, Talwar 1975, A simple method for robust regression (capped squares).
    """

    loss: Capped = "absolute"
    cap: float | None = None
    quantile: float = 0.5

    def _loss(self, scaling: TargetScaling) -> GLMLoss:
        level = real("quantile", self.quantile)
        if self.loss not in get_args(Capped):
            raise ValueError(f"loss must be one of {list(get_args(Capped))}, got {self.loss!r}.")
        if self.loss != "quantile" and level != 0.5:
            raise ValueError(
                f"quantile={self.quantile!r} is the level of loss='quantile', got loss={self.loss!r}: give that loss, "
                "or leave quantile out."
            )
        cap = CAP
        if self.cap is not None:
            cap = arguments.positive("cap", self.cap, "the largest residual that counts") / scaling.spread
        return losses.capped(cap, self.loss, quantile=level)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R^2 for the squared loss; else the share of the pinball loss of the constant quantile that is explained."""
        if self.loss == "squared":
            return super().score(X, y, sample_weight)
        prediction: NDArray[np.float64] = self.predict(X)
        level = self.quantile if self.loss == "quantile" else 0.5
        return measured("d2_pinball_score", y, prediction, sample_weight=sample_weight, alpha=level)
