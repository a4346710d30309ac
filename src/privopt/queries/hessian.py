"""The damped Newton direction of a generalised-linear loss, computed by the curator for a public gradient."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.losses import Logistic, ScalarLoss
from privopt.public import Public
from privopt.queries.base import SMALLEST_RADIUS, Scalar, query, static
from privopt.queries.gradient_difference import distance_of
from privopt.queries.second_moment import WeightedSecondMoment, packed_length, unpack

Model = Literal["hessian", "bound"]
_UNIT_ROUNDOFF = 2.0**-53
_LONGEST = 1e250  # of a direction


@query
class NewtonDirection(WeightedSecondMoment):
    """`(H + diag(ridge) + damping I)^-1 g`, H the mean over units of `w a a^T` at a public point, g a public vector.

    Attributes:
        loss: a generalised-linear loss with one output.
        at: public point where the weights are taken.
        gradient: g, public or released.
        ridge: (d,) non-negative second derivatives of the penalty.
        damping: added to every one of them, so that l = damping + min(ridge) is positive.
        clip: b, largest Frobenius norm of one record's `w a a^T`; curvature * row_bound^2 changes nothing.
        model: "hessian" takes w = phi''; "bound" the weight of the quadratic upper bound, logistic loss only.
    Privacy:
        Given g, the l2 sensitivity is |g| b / (l (n l + b)) under both relations. Let A be the matrix to invert
        without the unit that differs; A >= l I. With it the matrix is A + M / n, M positive semidefinite of norm at
        most b. Put U = A^(-1/2) M A^(-1/2) / n, which is positive semidefinite of norm at most t = b / (n l). Then

            A^-1 - (A + M / n)^-1 = A^(-1/2) P A^(-1/2),    P = U (I + U)^-1,    0 <= P <= t / (1 + t) I.

        Adding or removing the unit moves the direction by at most |A^-1| |P| |g| <= (1 / l) (t / (1 + t)) |g|.
        Replacing it moves it by A^(-1/2) (P - P') A^(-1/2) g; the difference of two matrices between 0 and
        t / (1 + t) I lies between -t / (1 + t) I and t / (1 + t) I, so the bound is the same. None of it needs M of
        rank one: it holds for users too. Rounding of H and of the solution perturb the matrix by at most `rounding`,
        hence the direction by |g| rounding / (l (l - rounding)) on each side; this is added.
    Differs from the paper:
        no factor of two for replace-one, and the unit may be a user.
    Source:
        Ganesh, Haghifam, Steinke, Thakurta 2023, Algorithm 1 ("double noise", the sensitivity of the direction).
    """

    sensitivity_argument: ClassVar[str] = (
        "The direction is not a mean: the damping bounds how far one positive semidefinite matrix can move it."
    )

    loss: ScalarLoss = static()
    at: Float[Array, " d"]
    gradient: Float[Array, " d"]
    ridge: Float[Array, " d"]
    damping: Scalar
    clip: Scalar
    model: Model = static()

    def radius(self) -> Scalar:
        """b."""
        return self.clip

    def point(self) -> Float[Array, " d"]:
        """Where the weights are taken."""
        return self.at

    def row_weights(
        self, private_predictions: Float[Array, " b"], private_targets: Float[Array, " b"]
    ) -> Float[Array, " b"]:
        """phi'', or tanh(|t| / 2) / (2 |t|), whose parabola lies above the logistic loss and touches it at t."""
        if self.model == "hessian":
            return self.loss.second_derivative(private_predictions, private_targets)
        if not isinstance(self.loss, Logistic):
            raise ValueError(
                f"the quadratic upper bound is known for the logistic loss only, got {self.loss.name}: "
                "use model='hessian'."
            )
        private_sizes = jnp.abs(private_predictions)
        private_small = private_sizes < 1e-4  # where the next term, t^2 / 48, is below 1e-9
        private_safe = jnp.where(private_small, 1.0, private_sizes)
        return jnp.where(private_small, 0.25, jnp.tanh(private_safe / 2.0) / (2.0 * private_safe))

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """|g| b / (l (n l + b)), and the rounding of both sides; infinite if l is below it or the direction too long.

        Raises:
            ValueError: for a sample, on which the bound does not hold.
        """
        if not isinstance(sampling, EveryUnit):
            raise ValueError(
                "the Newton direction is computed on all units and cannot be sampled: leave out `sampling`."
            )
        clip, least = jnp.asarray(self.clip, float), self.least()
        length = distance_of(self.right_side(), jnp.zeros_like(self.gradient))
        exact = length * clip / (least * (public.n * least + clip))
        rounding = self.rounding(public)
        # Infinite as well where solving the equation may leave float64, and where g is no vector of numbers.
        within = (least > 2.0 * rounding) & (length < _LONGEST * jnp.minimum(least, 1.0))
        safe = jnp.where(within, least - rounding, 1.0)
        stated = jnp.where(within, exact + 2.0 * length * rounding / (least * safe), jnp.inf)
        return jnp.where(length == 0.0, 0.0, stated)

    def right_side(self) -> Float[Array, " d"]:
        """g, and 0 where no entry reaches `SMALLEST_RADIUS`: a length that vanished would state that none moves."""
        gradient = jnp.asarray(self.gradient, float)
        return jnp.where(jnp.max(jnp.abs(gradient), initial=0.0) < SMALLEST_RADIUS, 0.0, gradient)

    def least(self) -> Scalar:
        """l, a lower bound on every eigenvalue of the matrix."""
        return self.damping + jnp.min(jnp.asarray(self.ridge, float))

    def rounding(self, public: Public) -> Scalar:
        """How far rounding may move the matrix whose equation the computed direction solves exactly.

        The engine's bound on the mean, `2 (4096 + n / 4096 + 65) u b`, and the backward error of Cholesky's method,
        at most `4 d (d + 1) u` times the norm of the matrix (Higham 2002, theorem 10.4).
        """
        d = public.d
        largest = self.clip + self.damping + jnp.max(jnp.asarray(self.ridge, float))
        summed = (8400.0 + public.n / 2048.0) * self.clip
        return _UNIT_ROUNDOFF * (summed + 4.0 * (d + 1.0) ** 2 * largest)

    def shape(self, public: Public) -> tuple[int, ...]:
        """(d,)."""
        return (public.d,)

    def finish(self, private_mean: Float[Array, " k"]) -> Float[Array, " d"]:
        """The direction, from the packed mean."""
        assert private_mean.shape == (packed_length(self.gradient.shape[0]),)
        return _direction(private_mean, self.right_side(), self.ridge + self.damping)


@jax.jit
def _direction(
    private_mean: Float[Array, " k"], gradient: Float[Array, " d"], diagonal: Float[Array, " d"]
) -> Float[Array, " d"]:
    private_matrix = unpack(private_mean, gradient.shape[0]) + jnp.diag(diagonal)
    return jax.scipy.linalg.solve(private_matrix, gradient, assume_a="pos")
