"""What is predicted, as a value: classes, numbers or counts, with its loss, its scaling and its words. Public."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from privopt.estimators import arguments
from privopt.later import jnp

if TYPE_CHECKING:
    from privopt.estimators.groups import Groups
    from privopt.problems.losses import GLMLoss
    from privopt.queries.scores import Score

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TargetScaling:
    """`t = (y - center) / spread`, clipped to `ends`.

    Attributes:
        center: the value that is mapped to 0.
        spread: what is mapped to a length of 1.
        bounds: the public range (low, high).
    """

    center: float
    spread: float
    bounds: tuple[float, float]

    @classmethod
    def of(cls, target_bounds: Any, *, centered: bool) -> "TargetScaling":
        """The scaling by public bounds into [-1, 1]; without centering, 0 stays 0."""
        low, high = arguments.as_range("target_bounds", target_bounds)
        center = low / 2 + high / 2 if centered else 0.0
        spread = high / 2 - low / 2 if centered else max(abs(low), abs(high))
        return cls(center, spread, (low, high))

    @property
    def declared(self) -> str:
        """What was declared public, in a sentence."""
        low, high = self.bounds
        return f"Target bounds, given by the user: {low:g} to {high:g}; targets outside were moved to the nearer end."

    @property
    def ends(self) -> tuple[float, float]:
        """Where the bounds are mapped to."""
        low, high = self.bounds
        return (low - self.center) / self.spread, (high - self.center) / self.spread

    def apply(self, private_targets: NDArray[Any]) -> Floats:
        """Scale targets; values out of bounds are clipped when units are made."""
        with np.errstate(all="ignore"):
            return (private_targets.astype(np.float64) - self.center) / self.spread


def declared_classes(given: Any) -> str:
    """What was declared of the labels, in a sentence; `given` is a list of labels, or text that declares those in y."""
    if isinstance(given, str):
        return "Classes: the user declared that the set of labels in y is public; it was read off y."
    plain = (label.item() if isinstance(label, np.generic) else label for label in given)
    return f"Classes, given by the user: {', '.join(map(str, plain))}."


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """Everything public about what is predicted, fixed before a target is looked at.

    Attributes:
        loss: of scaled targets.
        meaning: what `X @ coef_ + intercept_` of a fitted model is, in a few words.
        declared: what was declared public, in a sentence.
        labels: all class labels, in the order of `classes_`; None for numbers and counts.
        scaling: how numbers and counts are scaled; None for classes.
        cap: the loss from which on a record counts as wholly wrong when candidates are compared; None for the loss of
            the middle prediction at the farther target bound. Of classes the accuracy is compared.
        groups: the declared `Groups` of records, where the loss is the largest of the groups' mean losses.
        attributes: what a fit sets beside its released parameters.
    """

    loss: GLMLoss
    meaning: str
    declared: str
    labels: NDArray[Any] | None = None
    scaling: TargetScaling | None = None
    cap: float | None = None
    groups: "Groups | None" = None
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def coded(self) -> NDArray[Any] | None:
        """The labels that records are stored by the place of; None where targets are stored as they are."""
        return self.labels if self.groups is None else None

    @property
    def divides_rows(self) -> bool:
        """Whether rows may be divided by their lengths: scores then are as well, and the classes stay the same."""
        return self.scaling is None

    @property
    def score(self) -> Score:
        """How well a prediction fits one record, for a charged selection."""
        from privopt.queries.scores import Accuracy, BoundedLoss  # late: for a selection alone

        if self.scaling is None:
            return Accuracy()
        if self.cap is not None:
            return BoundedLoss(loss=self.loss, cap=self.cap)
        worst = self.loss.value(jnp.zeros(2), jnp.asarray(self.scaling.ends))
        return BoundedLoss(loss=self.loss, cap=float(jnp.max(worst)))

    def unscaled(self, weights: Floats, offset: Floats) -> tuple[Floats, Any]:
        """`coef_` and `intercept_` of targets as given, from (outputs, d) and (outputs,) of scaled ones."""
        if self.scaling is None:
            return weights, offset
        spread, center = self.scaling.spread, self.scaling.center
        return weights[0] * spread, float(offset[0] * spread + center)

    def scaled(self, coef: Floats, intercept: Any) -> tuple[Floats, Floats]:
        """The inverse of `unscaled`."""
        if self.scaling is None:
            return coef, intercept
        spread, center = self.scaling.spread, self.scaling.center
        return coef[None, :] / spread, np.asarray([(intercept - center) / spread])

    def coefficients(self, columns: str, *, divided: bool) -> str:
        """What the coefficients of a model are, in sentences.

        Args:
            columns: in which units the columns are, in a sentence.
            divided: whether scores are divided by the lengths of rows.
        """
        if not divided:
            return f"A coefficient says what one unit of its column adds to {self.meaning}. {columns}"
        return (
            "A coefficient says what one unit of its column adds to a record's score; the score is then divided by the "
            f"length of the record's scaled row, which makes it {self.meaning}. {columns}"
        )
