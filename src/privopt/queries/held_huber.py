"""The Huber centre of held points, and the score that certifies how little one point can move it.

The proofs are in `privopt.proofs.huber_centre`: the score has sensitivity 1, and wherever it is at least 1 the centre
moves by at most a c / (N0 + 1), on secret samples a c / N0.
"""

from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.proofs import huber_centre as proof
from privopt.public import Public
from privopt.queries.base import Scalar, StatisticOfHeld, query, static
from privopt.queries.held_friends import within_reach

_HALVINGS = (
    60  # of squared distances up to 4e10 squared radii: quicker than sorting, and close enough for a start
)
_AT_ONCE = 8  # candidates whose distances to all points are held at the same time


class _AroundItself(StatisticOfHeld):
    """What score and centre share.

    Attributes:
        held: the points.
        origin: v0, (k,), public or released; points far from it are moved nearer, see `within_reach`.
        radius: c.
        least: N0, more than half of the points that there may be.
        steps: of the solver, see `proofs.huber_centre.descent_steps`; at least as many.
    """

    held: Any = static()
    origin: Float[Array, " k"]
    radius: Scalar
    least: int = static()
    steps: int = static()

    def _solved(
        self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]
    ) -> tuple[Array, Array, Array]:
        private_points = within_reach(private_vectors, self.origin, self.radius)
        return huber_centre(private_points, private_present, self.radius, least=self.least, steps=self.steps)


@query
class HuberScore(_AroundItself):
    """f: how far, in points exchanged for the worst ones, the data are from an unstable Huber centre.

    Privacy:
        Sensitivity 1, by Lemma F; 0 on both data sets where the solver's residual is too large, except with the
        probability 2^-64 stated there. Where the number of points is private the score is cut at 2 N0 - 1 - K.
    """

    on_samples: ClassVar[frozenset[str]] = frozenset({"answer"})

    held: Any = static()
    origin: Float[Array, " k"]
    radius: Scalar
    least: int = static()
    steps: int = static()

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """1."""
        del public, sampling
        return 1.0

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number."""
        del public
        return ()

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        _, private_residual, private_distances = self._solved(private_vectors, private_present)
        most = private_vectors.shape[0] - self.least
        if most < 1:
            return jnp.zeros((), jnp.float64)
        replaced = self.held.replaced
        sampled = self.held.sampled
        radii = proof.inner_radii(most, self.least, replaced=replaced, sampled=sampled)
        inner = jnp.asarray(radii[1:]) * self.radius
        private_met = private_distances[self.least :] <= inner
        private_score = jnp.max(jnp.where(private_met, jnp.arange(1.0, most + 1.0), 0.0))
        private_solved = private_residual <= 0.5 * proof.TOLERANCE * self.radius
        private_score = jnp.where(private_solved, private_score, 0.0)
        if replaced and not sampled:
            return private_score
        private_count = jnp.sum(private_present.astype(jnp.float64))
        return jnp.minimum(private_score, jnp.maximum(0.0, 2.0 * self.least - 1.0 - private_count))


@query
class HuberCentre(_AroundItself):
    """u - v0, u the Huber centre of the points.

    Privacy:
        a c / (N0 + 1) **where the score is at least 1 on one of the two data sets**, by Lemma F; the test before it
        lets any other pair pass with probability delta_1 at most, which the test has paid for. The lemma grants the
        residual kappa c and the solver leaves kappa c / 2, so that its bound has kappa c / (N0 + 1) to spare for the
        rounding of u, at most sqrt(k) 2^-53 1e5 c on either side.
        On a secret sample a c / N0, **where the score is at least 1 on one of the three samples** that a unit is
        missing from, in, or replaced in; entering moves it by at most half of that, by Lemma T.
    """

    on_samples: ClassVar[frozenset[str]] = frozenset({"mean"})

    held: Any = static()
    origin: Float[Array, " k"]
    radius: Scalar
    least: int = static()
    steps: int = static()

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """Delta.

        Raises:
            ValueError: the points are a secret sample and N0 is below 21.
        """
        del public, sampling
        return self.radius * proof.centre_shift(
            self.least, replaced=self.held.replaced, sampled=self.held.sampled
        )

    def shape(self, public: Public) -> tuple[int, ...]:
        """That of a point."""
        del public
        return tuple(jnp.shape(self.origin))

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        private_centre, _, _ = self._solved(private_vectors, private_present)
        return private_centre


@partial(jax.jit, static_argnames=("least", "steps"))
def huber_centre(
    private_points: Float[Array, "p k"],
    private_present: Bool[Array, " p"],
    radius: Scalar,
    *,
    least: int,
    steps: int,
) -> tuple[Float[Array, " k"], Scalar, Float[Array, " p"]]:
    """An approximate Huber centre by a fixed number of gradient steps.

    Args:
        private_points: rows, those that are no points included.
        private_present: which are points. The first 64 of them are tried as starts: rows are in random order, so one
            unit changes one of them at most.
        radius: c.
        least: N0.
        steps: how many.
    Returns:
        The centre, the residual |G| there, and the sorted distances of the points from it, infinite for the rest.
    """
    private_start = _start(private_points, private_present, least)
    # Around the start, the squares of near points are small and their differences exact enough.
    private_moved = private_points - private_start[None, :]
    private_squares = jnp.sum(private_moved * private_moved, axis=1)
    private_mask = private_present.astype(jnp.float64)
    private_count = jnp.maximum(jnp.sum(private_mask), 1.0)

    def distances(at: Array) -> Array:
        return jnp.sqrt(jnp.maximum(private_squares - 2.0 * (private_moved @ at) + jnp.sum(at * at), 0.0))

    def gradient(at: Array) -> Array:
        private_apart = distances(at)
        private_near = private_apart <= radius
        private_shares = jnp.where(private_near, 1.0, radius / jnp.where(private_near, 1.0, private_apart))
        private_shares = private_shares * private_mask
        return at * jnp.sum(private_shares) - private_shares @ private_moved

    private_at = jax.lax.fori_loop(
        0, steps, lambda _, at: at - gradient(at) / private_count, jnp.zeros_like(private_start)
    )
    private_left = gradient(private_at)
    private_residual = jnp.sqrt(jnp.sum(private_left * private_left))
    private_sorted = jnp.sort(jnp.where(private_present, distances(private_at), jnp.inf))
    return private_start + private_at, private_residual, private_sorted


def _start(
    private_points: Float[Array, "p k"], private_present: Bool[Array, " p"], least: int
) -> Float[Array, " k"]:
    """The candidate with the smallest N0-th nearest distance.

    Privacy:
        By `within_reach` a squared distance is off by at most 1e-4 c^2, and the halvings by 4e10 2^-60 c^2 more: the
        N0-th nearest point of the one chosen is within sqrt((2 b_0)^2 + 3e-4 c^2), so that it lies within 3 c of the
        minimiser, as the proof supposes, in every dimension.
    """
    candidates = min(proof.CANDIDATES, private_points.shape[0])
    private_first = jnp.argsort(~private_present, stable=True)[:candidates]
    private_squares = jnp.sum(private_points * private_points, axis=1)

    def spread(private_index: Array) -> Array:
        private_own = private_points[private_index]
        private_apart = (
            private_squares - 2.0 * (private_points @ private_own) + private_squares[private_index]
        )
        private_apart = jnp.where(private_present, private_apart, jnp.inf)

        def halve(_: Array, interval: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = interval
            middle = 0.5 * (low + high)
            enough = jnp.sum((private_apart <= middle).astype(jnp.float64)) >= least
            return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

        private_most = jnp.max(jnp.where(private_present, private_apart, 0.0))
        _, private_spread = jax.lax.fori_loop(
            0, _HALVINGS, halve, (jnp.zeros_like(private_most), private_most)
        )
        return jnp.where(private_present[private_index], private_spread, jnp.inf)

    private_spreads = jax.lax.map(spread, private_first, batch_size=min(_AT_ONCE, candidates))
    return private_points[private_first[jnp.argmin(private_spreads)]]
