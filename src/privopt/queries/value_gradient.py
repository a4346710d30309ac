"""The gradient of a smoothed loss from values alone: two-point differences along orthonormal directions, clipped."""

import math
from dataclasses import field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.losses import Loss
from privopt.public import Public
from privopt.queries.base import Scalar, clip_to_ball, query, static
from privopt.queries.values import ValueSum


@query
class ValueGradient(ValueSum):
    """Mean over units of the two-point estimate of a smoothed loss's gradient, in the coordinates of its directions.

    With orthonormal rows y_1..y_k and c_j = (f(at + r y_j) - f(at - r y_j)) / (2 r), a record's estimate is
    `(p / k) sum_j c_j y_j`: unbiased for the gradient of the average of f over the ball of radius r where the rows are
    those of a random rotation. What is released are the k numbers (p / k) c_j; `gradient` multiplies by the rows after
    the release, so that the noise has k coordinates and not p.

    Attributes:
        loss: any loss; its values are all that is asked for.
        at: public point.
        directions: (J k, p), public: J blocks of k orthonormal rows, one block after the other.
        smoothing: r, the radius of the ball, positive; in parameter units.
        clip: C, the largest norm of one unit's estimate from one block.
        blocks: J, how many independent blocks the estimate averages.
    Privacy:
        A unit contributes J vectors of k numbers, each over J; `clip_unit` shortens every block to C / J *by its own
        norm*. So the whole is no longer than C / sqrt(J) whatever the values are, and the l2 sensitivity is
        factor * C / (sqrt(J) N), see `MeanQuery`. In parameters every block moves by at most C / J, hence their sum by
        at most C; the noise has the variance of J blocks with each 1 / J of it, so J changes nothing there. The norm of
        all numbers together is not that of the estimate: it may be sqrt(J) times smaller.
        That rows are orthonormal, and r, are utility only: a clip of the numbers bounds what is released.
    Source:
        Kornowski, Liu, Talwar 2024, Algorithm 3 and section 3 (zero-order estimates). Ours are orthonormal directions,
        the same for all records, in place of independent ones: an estimate is then hardly ever longer than a gradient,
        where the paper's may be p times as long.
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    directions: Float[Array, "rows p"]
    smoothing: Scalar
    clip: Scalar
    blocks: int = field(default=1, metadata={"static": True})

    def radius(self) -> Scalar:
        """C / sqrt(J)."""
        return self.clip / math.sqrt(self.blocks)

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number a direction."""
        del public
        return (int(jnp.shape(self.directions)[0]),)

    def points(self) -> Float[Array, "m p"]:
        """`at + r y` for all rows, then `at - r y`."""
        return around(self.at, self.directions, self.smoothing)

    def of_values(self, private_values: Float[Array, " m"]) -> Array:
        """The differences, times p / k over the number of blocks."""
        rows, size = jnp.shape(self.directions)
        return differences(private_values, self.smoothing) * (size / rows)

    def clip_unit(self, private_vector: Array) -> Array:
        """Every block in its ball."""
        return clip_blocks(private_vector, self.clip, self.blocks)

    def gradient(self, released: Float[Array, " rows"]) -> Float[Array, " *shape"]:
        """The estimate in parameters, from what was released. Post-processing."""
        return along(self.directions, released, jnp.shape(self.at))


def around(at: Array, directions: Float[Array, "rows p"], smoothing: Scalar) -> Float[Array, "m p"]:
    """The points of two-point differences: one side, then the other."""
    centre, steps = jnp.ravel(jnp.asarray(at, float))[None, :], smoothing * jnp.asarray(directions, float)
    return jnp.concatenate([centre + steps, centre - steps])


def differences(private_values: Float[Array, " m"], smoothing: Scalar) -> Array:
    """(f(at + r y) - f(at - r y)) / (2 r) for all directions y."""
    half = private_values.shape[0] // 2
    return (private_values[:half] - private_values[half:]) / (2.0 * smoothing)


def clip_blocks(private_vector: Array, clip: Scalar, blocks: int) -> Array:
    """One unit's blocks, each of them shortened to clip / J by its own norm."""
    if blocks == 1:
        return clip_to_ball(private_vector, clip)
    private_parts = jnp.reshape(private_vector, (blocks, -1))
    private_clipped = jax.vmap(lambda private_part: clip_to_ball(private_part, clip / blocks))(private_parts)
    return jnp.reshape(private_clipped, private_vector.shape)


def along(directions: Float[Array, "rows p"], released: Array, shape: tuple[int, ...]) -> Array:
    """`sum_j released_j y_j`, shaped like the parameters."""
    return jnp.reshape(jnp.asarray(directions, float).T @ released, shape)
