"""The precision of an output as a witness: how far down its last bit stands, and what values that excludes.

Haney, Desfontaines, Hartman, Shrestha, Hay 2022, "Precision-based attacks and interval refining": floating-point noise
has finer digits the smaller it is, and a sum has no finer digits than its larger term has. Among outputs of one size,
those of 0 end further down than those of 1, whatever the law of the noise and however well it was sampled.
"""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import square_root_toeplitz

pytestmark = pytest.mark.audit

LEVEL = 1e-5  # a fixed seed is judged once
DRAWS = 2_000_000
DEEPEST = 80  # bits behind the point that are told apart

Released = Callable[[NoiseSource, float], NDArray[np.float64]]


def of_a_stream(source: NoiseSource, value: float) -> NDArray[np.float64]:
    """What the second item of a stream adds to its released sum, the first being nothing that anybody moves."""
    stream = PrefixSum(strategy=square_root_toeplitz(2), noise_multiplier=0.8)
    state = stream.open(source, (DRAWS,))
    stream.add(state, source, np.zeros(DRAWS), 0.0)
    return stream.add(state, source, np.full(DRAWS, value), 1.0)


MECHANISMS: dict[str, Released] = {
    "Gaussian": lambda source, value: Gaussian(1.0).release(source, np.full(DRAWS, value), 1.0),
    "Laplace": lambda source, value: Laplace(1.0).release(source, np.full(DRAWS, value), 1.0),
    "PrefixSum": of_a_stream,
}


def precisions(outputs: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many outputs end at each bit behind the point, by binade: of those half-way between 0 and 1."""
    near = outputs[np.abs(outputs - 0.5) < 0.05]
    significand, exponent = np.frexp(near)
    whole = (significand * 2.0**53).astype(np.int64)
    ends = 53 - exponent.astype(np.int64) - np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
    return np.stack(
        [
            np.bincount(np.clip(ends[side], 0, DEEPEST), minlength=DEEPEST + 1)
            for side in (near < 0.5, near >= 0.5)
        ]
    )


def least_p_value(zero: NDArray[np.int64], one: NDArray[np.int64]) -> float:
    """Whether outputs of one binade end as far down for both values: chi-square, rare ends put together."""
    found = 1.0
    for left, right in zip(zero, one, strict=True):
        common = left + right >= 20
        table = np.array([[*side[common], side[~common].sum()] for side in (left, right)])
        table = table[:, table.sum(axis=0) > 0]
        if table.shape[1] > 1:
            found = min(found, 2 * float(stats.chi2_contingency(table).pvalue))
    return found


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_precision_of_an_output_betrays_float_noise_and_not_integers(name: str) -> None:
    for exact in (False, True):
        source = NoiseSource(seed=5, exact=exact)
        zero, one = (precisions(MECHANISMS[name](source, value)) for value in (0.0, 1.0))
        assert min(zero.sum(), one.sum()) > 10_000
        if exact:
            assert least_p_value(zero, one) > LEVEL
        else:
            assert least_p_value(zero, one) < 1e-100


def test_one_vector_with_float_noise_is_enough() -> None:
    """An output that ends below 2^-53 is none of the value 1: of 100 coordinates some are, for the value 0."""
    caught = {0.0: 0, 1.0: 0}
    source = NoiseSource(seed=6, exact=False)
    for value in caught:
        for _ in range(200):
            outputs = Gaussian(1.0).release(source, np.full(100, value), 1.0)
            caught[value] += bool(np.any(np.rint(outputs * 2.0**53) != outputs * 2.0**53))
    assert caught == {0.0: 200, 1.0: 0}
