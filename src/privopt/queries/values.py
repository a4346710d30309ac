"""Means of contributions that know a record's loss by its values only, at points that are public."""

import abc
from typing import final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.black_box import BlackBox
from privopt.problems.losses import GLMLoss, Loss
from privopt.queries.base import Query, RecordSum, Scalar


class ValueSum(RecordSum):
    """A mean query whose contribution is a function of one record's loss values at public points.

    The class declares the field `loss: Loss = static()`. A loss that is a callable on the host is called there, record
    by record; any other one is traced.

    Privacy:
        The points follow from the query's fields, which are public; so a record's vector is a function of that record,
        whatever its loss does, and `clip_unit` bounds it, see `MeanQuery`. What a black box must keep to is said in
        `BlackBox`.
    """

    loss: Loss

    @abc.abstractmethod
    def points(self) -> Float[Array, "m p"]:
        """The public points at which the loss is asked for, flat parameters each."""

    @abc.abstractmethod
    def of_values(self, private_values: Float[Array, " m"]) -> Array:
        """What one record contributes, before averaging within its unit and clipping. Pure JAX.

        Args:
            private_values: its loss at the points; NaN where a black box gave none.
        """

    @final
    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """`of_values` of the record's values."""
        return self.of_values(values_at(self.loss, self.points(), private_features, private_target))

    @property
    def on_host(self) -> bool:
        """Whether the loss is called on the host."""
        return isinstance(self.loss, BlackBox) and self.loss.host


def called_on_host(query: Query) -> bool:
    """Whether a query calls a loss on the host."""
    return isinstance(query, ValueSum) and query.on_host


def values_at(
    loss: Loss, points: Float[Array, "m p"], private_features: Float[Array, " d"], private_target: Scalar
) -> Float[Array, " m"]:
    """One record's loss at several flat points, pure JAX.

    Raises:
        TypeError: the loss is called on the host.
    """
    if isinstance(loss, BlackBox):
        return loss.values_at(points, private_features, private_target)
    if not isinstance(loss, GLMLoss):
        return jax.vmap(lambda point: loss.value(point, private_features, private_target))(points)
    count, width = points.shape[0], private_features.shape[0]
    if loss.outputs == 1:
        return of_predictions(loss, points @ private_features, private_target)
    columns = jnp.reshape(points, (count, width, loss.outputs))
    return of_predictions(loss, jnp.einsum("d,mdk->mk", private_features, columns), private_target)


def of_predictions(loss: GLMLoss, private_predictions: Array, private_target: Scalar) -> Float[Array, " m"]:
    """One record's values from its predictions, (m,) or (m, outputs)."""
    private_wide = jnp.full((private_predictions.shape[0],), private_target)
    return loss.value(private_predictions, private_wide)
