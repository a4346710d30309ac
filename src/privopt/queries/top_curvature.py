"""The largest eigenvalue of the mean second moment of the rows: how curved a generalised-linear loss can be."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.public import Public
from privopt.queries.base import Scalar, query
from privopt.queries.second_moment import SecondMoment, unpack

_UNIT_ROUNDOFF = 2.0**-53


@query
class TopCurvature(SecondMoment):
    """The largest eigenvalue of the mean over units of `a a^T`, a user's being the weighted average over their records.

    For a generalised-linear loss with phi'' at most b the mean loss is b times this number smooth. It lies in
    [0, R^2], and a result that rounding brought outside is moved to the nearer end.

    Attributes:
        row_bound: R: a row longer than R counts as if it were shortened to it.
    Privacy:
        The sensitivity is R^2 / n under both relations. A unit's matrix is positive semidefinite of spectral norm at
        most its Frobenius norm, hence at most R^2, see `SecondMoment`: it lies between 0 and R^2 I. Adding or
        removing one moves the sum by a matrix between -R^2 I and R^2 I, and so does replacing A by B, since
        -R^2 I <= -B <= A - B <= A <= R^2 I. By Weyl's inequality no eigenvalue moves by more than the spectral norm
        of that. Rounding: the curator adds that of the sum, in the Frobenius norm, which is no less than the spectral
        one; `rounding` is added for what happens to the matrix afterwards.
    Source:
        Weyl 1912 (eigenvalues of a sum). Compare Dwork, Talwar, Thakurta, Zhang 2014, Analyze Gauss.
    """

    sensitivity_argument: ClassVar[str] = (
        "Replacing one positive semidefinite matrix by another moves no eigenvalue of the sum by more than one radius."
    )

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """R^2 / n, and the rounding of both sides.

        Raises:
            ValueError: for a sample, whose price asks for more.
        """
        if not isinstance(sampling, EveryUnit):
            raise ValueError(
                "the largest eigenvalue is computed on all units and cannot be sampled: leave out `sampling`."
            )
        return self.radius() / public.n + 2.0 * self.rounding(public)

    def rounding(self, public: Public) -> Scalar:
        """How far rounding after the sum may move the result.

        Division by n, packing and unpacking round every entry a few times; the computed eigenvalues are those of a
        matrix that is off by p(d) u times the norm, p a modest polynomial: 8 (d + 1)^2 is more than the Householder
        reduction of order d and the iteration on what it leaves can add up to (Higham 2002, lemma 19.3). The
        norm is at most R^2, and twice that on a block with more than its public number of units.
        """
        return 16.0 * (public.d + 1.0) ** 2 * _UNIT_ROUNDOFF * self.radius()

    def shape(self, public: Public) -> tuple[int, ...]:
        """A scalar."""
        del public
        return ()

    def finish(self, private_mean: Float[Array, " k"]) -> Float[Array, ""]:
        """The largest eigenvalue of the packed mean."""
        return _largest_eigenvalue(private_mean, self.radius())


@jax.jit
def _largest_eigenvalue(private_mean: Float[Array, " k"], most: Scalar) -> Float[Array, ""]:
    order = (round((8 * private_mean.shape[0] + 1) ** 0.5) - 1) // 2  # k = d (d + 1) / 2
    private_top = jnp.max(jnp.linalg.eigvalsh(unpack(private_mean, order)))
    return jnp.clip(jnp.where(jnp.isfinite(private_top), private_top, 0.0), 0.0, most)
