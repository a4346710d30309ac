"""How much each vertex of the l1 ball promises, for a private choice among them."""

import abc
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array, Bool, Float, jax, jnp
from privopt.ledger.events import EveryUnit, Sampling
from privopt.problems.losses import GLMLoss, Loss, Poisson
from privopt.problems.projections import scale_of
from privopt.problems.vertices import ListedVertices, Vertices, longest, reach
from privopt.public import Public
from privopt.queries.base import (
    Clipped,
    FunctionOfMean,
    Number,
    RecordSum,
    RowForm,
    Scalar,
    StatisticOfHeld,
    query,
    shrunk_radius,
    static,
)
from privopt.queries.slopes import (
    GradientSum,
    gradient_form,
    maybe_balanced,
    record_gradient,
    slope_form,
    two_slopes,
)


class ClippedToCube(Clipped):
    """A mean within the l_inf ball of radius `clip`, whose `finish` is 1-Lipschitz from there to the range."""

    norm: ClassVar[str] = "range"
    radius_norm: ClassVar[str] = "linf"

    def clip_unit(self, private_vector: Array) -> Array:
        """Scale one unit's vector into the l_inf ball."""
        return clip_to_cube(private_vector, self.clip)


@query
class VertexScores(ClippedToCube, GradientSum):
    """Half the decrease that each of the 2 p vertices of the unit l1 ball promises: (-g / 2, g / 2).

    g is the mean over units of `grad f(at; unit)`, each scaled into the l_inf ball of radius `clip`, plus `offset`.
    Score j < p belongs to the vertex +e_j, score p + j to -e_j; the largest score is the steepest descent. The radius
    of the ball would multiply the scores and their sensitivity alike, so it is left out.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point, (d,) or (d, K); flat for a user-written loss.
        clip: C, the largest entry of one unit's gradient; infinite only when privacy is switched off.
        offset: public gradient of a penalty at the point, shaped like it.
    Privacy:
        Sensitivity in the *range* (largest minus smallest entry of the change of the scores), which is what the
        exponential mechanism asks for. Let v be the change of the mean gradient. Each unit's gradient has entries of
        size at most C, so |v|_inf <= factor * C / N. The offset is public and cancels, so the scores change by
        (-v / 2, v / 2): its entries come in opposite pairs, so its largest one is max_j |v_j| / 2 and its smallest
        one the negative of that, and its range is exactly |v|_inf. Hence `finish` is 1-Lipschitz from the l_inf norm to
        the range, and the sensitivity is factor * C / N. Scaling by 1 / 2 is exact in floating point and keeps the
        scores opposite; adding the offset o rounds each of the two means by at most 2^-53 (|o|_inf + C), so
        2^-52 (|o|_inf + C) is added, doubled for the rounding of this formula itself.
    Source:
        Talwar, Thakurta, Zhang 2015 (private Frank-Wolfe); Dong, Durfee, Rogers 2020 (bounded range).
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    clip: Scalar
    offset: Float[Array, " *shape"]

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor * clip / N, and what adding the offset may round."""
        largest = jnp.max(jnp.abs(jnp.asarray(self.offset, float)), initial=0.0)
        return super().sensitivity(public, sampling) + 2.0**-51 * (largest + self.clip)

    def shape(self, public: Public) -> tuple[int, ...]:
        """Two scores a parameter."""
        del public
        return (2 * jnp.size(self.at),)

    def finish(self, private_mean: Array) -> Array:
        """The scores of the vertices +e_1, ..., +e_p, -e_1, ..., -e_p."""
        private_half = 0.5 * jnp.ravel(private_mean + self.offset)
        return jnp.concatenate([-private_half, private_half])

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: slope times row, clipped by the row's largest entry."""
        return gradient_form(self.loss, self.at, self.clip, public, norm="linf")


def clip_to_cube(private_vector: Float[Array, " *shape"], radius: Scalar) -> Float[Array, " *shape"]:
    """Scale a contribution into the l_inf ball of `radius`; send anything not finite to zero.

    Args:
        private_vector: one unit's contribution, in the units of the query.
        radius: the largest entry allowed, same units, at least 0; infinite leaves finite vectors alone. Public.
    Privacy:
        Every entry is at most `radius` in size: the vector is divided by its largest entry (in two steps, see
        `scale_of`), then multiplied by a number 1e-9 inside the radius. Scaling, unlike clipping entry by entry, keeps
        the gradient of a generalised-linear loss a multiple of the row, which is what the fast path computes.
    Raises:
        Nothing: the input is private.
    """
    private_finite = jnp.all(jnp.isfinite(private_vector))
    private_safe = jnp.where(private_finite, private_vector, jnp.zeros_like(private_vector))
    private_scale = scale_of(private_safe)
    private_unit = private_safe / private_scale
    private_peak = jnp.max(jnp.abs(private_unit), initial=0.0)
    aim = shrunk_radius(radius)
    private_inside = (private_peak * private_scale <= aim) & (aim > 0)
    private_factor = aim / jnp.where(private_peak > 0, private_peak, 1.0)
    return jnp.where(
        private_inside,
        private_safe,
        private_unit * jnp.where(jnp.isfinite(private_factor), private_factor, 0.0),
    )


# ------------------------------------------------------------------------------------------------------------
# How steeply the loss falls towards each vertex of a polytope: the items of streams that draw vertices.


@query
class SlopesAlong(ClippedToCube, RecordSum):
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

    loss: Loss = static()
    at: Float[Array, " *shape"]
    vertices: Vertices = static()
    clip: Scalar
    offset: Float[Array, " *shape"]
    offset_bound: float = static()

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor * clip / N, and what offset and products may round."""
        terms = self.vertices.dimension if isinstance(self.vertices, ListedVertices) else 1
        rounding = 8.0 * (terms + 3) * 2.0**-53 * largest_entry(self.vertices, self.clip, self.offset_bound)
        return super().sensitivity(public, sampling) + rounding

    def shape(self, public: Public) -> tuple[int, ...]:
        """A slope a vertex."""
        del public
        return (self.vertices.count,)

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
        return maybe_balanced(self, private_features, private_target, "linf")

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: slope times row, clipped by the row's largest entry."""
        return gradient_form(self.loss, self.at, self.clip, public, balanced=self.balanced, norm="linf")


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
            private_at, private_anchor = two_slopes(loss, private_predictions, private_targets)
            return private_at - private_anchor

        points = (self.at, self.anchor)
        return slope_form(loss, public, points, coefficients, self.clip, norm="linf", kind="difference")


def largest_entry(vertices: Vertices, clip: Scalar, offset_bound: float) -> Scalar:
    """The largest entry of a value of `SlopesAlong`: (S / 2 D) (clip + offset_bound), S the largest l1 norm."""
    share = max(longest(vertices) / (2.0 * reach(vertices)), 0.5)  # at least, but for the rounding of `reach`
    return share * (clip + offset_bound)


# ---- How much each vertex of a polytope promises, for a private choice among them --------------------------


@query
class PolytopeScores(ClippedToCube, RecordSum):
    """Half the decrease that each vertex v_i of a polytope promises: -<v_i, g> / 2, up to a constant for all of them.

    g is the mean over units of `grad f(at; unit)` plus `offset`. What a unit says about the vertices, (<v_i, grad>)_i,
    is first centred between its smallest and its largest entry, since a choice does not change where all scores move
    alike, and then scaled into the l_inf ball of radius `clip`, which so bounds half of its range. The largest score is
    the steepest descent.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point, (d,) or (d, K); flat for a user-written loss.
        vertices: (m, p), public; p entries of the point a row.
        clip: C, half of the largest range of one unit's <v_i, grad> over the vertices; infinite only when privacy is
            switched off.
        offset: public gradient of a penalty at the point, shaped like it.
    Privacy:
        Sensitivity in the *range* of the change of the scores, which is what the exponential mechanism asks for. A
        unit's centred and scaled vector has entries of size at most C, whatever the rounding of the products before:
        the scaling comes last. So the mean moves by v with |v|_inf <= factor * C / N, and the scores -mean / 2 by
        -v / 2, whose range is at most |v|_inf. The offset is public: the same numbers <v_i, offset> are added for both
        data sets, which rounds each of the two means by at most 2^-53 (max_i |<v_i, offset>| + C); that is added four
        times, for both of them and for the rounding of this formula. The half is exact.
    Source:
        Gonzalez, Guzman, Paquette 2024 (polytopes by their vertices); Talwar, Thakurta, Zhang 2015 (the scores). The
        centring is ours: it halves the clip of one-sided scores.
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    vertices: Float[Array, "m p"]
    clip: Scalar
    offset: Float[Array, " *shape"]

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor * clip / N, and what adding the offset may round."""
        largest = jnp.max(jnp.abs(self._along(self.offset)), initial=0.0)
        return super().sensitivity(public, sampling) + 2.0**-51 * (largest + self.clip)

    def shape(self, public: Public) -> tuple[int, ...]:
        """A score a vertex."""
        del public
        return (int(jnp.shape(self.vertices)[0]),)

    def record_contribution(
        self, private_features: Float[Array, " d"], private_target: Scalar
    ) -> Float[Array, " m"]:
        """The gradient of one record's loss along every vertex."""
        return self._along(record_gradient(self.loss, self.at, private_features, private_target))

    def clip_unit(self, private_vector: Float[Array, " m"]) -> Float[Array, " m"]:
        """Centre one unit's vector between its ends, and scale it into the l_inf ball."""
        private_middle = 0.5 * jnp.max(private_vector) + 0.5 * jnp.min(private_vector)  # no overflow
        return clip_to_cube(private_vector - private_middle, self.clip)

    def finish(self, private_mean: Float[Array, " m"]) -> Float[Array, " m"]:
        """The scores of the vertices."""
        return -0.5 * (private_mean + self._along(self.offset))

    def _along(self, vector: Float[Array, " *shape"]) -> Float[Array, " m"]:
        return jnp.asarray(self.vertices, float) @ jnp.ravel(jnp.asarray(vector, float))


# ---- The scores of some of the vertices among those of all, for a private choice among them ----------------


@query
class PartScores(FunctionOfMean):
    """Scores at some places of a held mean of scores, in order.

    A product of sets has the vertices of each of its parts apart, and one mean gradient serves the choices of all.

    Attributes:
        mean: held scores whose norm is the range, of `VertexScores`.
        places: (first, end) of each run of scores that are taken. Public.
    Privacy:
        Leaving out entries can only shrink the range (largest minus smallest entry) of the vector by which one unit
        moves the scores, so the sensitivity is that of the held scores, whose rounding it includes; taking entries
        rounds nothing.
    """

    norm: ClassVar[str] = "range"

    mean: Any = static()
    places: tuple[tuple[int, int], ...] = static()

    def value(self, private_mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """The scores at the places."""
        return np.concatenate([private_mean[first:end] for first, end in self.places])

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """That of the held scores.

        Raises:
            TypeError: what is held does not bound the range.
        """
        del public, sampling
        if self.mean.norm != self.norm:
            raise TypeError(
                f"PartScores takes scores whose range is bounded, and {self.mean.query.name} is held, bounded in the "
                f"{self.mean.norm} norm: hold VertexScores."
            )
        return self.mean.sensitivity

    def shape(self, public: Public) -> tuple[int, ...]:
        """One score a vertex."""
        del public
        return (sum(end - first for first, end in self.places),)


# ---- How many held points lie within a radius of a public centre -------------------------------------------


@query
class HeldCount(Number, StatisticOfHeld):
    """The number of points with |y_j - v0| <= radius, as a float.

    Attributes:
        held: the points.
        centre: v0, (k,), public or released.
        radius: public or released.
    Privacy:
        Whether a point counts is a function of that point: replacing, adding or removing one moves the count by at
        most 1. It is a whole number below 2^53, so it is exact. Entering moves it by 1 too, which is not half of that:
        on a sample it answers tests only.
    """

    on_samples: ClassVar[frozenset[str]] = frozenset({"answer"})

    held: Any = static()
    centre: Float[Array, " k"]
    radius: Scalar

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """1, under both relations and for groups."""
        del public, sampling
        return 1.0

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        private_moved = private_vectors - self.centre[None, :]
        private_distances = jnp.sqrt(jnp.sum(private_moved * private_moved, axis=1))
        private_near = (private_distances <= self.radius) & private_present
        return jnp.sum(private_near.astype(jnp.float64))


# ---- How well several released models do on held-out data: a query for a charged selection -----------------


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
