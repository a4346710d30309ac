"""Gradients of a weighted mean of the groups' losses: what the player who moves the parameters sees of the data."""

from dataclasses import field
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.grouped_loss import GroupedLoss
from privopt.public import Public
from privopt.queries.base import Norm, RecordSum, RowForm, Scalar, query, shrunk_radius, static
from privopt.queries.vertex_scores import clip_to_cube


@query
class GroupedGradient(RecordSum):
    """Mean over units of `weights[g] * grad f(at; record)`, g the record's group, each clipped to the l2 norm `clip`.

    Attributes:
        loss: of records in groups.
        at: public point, (d,).
        weights: (groups,) at least 0, public or released: y_g over the share of the group.
        clip: C; infinite only when privacy is switched off (epsilon = inf).
        balanced: shorten a record's gradient by a factor that does not depend on its label, see `ClippedGradient`. A
            rare group has long weighted gradients; clipped one by one, those of its surprising records would be
            shortened most, and the group would lose by its own weight.
    Privacy:
        Whatever the weights and the record's group, label and row: the contribution is clipped to C, zero where it is
        not finite or the label or group unknown, so the l2 sensitivity is factor * C / N, see `MeanQuery`. A balanced
        gradient is clipped all the same.
    Source:
        Sagawa, Koh, Hashimoto, Liang 2020 (the weighted gradient); balanced: Kuensch, Stefanski, Carroll 1989.
    """

    loss: GroupedLoss = static()
    at: Float[Array, " d"]
    weights: Float[Array, " groups"]
    clip: Scalar
    balanced: bool = field(default=True, metadata={"static": True})

    def radius(self) -> Scalar:
        """The clip."""
        return self.clip

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.at))

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The weighted gradient of one record's loss, shortened if `balanced`."""
        private_length = jnp.sqrt(jnp.sum(private_features * private_features))
        return private_features * self._slope(private_features, private_target, private_length)

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: slope times row."""
        return _row_form(self, public, "l2")

    def _slope(self, private_features: Array, private_target: Scalar, private_length: Scalar) -> Array:
        private_prediction = private_features @ jnp.asarray(self.at)
        return _slopes(
            self,
            jnp.reshape(private_prediction, (1,)),
            jnp.reshape(private_target, (1,)),
            jnp.reshape(private_length, (1,)),
        )[0]


@query
class GroupedVertexScores(RecordSum):
    """Half the decrease that each vertex +-e_j of the unit l1 ball of the first columns promises: (-g / 2, g / 2).

    g is the mean over units of `weights[record's group] * grad f(at; record)`, each scaled into the l_inf ball of
    radius `clip`, in its first `columns` entries. See `VertexScores` for the order of the scores.

    Attributes:
        loss, at, weights, balanced: see `GroupedGradient`.
        clip: C, the largest entry of one unit's gradient.
        columns: how many parameters the ball has; the rest, such as an intercept, have no vertex.
    Privacy:
        As for `VertexScores` without an offset: the mean gradient moves by at most factor * C / N in the l_inf norm,
        leaving entries out moves it by no more, and (-v / 2, v / 2) has the range |v|_inf. The halves are exact.
    Source:
        Talwar, Thakurta, Zhang 2015 (private Frank-Wolfe); Dong, Durfee, Rogers 2020 (bounded range).
    """

    norm: ClassVar[str] = "range"
    radius_norm: ClassVar[str] = "linf"

    loss: GroupedLoss = static()
    at: Float[Array, " d"]
    weights: Float[Array, " groups"]
    clip: Scalar
    columns: int = static()
    balanced: bool = field(default=True, metadata={"static": True})

    def radius(self) -> Scalar:
        """The clip, in the l_inf norm."""
        return self.clip

    def shape(self, public: Public) -> tuple[int, ...]:
        """Two scores a parameter of the ball."""
        del public
        return (2 * self.columns,)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The weighted gradient of one record's loss, shortened if `balanced`."""
        private_prediction = private_features @ jnp.asarray(self.at)
        private_peak = jnp.max(jnp.abs(private_features), initial=0.0)
        private_slopes = _slopes(
            self,
            jnp.reshape(private_prediction, (1,)),
            jnp.reshape(private_target, (1,)),
            jnp.reshape(private_peak, (1,)),
        )
        return private_features * private_slopes[0]

    def clip_unit(self, private_vector: Array) -> Array:
        """Scale one unit's gradient into the l_inf ball."""
        return clip_to_cube(private_vector, self.clip)

    def finish(self, private_mean: Array) -> Array:
        """The scores of the vertices +e_1, ..., +e_k, -e_1, ..., -e_k."""
        private_half = 0.5 * private_mean[: self.columns]
        return jnp.concatenate([-private_half, private_half])

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: slope times row, clipped by the row's largest entry."""
        return _row_form(self, public, "linf")


def _row_form(asked: GroupedGradient | GroupedVertexScores, public: Public, norm: Norm) -> RowForm:
    """Slope times row; the norms that the engine hands over are those of the rows in `norm`."""

    def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
        return _slopes(asked, private_predictions[:, 0], private_targets, private_norms)[:, None]

    return RowForm(
        points=jnp.reshape(jnp.asarray(asked.at), (public.d, 1)),
        coefficients=coefficients,
        outputs=1,
        shape=(public.d,),
        radius=asked.clip,
        norm=norm,
    )


def _slopes(
    asked: GroupedGradient | GroupedVertexScores,
    private_predictions: Float[Array, " rows"],
    private_targets: Float[Array, " rows"],
    private_norms: Float[Array, " rows"],
) -> Float[Array, " rows"]:
    """The weighted slopes; balanced ones times `min(1, C / longest)`, longest over both labels."""
    loss = asked.loss
    padded = jnp.concatenate([jnp.zeros(1), jnp.asarray(asked.weights, jnp.float64)])
    private_weights = padded[loss.group_of(private_targets)]
    private_slopes = private_weights * loss.slope(private_predictions, private_targets)
    if not (asked.balanced and loss.balances):
        return private_slopes
    private_longest = private_weights * loss.steepest_slope(private_predictions) * private_norms
    aim = shrunk_radius(asked.clip)
    private_over = private_longest > aim
    return private_slopes * jnp.where(private_over, aim / jnp.where(private_over, private_longest, 1.0), 1.0)
