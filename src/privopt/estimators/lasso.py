"""Sparse linear models on an l1 ball: the vertices that they move between are chosen privately."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from privopt.estimators import arguments
from privopt.estimators.base import PrivateLinearModel
from privopt.estimators.linear import LogisticClassifier, PrivateRegressor
from privopt.estimators.setup import Setup
from privopt.solvers.base import Solver
from privopt.solvers.frank_wolfe import FrankWolfe
from privopt.solvers.vertices import VertexAnytime

RADIUS = 3.0  # where none is given


@dataclass(kw_only=True, eq=False, repr=False)
class LassoModel(PrivateLinearModel, abc.ABC):
    """A private linear model with `||w||_1 <= radius` for the weights w of the scaled features.

    Features are scaled into [-1, 1] by `bounds`, and no row is shortened: noise grows with the largest entry of a row
    and with the logarithm of the number of features, not with the length of rows. The result has few weights that are
    not zero. Sparse features stay sparse.

    Args:
        radius: R, public: what you know of the size of the effects, in the units of the scaled features (and of a
            target scaled into [-1, 1]). The intercept lies between -R and R, outside of the ball. Default 3, with a
            notice: give one.
        refit: whether the selected features are fitted anew with a part of the budget, see `FrankWolfe`: better where
            few features matter and they are weakly correlated, and possibly much worse where they are correlated.
        single_pass: whether every record is used once, in one pass over batches, see `VertexAnytime`: for data too
            large to read often, and less accurate. The intercept is then inside of the ball.
        row_bound: "entries" (the default), or the largest l2 norm of a scaled row.
        solver: "auto", or a solver for l1 balls; neither beside `refit` nor beside `single_pass`.
    Attributes:
        support_: the features with a weight that is not zero.
    """

    radius: float | None = None
    refit: bool = False
    single_pass: bool = False

    n_features_in_: int = field(init=False)

    @property
    def support_(self) -> NDArray[np.int64]:
        """The features with a weight that is not zero, in any class."""
        check_is_fitted(self, "coef_")
        return np.flatnonzero(np.any(np.atleast_2d(self.coef_) != 0, axis=0))

    def _penalty(self) -> Mapping[str, Any]:
        given = self.radius is not None
        radius = arguments.positive("radius", self.radius, "a bound on ||w||_1") if given else RADIUS
        return {"l1_radius": radius, "guessed_radius": not given, "intercept_inside": bool(self.single_pass)}

    def _solver(self, setup: Setup) -> Solver | str:
        del setup
        arguments.check_switch("refit", self.refit)
        arguments.check_switch("single_pass", self.single_pass)
        if not (self.refit or self.single_pass):
            return self.solver
        if self.refit and self.single_pass:
            raise ValueError(
                "refit and single_pass were both given: a refit is a second use of the records. Choose one of them."
            )
        if self.solver != "auto":
            named = "refit" if self.refit else "single_pass"
            raise ValueError(
                f"{named}=True chooses the solver, and solver={self.solver!r} another: leave one out."
            )
        return FrankWolfe(refit=True) if self.refit else VertexAnytime(single_pass=True)


@final
@dataclass(kw_only=True, eq=False, repr=False)
class LassoClassifier(LassoModel, LogisticClassifier):
    """Private sparse logistic regression, of two or several classes.

    Minimises `mean log(1 + exp(-y (w.a + b)))`, y = +-1 and a the scaled features, over `||w||_1 <= radius`; with K > 2
    classes the cross entropy of the softmax of K scores, the ball holding the weights of all. `coef_` is (1, d), or
    (K, d).

    Args:
        epsilon, delta, bounds, loose_bounds, scale_share, relation, n, fit_intercept, account, random_state,
            max_records_per_user, user_weighting, typical_records, storage, missing, indicator: see
            `PrivateLinearModel`.
        radius, refit, single_pass, row_bound, solver: see `LassoModel`.
        classes: see `PrivateClassifier`.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`.
    Source:
        Talwar, Thakurta, Zhang 2015.
    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).choice([-1.0, 1.0], (5000, 200))
        >>> model = LassoClassifier(epsilon=2.0, delta=1e-8, bounds=(-1, 1), classes=[-1, 1], radius=2.0)
        >>> fitted = model.fit(X, np.sign(X[:, 0] - X[:, 5] + 0.5))
        >>> bool({0, 5} <= set(fitted.support_) and len(fitted.support_) < 100)
        True
    """


@final
@dataclass(kw_only=True, eq=False, repr=False)
class LassoRegressor(LassoModel, PrivateRegressor):
    """Private sparse least squares.

    Minimises `mean (w.a + b - t)^2 / 2`, a the scaled features and t the target scaled into [-1, 1], over
    `||w||_1 <= radius`. Residuals larger than a public cap pull as much as the cap.

    Args:
        epsilon, delta, bounds, loose_bounds, scale_share, relation, n, fit_intercept, account, random_state,
            max_records_per_user, user_weighting, typical_records, storage, missing, indicator: see
            `PrivateLinearModel`.
        radius, refit, single_pass, row_bound, solver: see `LassoModel`.
        target_bounds: see `PrivateRegressor`.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`.
    Source:
        Talwar, Thakurta, Zhang 2015.
    """
