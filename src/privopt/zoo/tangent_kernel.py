"""The growth of a square loss near a start, from the tangent kernel of the model: for studies, not for planning."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.growth import KL

Network = Callable[[Float[Array, " p"], Float[Array, " d"]], Float[Array, ""]]


def tangent_kernel_floor(
    network: Network, params: Float[Array, " p"], features: Float[Array, "n d"]
) -> float:
    """The smallest eigenvalue of the tangent kernel `J J'`, J the Jacobian of the predictions of these records.

    Args:
        network: the prediction of one record, `network(params, features)`.
        params: where, in practice a start.
        features: public or synthetic records; no more than parameters, or the eigenvalue is 0.
    """
    jacobian = jax.vmap(jax.grad(network), (None, 0))(params, features)
    return float(jnp.linalg.eigvalsh(jacobian @ jacobian.T)[0])


def tangent_kernel_growth(network: Network, params: Float[Array, " p"], features: Float[Array, "n d"]) -> KL:
    """The KL condition of `(1/n) sum (network - y)^2 / 2` at these parameters, whatever the targets: kappa = 2.

    `|grad F|^2 = r' J J' r / n^2 >= (lambda_min / n) 2 F`. It holds at the parameters themselves with F* = 0, and for
    wide networks it changes little on the way to a minimum.

    Args:
        network: the prediction of one record.
        params: where.
        features: public or synthetic records. The kernel is a function of every record, so one of private records is
            private, and it moves along the run: take no bound and no plan from it.
    Raises:
        ValueError: the kernel is singular, as it is when there are more records than parameters.
    """
    floor = tangent_kernel_floor(network, params, features)
    if not floor > 0.0:
        raise ValueError(
            f"the tangent kernel's smallest eigenvalue is {floor:.3g}: the model has no growth here. Take more "
            "parameters than records, and no record twice."
        )
    return KL.of_strong_convexity(floor / len(features))
