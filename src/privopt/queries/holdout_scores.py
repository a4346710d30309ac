"""How well several released models do on held-out data: a query for a charged selection."""

import abc
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.losses import GLMLoss
from privopt.problems.losses import Poisson
from privopt.public import Public
from privopt.queries.base import RecordSum, Scalar, query, static


class Score(abc.ABC):
    """A score of one record in [0, 1], larger is better. Frozen and hashable."""

    @abc.abstractmethod
    def of(self, predictions: Float[Array, "k outputs"], target: Scalar) -> Float[Array, " k"]:
        """The score of each of k models, from their linear predictions."""


@dataclass(frozen=True)
class Accuracy(Score):
    """1 for the right class, 0 for another; two classes are -1 and +1, several their codes."""

    def of(self, predictions: Float[Array, "k outputs"], target: Scalar) -> Float[Array, " k"]:
        """See `Score`."""
        if predictions.shape[1] == 1:
            right = (predictions[:, 0] > 0.0) == (target > 0.0)
        else:
            right = jnp.argmax(predictions, axis=1).astype(target.dtype) == target
        return right.astype(predictions.dtype)


@dataclass(frozen=True)
class BoundedLoss(Score):
    """`1 - min(loss / cap, 1)`; the Poisson loss is taken relative to that of the best prediction (half its deviance).

    Attributes:
        loss: a loss of one output.
        cap: public; the loss from which on a record counts as wholly wrong.
    """

    loss: GLMLoss
    cap: float

    def of(self, predictions: Float[Array, "k outputs"], target: Scalar) -> Float[Array, " k"]:
        """See `Score`."""
        assert self.loss.outputs == 1
        targets = jnp.full(predictions.shape[:1], target)
        private_loss = self.loss.value(predictions[:, 0], targets)
        if isinstance(self.loss, Poisson):
            private_loss = private_loss - (targets - jax.scipy.special.xlogy(targets, targets))
        return 1.0 - jnp.clip(private_loss / self.cap, 0.0, 1.0)


@query
class HoldoutScores(RecordSum):
    """Each model's mean over units of (average score of the unit's records - 1/2): a vector of k numbers.

    Attributes:
        score: of one record, in [0, 1].
        models: (k, d, outputs) released or public parameters.
    Privacy:
        One unit adds a vector with entries in [-1/2, 1/2] (a user's average, times a weight of at most 1, stays
        there; an absent unit adds 0). Adding or removing a unit moves the sum by such a vector, whose range is at most
        1; replacing one moves it by a difference of two, whose entries lie in [-1, 1] and whose range is at most 2.
        So the range sensitivity is factor * 1 / n, which is `MeanQuery.sensitivity` with `radius` 1. The float64
        rounding error of each entry is bounded for contributions of at most 1/2, so two entries' errors differ by no
        more than the bound for `radius` 1 that the curator adds on either data set.
    """

    norm: ClassVar[str] = "range"

    score: Score = static()
    models: Float[Array, "k d outputs"]

    def radius(self) -> Scalar:
        """The largest range of one unit's vector."""
        return 1.0

    def shape(self, public: Public) -> tuple[int, ...]:
        """One score a model."""
        del public
        return (self.models.shape[0],)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """One record's scores, moved to [-1/2, 1/2]."""
        private_predictions = jnp.einsum("d,kdo->ko", private_features, self.models)
        return self.score.of(private_predictions, private_target) - 0.5

    def clip_unit(self, private_vector: Array) -> Array:
        """Entries into [-1/2, 1/2]; zero where one is not finite."""
        private_finite = jnp.all(jnp.isfinite(private_vector))
        return jnp.where(private_finite, jnp.clip(private_vector, -0.5, 0.5), jnp.zeros_like(private_vector))
