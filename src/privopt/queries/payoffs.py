"""The mean payoffs of a bilinear game, and each player's gradient as a function of them."""

from dataclasses import field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array, Float, jax, jnp
from privopt.ledger.events import EveryUnit, Sampling
from privopt.problems.saddle import BilinearGame, Game, Who
from privopt.public import Public
from privopt.queries.base import Clipped, FunctionOfMean, RecordSum, Scalar, query, shrunk_radius, static

_UNIT_ROUNDOFF = 2.0**-53


@query
class PayoffMeans(RecordSum):
    """The mean over units of `u v^T`, and of p and q: the payoff matrix of a bilinear game, row by row, then offsets.

    With offsets all three are halved, as in the payoff. Every entry of u, v, p and q is moved into the game's bounds,
    so that no contribution is clipped.

    Attributes:
        game: sizes and bounds.
    Privacy:
        With every entry at most b, |u v^T|_F = |u| |v| <= b^2 sqrt(rows columns), and the offsets add b^2 (rows +
        columns) to the squared norm: that is `radius`, to which the engine holds every unit all the same.
        To hold it costs nothing; each player's gradient argues from the entries, see `PayoffGradient`.
    """

    game: BilinearGame = static()

    def radius(self) -> Scalar:
        """The l2 norm of the largest contribution, a margin for the engine's clip included."""
        return self.game.payoff_radius * (1.0 + 1e-8)

    def shape(self, public: Public) -> tuple[int, ...]:
        """Rows times columns, and both players' offsets."""
        del public
        return (payoff_size(self.game),)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """One record's payoffs."""
        del private_target
        private_u, private_v, private_p, private_q = self.game.parts(private_features)
        private_matrix = jnp.ravel(jnp.outer(private_u, private_v))
        if not self.game.offsets:
            return private_matrix
        return 0.5 * jnp.concatenate([private_matrix, private_p, private_q])


def payoff_size(game: BilinearGame) -> int:
    """How many numbers `PayoffMeans` has."""
    return game.rows * game.columns + (game.rows + game.columns if game.offsets else 0)


def unpacked(
    game: BilinearGame, values: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The matrix (rows, columns) and the offsets of x and y; zero where there are none."""
    flat = np.asarray(values, np.float64)
    cells = game.rows * game.columns
    matrix = flat[:cells].reshape(game.rows, game.columns)
    if not game.offsets:
        return matrix, np.zeros(game.rows), np.zeros(game.columns)
    return matrix, flat[cells : cells + game.rows], flat[cells + game.rows :]


def held_game(mean: Any, name: str) -> BilinearGame:
    """The game whose payoffs are held, for a query that rests on how they are made.

    Args:
        mean: a handle.
        name: of the query.
    Raises:
        TypeError: something else is held.
    """
    if type(mean.query) is not PayoffMeans:
        raise TypeError(
            f"{name} is a function of PayoffMeans, and {mean.query.name} is held: its sensitivity rests on how payoffs "
            "are made."
        )
    if type(mean.query.game) is not BilinearGame:
        raise TypeError(
            f"{name} rests on the half-range of a BilinearGame, which no clip enforces, and "
            f"{type(mean.query.game).__name__} may state another: ask for PlayerGradient, which clips."
        )
    return mean.query.game


@query
class _OfPlay(FunctionOfMean):
    """One player's gradient of a bilinear game, from its held mean payoffs."""

    mean: Any = static()
    who: Who = static()
    play: Float[Array, " vertices"]

    @property
    def game(self) -> BilinearGame:
        """The held game."""
        return held_game(self.mean, self.name)

    def shape(self, public: Public) -> tuple[int, ...]:
        """One entry a pure strategy."""
        del public
        return (self.game.rows if self.who == "x" else self.game.columns,)

    def gradient(self, private_mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """`A y + p`, or `q - A^T x`."""
        private_matrix, private_p, private_q = unpacked(self.game, private_mean)
        play = np.asarray(self.play, np.float64)
        if self.who == "x":
            return private_matrix @ play + private_p
        return private_q - private_matrix.T @ play


@query
class PayoffGradient(_OfPlay):
    """One player's gradient of a bilinear game, from its held mean payoffs: `A y + p`, or `q - A^T x`.

    Attributes:
        mean: from `hold_mean(PayoffMeans(...))`.
        who: whose gradient, "x" of f or "y" of -f.
        play: the other player's strategy, weights of sum 1.
        negated: whether the entries are turned, so that the best pure strategy has the largest.
    Privacy:
        Exactly, the value is, up to the sign, the mean over units of u (v . play) + p (or q - v (u . play)), halved
        with offsets. With weights of sum 1 the range of such a vector is at most 2 L, L the game's `half_range`:
        entries of u differ by at most high - low and |v . play| <= b. A user's is an average of such vectors with a
        weight of at most 1. So one unit moves the value by a vector of range at most factor 2 L / n.
        Rounding: an entry of the held mean is off by at most r = `mean.rounding` times the largest entry a, on both
        data sets together, so a convex combination and an offset by 2 r a, a range by 4 r a. The product with the play
        rounds an entry by at most (d + 2) 2^-53 a, d the length of the play, in each data set: 8 (d + 2) 2^-53 a
        for the range of the difference covers it. Weights whose sum is rounded scale all this by 1 + d 2^-52.
    """

    norm: ClassVar[str] = "range"

    negated: bool = field(default=False, metadata={"static": True})

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor 2 L / n, and rounding."""
        del public, sampling
        game, units = self.game, self.mean.public
        length = jnp.shape(self.play)[0]
        largest = max(game.largest_entry**2, game.largest_entry)
        exact = units.relation.factor * 2.0 * game.half_range / units.n
        rounding = largest * (4.0 * self.mean.rounding + 8.0 * (length + 2) * _UNIT_ROUNDOFF)
        total = float(np.sum(np.abs(np.asarray(self.play))))
        return (exact + rounding) * max(1.0, total) * (1.0 + length * 2.0**-51)

    def value(self, private_mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """See the class."""
        private_gradient = self.gradient(private_mean)
        return -private_gradient if self.negated else private_gradient


# ------------------------------------------------------------------------------------------------------------
# How good several pairs of strategies are: the payoffs of a record for each, and their duality gaps as a
# function.


@query
class CandidatePayoffs(RecordSum):
    """The mean over units of the payoffs of candidate strategies against answers to them, a row a candidate.

    Row i holds f(x_i, y) for the answers y of the other player to x_i, then f(x, y_i) for the answers x to y_i. Where
    no answers are given they are all vertices, with f taken as linear in that player's strategy: by its gradient at
    (x_i, y_i), which is exact if it is.

    Attributes:
        game: the payoff of a record, and both players' sets.
        x, y: public candidates in coordinates, a pair a row.
        x_answers: public answers to y_i, (candidates, answers, p); with 0 answers, the vertices.
        y_answers: likewise to x_i.
        payoff_clip: B, the largest half-range of one unit's payoffs.
    Privacy:
        Sensitivity in the range. What a record adds to all of its payoffs alike changes no gap, so that the midrange of
        a unit's is subtracted, and each entry clipped to [-B, B], see `centred_clip`: the mean moves by a vector of
        range at most factor 2 B / N. Wrong linearity, or too small a B, costs utility alone.
    """

    norm: ClassVar[str] = "range"

    game: Game = static()
    x: Float[Array, "candidates p"]
    y: Float[Array, "candidates q"]
    x_answers: Float[Array, "candidates answers p"]
    y_answers: Float[Array, "candidates answers q"]
    payoff_clip: Scalar

    def radius(self) -> Scalar:
        """2 B, in range."""
        return 2.0 * jnp.asarray(self.payoff_clip, float)

    @property
    def answers_to_x(self) -> int:
        """How many payoffs of a row are those against answers to x_i; they come first."""
        return jnp.shape(self.y_answers)[1] or self.game.y.vertices.count

    def shape(self, public: Public) -> tuple[int, ...]:
        """A row a candidate."""
        del public
        against_y = jnp.shape(self.x_answers)[1] or self.game.x.vertices.count
        return jnp.shape(self.x)[0], self.answers_to_x + against_y

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """One record's payoffs."""
        game = self.game

        def payoff(x: Array, y: Array) -> Array:
            return game.payoff(x, y, private_features, private_target)

        def row(x: Array, y: Array, to_y: Array, to_x: Array) -> Array:
            private_here = payoff(x, y)
            if len(to_x):
                private_first = jax.vmap(lambda answer: payoff(x, answer))(to_x)
            else:  # the slope of y is that of -f
                private_slope = game.slope("y", x, y, private_features, private_target)
                private_first = private_here - (game.y.vertices.along(private_slope) - private_slope @ y)
            if len(to_y):
                private_last = jax.vmap(lambda answer: payoff(answer, y))(to_y)
            else:
                private_slope = game.slope("x", x, y, private_features, private_target)
                private_last = private_here + (game.x.vertices.along(private_slope) - private_slope @ x)
            return jnp.concatenate([private_first, private_last])

        given = (self.x, self.y, self.x_answers, self.y_answers)
        return jax.vmap(row)(*(jnp.asarray(one) for one in given))

    def clip_unit(self, private_vector: Array) -> Array:
        """All payoffs of one unit, centred and clipped."""
        return centred_clip(private_vector, self.payoff_clip)


@query
class CandidateGaps(FunctionOfMean):
    """Minus the duality gap of every candidate, from held payoffs: scores of a choice, larger is better.

    Attributes:
        mean: from `hold_mean(CandidatePayoffs(...))`.
    Privacy:
        Let one unit move the held payoffs by entries within [s, s + R], R the stated range, rounding of the sum
        included. The largest of some entries moves by a number in [s, s + R], and so does the least of some; their
        difference by one in [-R, R], whatever s. So the gaps move by a vector of range at most 2 R: exactly
        factor 4 B / n, that is 8 B / n under replace-one and 4 B / n under add-or-remove-one.
        Rounding: entries are at most B, so a difference is at most 2 B and rounds by at most 2^-53 2 B, in each data
        set: 8 B 2^-53 in the range of their difference.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 4 (losses in [-B, B], sensitivity 16 B / n for a quarter of n).
    """

    norm: ClassVar[str] = "range"

    mean: Any = static()

    @property
    def payoffs(self) -> CandidatePayoffs:
        """What is held.

        Raises:
            TypeError: it is something else.
        """
        if type(self.mean.query) is not CandidatePayoffs:
            raise TypeError(
                f"CandidateGaps is a function of CandidatePayoffs, and {self.mean.query.name} is held: its sensitivity "
                "rests on how payoffs are clipped."
            )
        return self.mean.query

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """2 R, and rounding."""
        del public, sampling
        return 2.0 * self.mean.sensitivity + 8.0 * _UNIT_ROUNDOFF * float(self.payoffs.payoff_clip)

    def shape(self, public: Public) -> tuple[int, ...]:
        """One number a candidate."""
        return (self.payoffs.shape(public)[0],)

    def value(self, private_mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """See the class."""
        private_payoffs = np.asarray(private_mean, np.float64)
        first = self.payoffs.answers_to_x
        return np.min(private_payoffs[:, first:], axis=1) - np.max(private_payoffs[:, :first], axis=1)


# ---- The gradient of a game along one player's vertices, or in their coordinates: means over units ---------


@query
class PlayerGradient(RecordSum):
    """The mean over units of one player's gradient along their vertices; both players descend, on f and on -f.

    Attributes:
        game: the payoff of a record, and both players' sets.
        who: whose gradient, "x" of f or "y" of -f.
        x, y: public strategies, in coordinates.
        half_range: L; infinite only when privacy is switched off.
        negated: whether the entries are turned, so that the best vertex has the largest: for a choice of one.
    Privacy:
        Sensitivity in the *range* (largest minus smallest entry). A number added to all entries changes no draw from
        their softmax, so of each unit's vector v the midrange m = max v / 2 + min v / 2 is subtracted (each half is
        taken before the sum: no overflow), then the vector is clipped to [-L, L] entry by entry, after it was scaled
        by min(1, L / max |v|) where the game says "scale". A vector that is not finite before or after this is zero.
        What is left has range at most 2 L, `radius`; the change of a mean by one unit has range at most factor 2 L / N,
        since the range is a seminorm.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 1, whose bound on gradients is enforced here.
    """

    norm: ClassVar[str] = "range"

    game: Game = static()
    who: Who = static()
    x: Float[Array, " p"]
    y: Float[Array, " q"]
    half_range: Scalar
    negated: bool = field(default=False, metadata={"static": True})

    def radius(self) -> Scalar:
        """2 L, in range."""
        return 2.0 * jnp.asarray(self.half_range, float)

    def shape(self, public: Public) -> tuple[int, ...]:
        """One entry a vertex."""
        del public
        return (self.game.players[self.who].vertices.count,)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradient of one record's payoff along the vertices."""
        private_slope = self.game.vertex_slope(self.who, self.x, self.y, private_features, private_target)
        return -private_slope if self.negated else private_slope

    def clip_unit(self, private_vector: Array) -> Array:
        """Centre one unit's vector and clip it into [-L, L]."""
        return centred_clip(private_vector, self.half_range, scale=self.game.clip == "scale")


@query
class PlayerSlope(Clipped, RecordSum):
    """The mean over units of one player's gradient, each scaled into the l2 ball of radius `clip`.

    Attributes:
        game: the payoff of a record, and both players' sets.
        who: whose gradient, "x" of f or "y" of -f.
        x, y: public strategies, in coordinates.
        clip: C, the largest l2 norm of one unit's gradient; infinite only when privacy is switched off.
        along_vertices: whether the gradient is that by the weights on the vertices, less its mean over them, which
            moves no softmax; else it is in coordinates.
    Privacy:
        As every clipped mean: l2 sensitivity factor C / N.
    """

    game: Game = static()
    who: Who = static()
    x: Float[Array, " p"]
    y: Float[Array, " q"]
    clip: Scalar
    along_vertices: bool = field(default=False, metadata={"static": True})

    def shape(self, public: Public) -> tuple[int, ...]:
        """One entry a vertex, or a coordinate."""
        del public
        vertices = self.game.players[self.who].vertices
        return (vertices.count if self.along_vertices else vertices.dimension,)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradient of one record's payoff."""
        if not self.along_vertices:
            return self.game.slope(self.who, self.x, self.y, private_features, private_target)
        private_slope = self.game.vertex_slope(self.who, self.x, self.y, private_features, private_target)
        return private_slope - jnp.mean(private_slope)


def centred_clip(
    private_vector: Float[Array, " m"], half_range: Scalar, *, scale: bool = False
) -> Float[Array, " m"]:
    """Subtract the midrange and clip into [-half_range, half_range]; send anything not finite to zero.

    Args:
        private_vector: one unit's contribution, in the units of the query.
        half_range: L, same units, at least 0; infinite only centres. Public.
        scale: whether the centred vector is shrunk as a whole, rather than entry by entry.
    Privacy:
        Every entry ends in [-L', L'], L' = L (1 - 1e-9): whatever rounding did to the midrange, the last step is a clip
        entry by entry. So the range is at most 2 L.
    Raises:
        Nothing: the input is private.
    """
    private_finite = jnp.all(jnp.isfinite(private_vector))
    private_safe = jnp.where(private_finite, private_vector, jnp.zeros_like(private_vector))
    private_middle = 0.5 * jnp.max(private_safe) + 0.5 * jnp.min(private_safe)
    private_centred = private_safe - private_middle
    aim = shrunk_radius(half_range)
    if scale:
        private_peak = jnp.max(jnp.abs(private_centred))
        private_factor = aim / jnp.where(private_peak > aim, private_peak, 1.0)
        private_centred = jnp.where(private_peak > aim, private_centred * private_factor, private_centred)
    return jnp.clip(private_centred, -aim, aim)


# ------------------------------------------------------------------------------------------------------------
# One player's gradient of a bilinear game from its held mean payoffs, for noise that is scaled by l2.


@query
class PayoffSlope(_OfPlay):
    """`A y + p`, or `q - A^T x`, less its mean over the player's pure strategies.

    Attributes:
        mean: from `hold_mean(PayoffMeans(...))`.
        who: whose gradient, "x" of f or "y" of -f.
        play: the other player's strategy, weights of sum 1.
    Privacy:
        Exactly, the value is the mean over units of P w, w = u (v . play) + p (or q - v (u . play)), halved with
        offsets, and P the orthogonal projection that subtracts the mean of the m entries. The entries of w lie within
        L, the game's `half_range`, of some number c (see `PayoffGradient`), and P takes c away: |P w|_2 = |P (w - c)|_2
        <= |w - c|_2 <= sqrt(m) L. A user's is an average of such vectors with a weight of at most 1. So one unit moves
        the value by at most factor sqrt(m) L / n.
        Rounding: an entry of the held mean is off by at most r = `mean.rounding` times the largest entry a, on both
        data sets together, so a convex combination and an offset by 2 r a. In each data set the product with the play
        rounds an entry by at most (d + 2) 2^-53 a, d the length of the play, the mean of the entries by (m + 2) 2^-53
        a, and the difference by 2^-52 a. P is no longer than 1, so the l2 norm of all this is at most sqrt(m) times
        the largest entry of it. Weights whose sum is rounded scale it by 1 + d 2^-51.
    """

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor sqrt(m) L / n, and rounding."""
        del sampling
        game, units = self.game, self.mean.public
        (entries,), (length,) = self.shape(public), jnp.shape(self.play)
        largest = max(game.largest_entry**2, game.largest_entry)
        exact = units.relation.factor * game.half_range / units.n
        rounding = largest * (2.0 * self.mean.rounding + 4.0 * (length + entries + 8) * _UNIT_ROUNDOFF)
        total = float(np.sum(np.abs(np.asarray(self.play))))
        return entries**0.5 * (exact + rounding) * max(1.0, total) * (1.0 + length * 2.0**-51)

    def value(self, private_mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """See the class."""
        private_slope = self.gradient(private_mean)
        return private_slope - np.mean(private_slope)


# ------------------------------------------------------------------------------------------------------------
# A player's gradient at one drawn vertex, corrected by a scaled difference of gradients at averages of
# more.


@query
class BiasReducedGradient(RecordSum):
    """Mean over units of `gain clip(g(plus) - mean g(minus), C) + clip(g(one), L)`, g a player's vertex gradient.

    Attributes:
        game: the payoff of a record, and both players' sets.
        who: whose gradient, "x" of f or "y" of -f.
        x: public strategies of x in coordinates, a point a row: plus, one, and one or more that are minus.
        y: those of y, likewise.
        gain: C_M 2^N, at least 0.
        difference_clip: C, the largest half-range of a difference.
        half_range: L, that of the gradient at one.
    Privacy:
        Sensitivity in the range. Points, gain and clips are public. A unit's difference and its gradient are each
        centred and clipped entry by entry, see `centred_clip`; one that is not finite counts as zero, for itself. A
        sum of a vector in [-C, C] times the gain and of one in [-L, L] has range at most 2 (gain C + L), `radius`, and
        the mean moves by a vector of range at most factor 2 (gain C + L) / N. No smoothness enters. The paper's bound
        4 + 2^-N for gain 2^N, C = 2 and L = 1 leaves out a factor of the last term and C_M: up to 8.5 for M = 3 occurs.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 2 (one minus: the average of the first half); Blanchet, Glynn 2015
        (both halves).
    """

    norm: ClassVar[str] = "range"

    game: Game = static()
    who: Who = static()
    x: Float[Array, "points p"]
    y: Float[Array, "points q"]
    gain: Scalar
    difference_clip: Scalar
    half_range: Scalar

    def radius(self) -> Scalar:
        """2 (gain C + L), in range."""
        gain, clip = jnp.asarray(self.gain, float), jnp.asarray(self.difference_clip, float)
        return 2.0 * (gain * clip + jnp.asarray(self.half_range, float))

    def shape(self, public: Public) -> tuple[int, ...]:
        """One entry a vertex."""
        del public
        return (self.game.players[self.who].vertices.count,)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """One record's difference, and its gradient at one, along the vertices."""

        def slope(x: Array, y: Array) -> Array:
            return self.game.vertex_slope(self.who, x, y, private_features, private_target)

        private_slopes = jax.vmap(slope)(jnp.asarray(self.x), jnp.asarray(self.y))
        return jnp.stack([private_slopes[0] - jnp.mean(private_slopes[2:], axis=0), private_slopes[1]])

    def without_bad(self, private_vector: Array) -> Array:
        """Each of the two that is not finite as zero."""
        return jax.vmap(super().without_bad)(private_vector)

    def clip_unit(self, private_vector: Array) -> Array:
        """Both parts centred and clipped, and added."""
        scale = self.game.clip == "scale"
        private_difference = centred_clip(private_vector[0], self.difference_clip, scale=scale)
        return self.gain * private_difference + centred_clip(private_vector[1], self.half_range, scale=scale)
