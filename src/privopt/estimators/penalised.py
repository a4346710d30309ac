"""The arguments of linear models with a penalty on their weights."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from privopt.estimators.base import PrivateLinearModel
from privopt.estimators.penalties import Penalty


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
