"""Gradients of one loss at several points: what queries have in common that ask for all of them in one pass."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.losses import GLMLoss, Loss
from privopt.public import Public
from privopt.queries.base import Scalar, clip_rows_to_ball, clip_to_ball
from privopt.queries.gradient import record_gradient

_GROUP_ENTRIES = 2**19  # of one unit's contributions at the points of a group: a few megabytes


def gradients_at(
    loss: Loss, points: Float[Array, "T ..."], private_features: Float[Array, " d"], private_target: Scalar
) -> Float[Array, "p T"]:
    """The gradients of one record's loss at the points, a column each."""

    def gradient(at: Array) -> Array:
        return jnp.ravel(record_gradient(loss, at, private_features, private_target))

    return jax.vmap(gradient, out_axes=1)(jnp.asarray(points, float))


def clip_each(private_vector: Float[Array, "p T"], clip: Scalar) -> Float[Array, "p T"]:
    """Each gradient in its ball."""
    return jax.vmap(lambda one: clip_to_ball(one, clip), in_axes=1, out_axes=1)(private_vector)


def columns_of(points: Float[Array, "T ..."], loss: GLMLoss, public: Public) -> Float[Array, "d KT"]:
    """The points side by side as a row form has them: those of one output together."""
    count, outputs = int(jnp.shape(points)[0]), loss.outputs
    columns = jnp.reshape(jnp.asarray(points, float), (count, public.d, outputs))
    return jnp.reshape(jnp.transpose(columns, (1, 2, 0)), (public.d, outputs * count))


def slopes_at(
    loss: GLMLoss, count: int, private_predictions: Array, private_targets: Array
) -> Float[Array, "rows T K"]:
    """The slopes of rows at the points, from predictions at `columns_of`."""
    rows, outputs = private_predictions.shape[0], loss.outputs
    private_wide = jnp.broadcast_to(private_targets[:, None], (rows, count))
    private_at = jnp.moveaxis(jnp.reshape(private_predictions, (rows, outputs, count)), 1, 2)
    if outputs == 1:
        return loss.slope(private_at[:, :, 0], private_wide)[:, :, None]
    return loss.slope(private_at, private_wide)


def clipped_slopes(
    private_slopes: Float[Array, "rows T K"], private_norms: Float[Array, " rows"], clip: Scalar
) -> Float[Array, "rows T K"]:
    """The slopes of records whose gradients are each in the ball."""
    rows, count, outputs = private_slopes.shape
    private_flat = jnp.reshape(private_slopes, (rows * count, outputs))
    private_clipped = clip_rows_to_ball(private_flat, jnp.repeat(private_norms, count), clip)
    return jnp.reshape(private_clipped, (rows, count, outputs))


def side_by_side(private_slopes: Float[Array, "rows T K"]) -> Float[Array, "rows KT"]:
    """The slopes as coefficients of a row form, in the order of `columns_of`."""
    return jnp.reshape(jnp.moveaxis(private_slopes, 2, 1), (private_slopes.shape[0], -1))


def points_in_groups(
    points: Float[Array, "T ..."], loss: Loss, public: Public
) -> list[Float[Array, "t ..."]]:
    """The same points in groups: so few that one unit's contributions are held at a time without harm.

    Where there is a generalised-linear form and a unit is a record no contribution is ever held, so all make one.
    """
    whole = jnp.asarray(points, float)
    count = len(whole)
    if isinstance(loss, GLMLoss) and public.unit == "record":
        return [whole]
    step = max(1, _GROUP_ENTRIES * count // (whole.size * public.records_per_unit))
    return [whole[k : k + step] for k in range(0, count, step)]
