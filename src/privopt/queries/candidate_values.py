"""How good each of several public candidates is, by the mean of clipped loss values: scores of a private choice."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.losses import Loss
from privopt.public import Public
from privopt.queries.base import Scalar, query, shrunk_radius, static
from privopt.queries.values import ValueSum


@query
class CandidateValues(ValueSum):
    """Minus the mean over units of the loss at each candidate, up to a constant common to all of them.

    The exponential mechanism takes the largest score: the candidate with the smallest mean loss.

    Attributes:
        loss: any loss; its values are all that is asked for.
        candidates: (N, p), flat public points.
        low, high: the public range that values are moved into; a value that is not finite counts as `high`.
    Privacy:
        Sensitivity in the *range* (largest minus smallest entry of the change of the scores), W = high - low. A unit
        contributes numbers within W of each other, as averages of such; (low + high) / 2 is added to each, the same for
        all candidates, which changes no difference of scores and makes them at most W / 2 in size. So one unit that
        joins or leaves moves the sum by a vector of range at most W, one that is replaced by 2 W, attained by a unit
        that likes best what the other likes least: factor * W / N, see `MeanQuery`. `clip_unit` holds every entry
        within W / 2, whatever a loss answers.
    Source:
        Kornowski, Liu, Talwar 2024, Appendix B (a warm start by the exponential mechanism); Dong, Durfee, Rogers 2020
        (bounded range).
    """

    norm: ClassVar[str] = "range"

    loss: Loss = static()
    candidates: Float[Array, "N p"]
    low: Scalar
    high: Scalar

    def radius(self) -> Scalar:
        """W, in range."""
        return jnp.asarray(self.high, float) - self.low

    def shape(self, public: Public) -> tuple[int, ...]:
        """A score a candidate."""
        del public
        return (int(jnp.shape(self.candidates)[0]),)

    def points(self) -> Float[Array, "m p"]:
        """The candidates."""
        return jnp.asarray(self.candidates, float)

    def of_values(self, private_values: Float[Array, " m"]) -> Array:
        """Minus the values, moved into the range, around its middle."""
        private_kept = jnp.where(
            jnp.isfinite(private_values), jnp.clip(private_values, self.low, self.high), self.high
        )
        return 0.5 * (jnp.asarray(self.low, float) + self.high) - private_kept

    def clip_unit(self, private_vector: Array) -> Array:
        """Every entry within W / 2."""
        half = 0.5 * shrunk_radius(self.radius())
        return jnp.clip(private_vector, -half, half)
