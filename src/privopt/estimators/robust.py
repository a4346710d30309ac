"""Private linear models of records of which some are plainly wrong, by losses that level off."""

from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from privopt.estimators import arguments
from privopt.estimators.classifiers import TwoClassScores
from privopt.estimators.penalised import PenalisedModel
from privopt.estimators.regressors import PrivateRegressor
from privopt.estimators.scoring import measured
from privopt.estimators.targets import Classes, Numbers
from privopt.problems import losses
from privopt.public import real

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

    def _target(self, y: NDArray[Any] | None) -> Classes:
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

    def _target(self, y: NDArray[Any] | None) -> Numbers:
        del y
        scaling, level = self._scaling(), real("quantile", self.quantile)
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
        return Numbers(scaling=scaling, loss=losses.capped(cap, self.loss, quantile=level))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R^2 for the squared loss; else the share of the pinball loss of the constant quantile that is explained."""
        if self.loss == "squared":
            return super().score(X, y, sample_weight)
        prediction: NDArray[np.float64] = self.predict(X)
        level = self.quantile if self.loss == "quantile" else 0.5
        return measured("d2_pinball_score", y, prediction, sample_weight=sample_weight, alpha=level)
