"""What is predicted, as a value: classes, numbers or counts, with its loss, its scaling and its words. Public."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from privopt.estimators import arguments
from privopt.problems import losses
from privopt.problems.losses import GLMLoss
from privopt.queries.scores import Accuracy, BoundedLoss, Score

Floats = NDArray[np.float64]


class Target(Protocol):
    """Everything public about what is predicted, fixed before a target is looked at."""

    @property
    def loss(self) -> GLMLoss:
        """The loss of scaled targets."""
        ...

    @property
    def labels(self) -> NDArray[Any] | None:
        """The class labels; None for numbers."""
        ...

    @property
    def coded(self) -> NDArray[Any] | None:
        """The labels that records are stored by the place of; None where targets are stored as they are."""
        ...

    @property
    def scaling(self) -> "TargetScaling | None":
        """How numbers are scaled; None for classes."""
        ...

    @property
    def divides_rows(self) -> bool:
        """Whether rows may be divided by their lengths: scores then are as well, and the classes stay the same."""
        ...

    @property
    def score(self) -> Score:
        """How well a prediction fits one record, for a charged selection."""
        ...

    @property
    def declared(self) -> str:
        """What was declared public, in a sentence."""
        ...

    @property
    def meaning(self) -> str:
        """What `X @ coef_ + intercept_` of a fitted model is, in a few words."""
        ...

    @property
    def attributes(self) -> Mapping[str, Any]:
        """What a fit sets beside its released parameters."""
        ...

    def unscaled(self, weights: Floats, offset: Floats) -> tuple[Floats, Any]:
        """`coef_` and `intercept_` of targets as given, from (outputs, d) and (outputs,) of scaled ones."""
        ...

    def scaled(self, coef: Floats, intercept: Any) -> tuple[Floats, Floats]:
        """The inverse of `unscaled`."""
        ...


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
    def ends(self) -> tuple[float, float]:
        """Where the bounds are mapped to."""
        low, high = self.bounds
        return (low - self.center) / self.spread, (high - self.center) / self.spread

    def apply(self, private_targets: NDArray[Any]) -> Floats:
        """Scale targets; values out of bounds are clipped when units are made."""
        with np.errstate(all="ignore"):
            return (private_targets.astype(np.float64) - self.center) / self.spread


def plain_labels(labels: Any) -> list[Any]:
    """Labels as Python's own values, which print as what they are."""
    return [label.item() if isinstance(label, np.generic) else label for label in labels]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Classes:
    """One of several labels.

    Attributes:
        labels: all of them, in the order of `classes_`.
        given: what the user gave: a list of labels, or text that declares those in y public.
    """

    labels: NDArray[Any]
    given: Any
    loss: GLMLoss
    meaning: str

    scaling = None
    divides_rows = True
    score = Accuracy()

    @property
    def coded(self) -> NDArray[Any] | None:
        return self.labels

    @property
    def declared(self) -> str:
        if isinstance(self.given, str):
            return "Classes: the user declared that the set of labels in y is public; it was read off y."
        return f"Classes, given by the user: {', '.join(map(str, plain_labels(self.given)))}."

    @property
    def attributes(self) -> Mapping[str, Any]:
        return {"classes_": self.labels}

    def unscaled(self, weights: Floats, offset: Floats) -> tuple[Floats, Any]:
        return weights, offset

    def scaled(self, coef: Floats, intercept: Any) -> tuple[Floats, Floats]:
        return coef, intercept


@dataclass(frozen=True, kw_only=True)
class _Scaled:
    """What numbers and counts have in common: public bounds."""

    scaling: TargetScaling

    labels = None
    coded = None
    divides_rows = False

    @property
    def declared(self) -> str:
        low, high = self.scaling.bounds
        return f"Target bounds, given by the user: {low:g} to {high:g}; targets outside were moved to the nearer end."

    def unscaled(self, weights: Floats, offset: Floats) -> tuple[Floats, Any]:
        return weights[0] * self.scaling.spread, float(offset[0] * self.scaling.spread + self.scaling.center)

    def scaled(self, coef: Floats, intercept: Any) -> tuple[Floats, Floats]:
        spread, center = self.scaling.spread, self.scaling.center
        return coef[None, :] / spread, np.asarray([(intercept - center) / spread])


@final
@dataclass(frozen=True, kw_only=True)
class Numbers(_Scaled):
    """A number within public bounds, predicted by a loss of one output."""

    loss: GLMLoss

    meaning = "the prediction, in units of the target"

    @property
    def attributes(self) -> Mapping[str, Any]:
        return {}

    @property
    def score(self) -> Score:
        """The loss, bounded by that of the middle prediction at the farther target bound."""
        worst = self.loss.value(jnp.zeros(2), jnp.asarray(self.scaling.ends))
        return BoundedLoss(loss=self.loss, cap=float(jnp.max(worst)))


@final
@dataclass(frozen=True, kw_only=True)
class Counts(_Scaled):
    """A count within public bounds, whose rate is the exponential of a score.

    Attributes:
        max_rate: the largest rate that is predicted.
    """

    max_rate: float

    meaning = "the natural logarithm of the predicted rate"

    @classmethod
    def of(cls, target_bounds: Any, max_rate: Any) -> "Counts":
        """Counts within bounds; `max_rate` is the upper one by default."""
        low, high = arguments.as_range("target_bounds", target_bounds)
        if low < 0:
            raise ValueError(
                f"target_bounds must begin at 0 or above, got {target_bounds!r}: counts are not negative."
            )
        if max_rate is None:
            max_rate = high
        top = arguments.positive("max_rate", max_rate, "the largest rate that the model predicts")
        return cls(scaling=TargetScaling(0.0, 1.0, (low, high)), max_rate=top)

    @property
    def loss(self) -> losses.Poisson:
        return losses.poisson(math.log(self.max_rate), self.scaling.bounds[1])

    @property
    def attributes(self) -> Mapping[str, Any]:
        return {"max_rate_": self.max_rate}

    @property
    def score(self) -> Score:
        """Half the deviance; from 1 + log(1 + largest count) on a record counts as wholly wrong."""
        return BoundedLoss(loss=self.loss, cap=1.0 + math.log1p(self.scaling.bounds[1]))


def describe_coefficients(target: Target, columns: str, *, divided: bool) -> str:
    """What the coefficients of a model are, in sentences.

    Args:
        target: what it predicts.
        columns: in which units the columns are, in a sentence.
        divided: whether scores are divided by the lengths of rows.
    """
    if not divided:
        return f"A coefficient says what one unit of its column adds to {target.meaning}. {columns}"
    return (
        "A coefficient says what one unit of its column adds to a record's score; the score is then divided by the "
        f"length of the record's scaled row, which makes it {target.meaning}. {columns}"
    )
