"""Private linear classifiers."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privopt.estimators import arguments
from privopt.estimators.base import PrivateClassifier
from privopt.estimators.scaling import TargetScaling
from privopt.problems import losses
from privopt.problems.losses import GLMLoss


@dataclass(kw_only=True, eq=False, repr=False)
class LogisticRegression(PrivateClassifier):
    """Private logistic regression, of two or several classes.

    Minimises `mean log(1 + exp(-y (w.a + b))) + alpha / 2 ||w||^2`, y = +-1 and a the scaled features; with K > 2
    classes the cross entropy of the softmax of K scores. It is scikit-learn's model on scaled features with
    `C = 1 / (n alpha)`. `coef_` is (1, d), or (K, d).

    Args:
        epsilon, delta, bounds, relation, n, row_bound, fit_intercept, solver, account, random_state,
            max_records_per_user, user_weighting: see `PrivateLinearModel`.
        alpha, classes: see `PrivateClassifier`.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`.
    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).uniform(-1, 1, (2000, 3))
        >>> model = LogisticRegression(epsilon=1.0, delta=1e-6, bounds=(-1, 1), classes=[0, 1])
        >>> model.fit(X, X[:, 0] > 0).coef_.shape
        (1, 3)
        >>> bool(model.privacy_.epsilon <= 1.0)
        True
    """

    def _loss(self, targets: TargetScaling | None, labels: NDArray[Any] | None) -> GLMLoss:
        del targets
        assert labels is not None
        return losses.logistic if len(labels) == 2 else losses.softmax(len(labels))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class, (rows, classes)."""
        return self._probabilities(X)


@dataclass(kw_only=True, eq=False, repr=False)
class LinearSVC(PrivateClassifier):
    """A private linear support vector machine for two classes, with the corner of its hinge made smooth.

    Minimises `mean h(y (w.a + b)) + alpha / 2 ||w||^2`, a the scaled features, with the hinge `h(m) = max(0, 1 - m)`
    replaced by `(1 + width - m)^2 / (4 width)` for margins within `width` of 1.

    Args:
        width: half the length of margins over which the hinge is made smooth; positive.
        epsilon, delta, bounds, relation, n, row_bound, fit_intercept, solver, account, random_state,
            max_records_per_user, user_weighting: see `PrivateLinearModel`.
        alpha, classes: see `PrivateClassifier`; two labels.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`.
    Source:
        Chapelle 2007, Training a support vector machine in the primal, section 2 (the smooth hinge).
    """

    width: float = 0.5

    _several_classes: ClassVar[bool] = False

    def _loss(self, targets: TargetScaling | None, labels: NDArray[Any] | None) -> GLMLoss:
        del targets, labels
        return losses.smoothed_hinge(
            arguments.positive("width", self.width, "half the length over which the hinge is made smooth")
        )
