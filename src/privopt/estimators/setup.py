"""Everything public about a fit, and the way between scaled and given units."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data.units import Units, bound_with
from privopt.data.users import Weighting
from privopt.estimators.scale_estimation import Bounds, ScaleEstimation
from privopt.estimators.scaling import FeatureScaling, TargetScaling
from privopt.mechanisms.noise import NoiseSource
from privopt.problems.problem import Problem
from privopt.public import Public, Relation


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything public about a fit, fixed before a feature or a target is looked at.

    Attributes:
        features: how features are scaled; by the loose bounds as long as better ones are not estimated.
        scales: how bounds will be estimated from the data first; None where they are given.
        targets: how targets are scaled; None for a classifier.
        labels: the class labels; None for a regressor.
        row_bound: largest l2 norm of a scaled row; the constant column is left out, but with `unit_rows` included.
        unit_rows: whether each scaled row, the constant included, is divided by its length.
        intercept: value of the constant column; None without an intercept.
        alpha: the strength of the penalty; None without one.
        problem: what is minimised, in scaled units.
        relation: the neighbouring relation.
        given_n: the number of units, where the user gave one.
        max_records_per_user, user_weighting: as the user gave them.
    """

    features: FeatureScaling
    scales: ScaleEstimation | None = None
    targets: TargetScaling | None
    labels: NDArray[Any] | None
    row_bound: float
    unit_rows: bool
    intercept: float | None
    alpha: float | None = None
    problem: Problem
    relation: Relation
    given_n: int | None
    max_records_per_user: int
    user_weighting: Weighting

    def units(self, X: Any, y: NDArray[Any], groups: Any, noise: NoiseSource) -> Units:
        """The arrays as privacy units."""
        rows = self.features.apply(
            X, unit=self.unit_rows, constant=self.intercept if self.unit_rows else None
        )
        constant = None if self.unit_rows else self.intercept
        return self._units(rows, y, groups, noise, row_bound=self.row_bound, intercept=constant)

    def loose_units(self, X: Any, y: NDArray[Any], groups: Any, noise: NoiseSource) -> Units:
        """The arrays as privacy units, for the estimation of scales: rows divided by the loose range and not cut."""
        assert self.scales is not None
        longest = math.sqrt(self.features.width) * (1.0 + 2.0**-20)
        return self._units(self.scales.loose.apply(X), y, groups, noise, row_bound=longest, intercept=None)

    def within(self, bounds: Bounds) -> "Setup":
        """The same fit with features scaled by estimated bounds."""
        features = FeatureScaling(np.asarray(bounds[0]), np.asarray(bounds[1]), self.features.centered)
        return replace(self, features=features)

    def _units(
        self,
        private_rows: Any,
        y: NDArray[Any],
        groups: Any,
        noise: NoiseSource,
        *,
        row_bound: float,
        intercept: float | None,
    ) -> Units:
        return Units.from_arrays(
            private_rows,
            y if self.targets is None else self.targets.apply(y),
            relation=self.relation,
            row_bound=row_bound,
            n=self.given_n,
            groups=groups,
            max_records_per_user=self.max_records_per_user,
            user_weighting=self.user_weighting,
            classes=self.labels,
            target_bounds=None if self.targets is None else self.targets.ends,
            intercept=intercept,
            noise=noise,
        )

    def public(self, n: int, *, by_user: bool) -> Public:
        """What `units` of n units would state to be public."""
        return Public(
            n=n,
            d=self.features.width + (self.intercept is not None),
            relation=self.relation,
            row_bound=self._longest_row(),
            unit="user" if by_user else "record",
            records_per_unit=self.max_records_per_user if by_user else 1,
            outputs=self.problem.loss.outputs,
        )

    def _longest_row(self) -> float:
        """The bound that `Units` will state, to the last digit: prices are compared by equality."""
        if self.unit_rows or self.intercept is None:
            return self.row_bound
        return bound_with(self.row_bound, float(np.float32(self.intercept)))

    def unscaled(self, params: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weights (outputs, d) of features as given and offsets (outputs,), from released parameters."""
        matrix = np.asarray(params, np.float64).reshape(-1, self.problem.loss.outputs).T
        width = self.features.width
        offset = np.zeros(len(matrix)) if self.intercept is None else matrix[:, width] * self.intercept
        return self.features.undo(matrix[:, :width], offset)

    def scaled(self, weights: NDArray[np.float64], offset: NDArray[np.float64]) -> NDArray[np.float64]:
        """The inverse of `unscaled`, (outputs, d + 1); for a setup with an intercept."""
        assert self.intercept is not None
        scaled, constant = self.features.redo(weights, offset)
        return np.concatenate([scaled, constant[:, None] / self.intercept], axis=1)
