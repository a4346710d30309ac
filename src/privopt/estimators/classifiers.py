"""Private linear classifiers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin

from privopt.estimators import arguments
from privopt.estimators.base import PrivateLinearModel
from privopt.estimators.penalised import PenalisedModel
from privopt.estimators.scaling import RowLengths
from privopt.estimators.scoring import measured
from privopt.estimators.table_arguments import in_batches
from privopt.estimators.targets import Classes
from privopt.problems import losses
from privopt.problems.glm import GLMLoss

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

    def _target(self, y: NDArray[Any] | None) -> Classes:
        labels = self._labels(y)
        if len(labels) == 2:
            loss, meaning = losses.logistic, "the log-odds of the one class against the other, as headed"
        else:
            loss = losses.softmax(len(labels))
            meaning = "the score of the class; the softmax of all scores gives their probabilities"
        return Classes(labels=labels, loss=loss, meaning=meaning, given=self.classes)

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
    """A linear model of two classes by the sign of a score, without probabilities."""

    def _two_classes(self, y: NDArray[Any] | None, loss: GLMLoss) -> Classes:
        """Two classes, by a loss of the margin."""
        labels = self._labels(y)
        if len(labels) > 2:
            raise ValueError(
                f"Only binary classification is supported. The type of the target is multiclass ({len(labels)} "
                "classes): use LogisticRegression."
            )
        meaning = "the decision score: where it is positive, the first class of the heading is predicted"
        return Classes(labels=labels, loss=loss, meaning=meaning, given=self.classes)

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

    def _target(self, y: NDArray[Any] | None) -> Classes:
        width = arguments.positive("width", self.width, "half the length over which the hinge is made smooth")
        return self._two_classes(y, losses.smoothed_hinge(width))
