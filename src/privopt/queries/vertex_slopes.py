"""How steeply the loss falls towards each vertex of a polytope: the items of streams that draw vertices."""

from collections.abc import Callable
from dataclasses import field
from typing import ClassVar, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.losses import GLMLoss, Loss
from privopt.problems.vertex_lengths import longest, reach
from privopt.problems.vertices import ListedVertices, Vertices
from privopt.public import Public
from privopt.queries.base import KernelCall, RecordSum, RowForm, Scalar, query, static
from privopt.queries.gradient import balance, glm_slopes, record_gradient
from privopt.queries.vertex_scores import clip_to_cube


@query
class SlopesAlong(RecordSum):
    """`<v_i, g> / (2 D)` for every vertex v_i, g a mean of clipped vectors plus a public offset; smaller is better.

    D is `reach(vertices)`. For the l1 ball of radius R, D = R, and these are half of the slopes towards the vertices of
    the unit ball, (g / 2, -g / 2): the negative of what `VertexScores` holds, whose largest is best.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point, (d,) or (d, K); flat for a user-written loss.
        vertices: of the polytope.
        clip: C, the largest entry of one unit's vector; infinite only when privacy is switched off.
        offset: public vector, added to the mean after its entries were brought within `offset_bound`.
        offset_bound: largest entry of the offset, so that `largest_entry` is known before there is one.
    Privacy:
        Sensitivity in the *range* (largest minus smallest entry of the change), which is what a draw from a softmax
        asks for. Let u be the change of the mean of the clipped vectors, |u|_inf <= factor * C / N. The offset cancels.
        For every c, <v_i, u> - <v_k, u> = <v_i - c, u> - <v_k - c, u> <= 2 max_j |v_j - c|_1 |u|_inf, and `reach` is
        such a maximum or, for simplices and l1 balls, half the largest distance: there, of two vertices +-R e_a and
        +-R e_b, the difference is at most 2 R |u|_inf. Divided by 2 D the range is at most |u|_inf: `finish` is
        1-Lipschitz from the l_inf norm to the range, and the sensitivity is factor * C / N.
        Rounding, G = C + `offset_bound` the largest entry of g, u = 2^-53: adding the offset is off by at most u G, a
        sum of q products by q u times the sum of their sizes, the last division by u. An entry is thus off by at most
        (q + 3) u (S / 2 D) G, S = max_i |v_i|_1, and a range of two data sets by four times that; it is added twice, so
        that this formula's own rounding and the second-order terms are covered. q = 1 for simplices and l1 balls.
    """

    norm: ClassVar[str] = "range"
    radius_norm: ClassVar[str] = "linf"

    loss: Loss = static()
    at: Float[Array, " *shape"]
    vertices: Vertices = static()
    clip: Scalar
    offset: Float[Array, " *shape"]
    offset_bound: float = static()

    def radius(self) -> Scalar:
        """The clip, in the l_inf norm."""
        return self.clip

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor * clip / N, and what offset and products may round."""
        terms = self.vertices.dimension if isinstance(self.vertices, ListedVertices) else 1
        rounding = 8.0 * (terms + 3) * 2.0**-53 * largest_entry(self.vertices, self.clip, self.offset_bound)
        return super().sensitivity(public, sampling) + rounding

    def shape(self, public: Public) -> tuple[int, ...]:
        """A slope a vertex."""
        del public
        return (self.vertices.count,)

    def clip_unit(self, private_vector: Array) -> Array:
        """Scale one unit's vector into the l_inf ball."""
        return clip_to_cube(private_vector, self.clip)

    def finish(self, private_mean: Array) -> Array:
        """The slopes along the vertices."""
        offset = jnp.clip(jnp.asarray(self.offset), -self.offset_bound, self.offset_bound)
        return self.vertices.along(jnp.ravel(private_mean + offset)) / (2.0 * reach(self.vertices))


@query
class VertexSlopes(SlopesAlong):
    """The slopes of the mean loss at a point: `grad f(at; unit)` is averaged.

    Attributes:
        offset: public gradient of a penalty at the point, shaped like it.
        balanced: shorten a record's gradient by a factor that does not depend on its target, see `ClippedGradient`;
            here the longest gradient is that of the largest entry. For losses that have one (`balances`).
    Privacy:
        See `SlopesAlong`: each unit's gradient is scaled into the l_inf ball of radius `clip`, balanced or not.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 5 (the gradients); Dong, Durfee, Rogers 2020 (range).
    """

    balanced: bool = field(default=False, metadata={"static": True})

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradient of one record's loss, shortened if `balanced`."""
        private_gradient = record_gradient(self.loss, self.at, private_features, private_target)
        if not (self.balanced and isinstance(self.loss, GLMLoss)):
            return private_gradient
        points = jnp.reshape(self.at, (private_features.shape[0], self.loss.outputs))
        private_largest = jnp.max(jnp.abs(private_features))
        private_predictions = (private_features @ points)[None, :]
        return private_gradient * balance(self.loss, private_predictions, private_largest[None], self.clip)[0]

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: slope times row, clipped by the row's largest entry."""
        loss = self.loss
        if not isinstance(loss, GLMLoss):
            return None
        if self.balanced and not loss.balances:
            raise ValueError(f"the {loss.name} loss has no balanced clip: use balanced=False.")

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            private_slopes = glm_slopes(loss, private_predictions, private_targets)
            if not self.balanced:
                return private_slopes
            return private_slopes * balance(loss, private_predictions, private_norms, self.clip)[:, None]

        balanced = self.clip if self.balanced else float("inf")
        return _row_form(self, loss, public, [self.at], coefficients, "gradient", balanced)


@query
class VertexSlopeChanges(SlopesAlong):
    """The change of those slopes between two points: `grad f(at; unit) - grad f(anchor; unit)` is averaged.

    Attributes:
        anchor: public point, shaped like `at`.
        offset: public change of the gradient of a penalty.
    Privacy:
        See `SlopesAlong`: each unit's difference is scaled into the l_inf ball of radius `clip`, whatever the points.
    Source:
        Asi, Feldman, Koren, Talwar 2021, Algorithm 3 (the difference); its clip is ours.
    """

    anchor: Float[Array, " *shape"]

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The difference of one record's gradients."""
        private_at = record_gradient(self.loss, self.at, private_features, private_target)
        return private_at - record_gradient(self.loss, self.anchor, private_features, private_target)

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: difference of slopes times row."""
        loss = self.loss
        if not isinstance(loss, GLMLoss):
            return None

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            del private_norms
            private_at = glm_slopes(loss, private_predictions[:, : loss.outputs], private_targets)
            return private_at - glm_slopes(loss, private_predictions[:, loss.outputs :], private_targets)

        return _row_form(self, loss, public, [self.at, self.anchor], coefficients, "difference")


def largest_entry(vertices: Vertices, clip: Scalar, offset_bound: float) -> Scalar:
    """The largest entry of a value of `SlopesAlong`: (S / 2 D) (clip + offset_bound), S the largest l1 norm."""
    share = max(longest(vertices) / (2.0 * reach(vertices)), 0.5)  # at least, but for the rounding of `reach`
    return share * (clip + offset_bound)


def _row_form(
    slopes: SlopesAlong,
    loss: GLMLoss,
    public: Public,
    points: list[Array],
    coefficients: Callable[[Array, Array, Array], Array],
    kind: Literal["gradient", "difference"],
    balanced: Scalar = float("inf"),
) -> RowForm:
    """The generalised-linear form of either query."""
    width = (public.d, loss.outputs)
    kernel = None
    if loss.kernel_code is not None:
        kernel = KernelCall(
            kind=kind, code=int(loss.kernel_code), parameters=loss.kernel_parameters, balanced=balanced
        )
    return RowForm(
        points=jnp.concatenate([jnp.reshape(point, width) for point in points], axis=1),
        coefficients=coefficients,
        outputs=loss.outputs,
        shape=tuple(jnp.shape(points[0])),
        radius=slopes.clip,
        norm="linf",
        kernel=kernel,
    )
