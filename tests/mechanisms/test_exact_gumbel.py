import decimal
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from randomgen import AESCounter
from scipy import stats
from tests.mechanisms.test_exact_noise import Script
from tests.support.scale_checks import LEVEL, frequency_p_value

from privopt.mechanisms.exact_noise import DOUBT, FINEST, ExactNoise


def seeded(key: int, *, doubt: int = DOUBT) -> ExactNoise:
    return ExactNoise(AESCounter(key=key), doubt=doubt)


def lattice_p_value(draws: NDArray[np.int64], exponent: int, scale: float = 1.0) -> float:
    """Chi-square of integers against the masses of their cells; `scale` other than 1 is a mutant's law."""
    width = max(1, int(2.0**exponent) // 16)  # cells of whole lattice points
    edges = np.arange(-3 * math.ceil(2.0**exponent), 9 * math.ceil(2.0**exponent), width)
    counts = np.bincount(np.searchsorted(edges, draws, side="right"), minlength=len(edges) + 1)
    below = stats.gumbel_r(scale=scale * 2.0**exponent).cdf(edges - 0.5)
    return frequency_p_value(counts, np.diff(np.concatenate([[0.0], below, [1.0]])))


@pytest.mark.parametrize("exponent", [-2, 0, 3, 9, 31])
def test_draws_have_the_masses_of_a_rounded_variable(exponent: int) -> None:
    draws = seeded(exponent + 70).gumbel((100_000,), exponent)
    assert draws.dtype == np.int64
    assert lattice_p_value(draws, exponent) > LEVEL
    assert lattice_p_value(draws, exponent, scale=1.03) < LEVEL


def test_every_stage_gives_the_answer_of_exact_arithmetic() -> None:
    """With a large doubt decimal arithmetic decides, on the same words: of a stream, and of words at both ends."""
    ends = [
        0,
        1,
        2,
        2**64 - 1,
        2**64 - 2,
        2**63,
        2**63 - 1,
        1023,
        1024,
        2**64 - 1025,
        2**64 - 1024,
        2**20,
        2**40,
    ]
    for exponent in (9, 31, 34):
        fast, exact = (ExactNoise(Script([*ends, 77, 5]), doubt=doubt) for doubt in (DOUBT, 2**62))
        assert np.array_equal(fast.gumbel((100,), exponent), exact.gumbel((100,), exponent))
        assert fast.settled < 20 < exact.settled


def test_a_half_in_doubt_is_decided_by_further_words() -> None:
    """The first word is the one on which 2^s G = 1/2 falls; what follows says on which side."""
    exponent = 4
    edge = int(math.exp(-math.exp(-0.5 / 2.0**exponent)) * 2.0**64)  # float64: right to some 2^11
    with decimal.localcontext(decimal.Context(prec=80)):
        v = (-(-decimal.Decimal("0.5") / 16).exp()).exp() * 2**128
        word, rest = divmod(int(v), 2**64)
    assert abs(word - edge) < 2**14
    for following, drawn in ((rest - 1, 0), (rest + 1, 1)):
        source = ExactNoise(Script([word, following]))
        assert source.gumbel((1,), exponent)[0] == drawn
        assert source.settled == 1


def test_draws_go_on_where_a_word_is_all_zeros_or_all_ones() -> None:
    """V = 2^-64 w 2^-64: G = -log(-log V) by float64, which is right to 1e-13 there."""
    low = ExactNoise(Script([0, 1 << 63])).gumbel((1,), 31)[0] / 2.0**31
    assert low == pytest.approx(-math.log(65 * math.log(2.0)), abs=1e-8)
    high = ExactNoise(Script([2**64 - 1, 1 << 63])).gumbel((1,), 31)[0] / 2.0**31
    assert high == pytest.approx(65 * math.log(2.0), abs=1e-8)


@pytest.mark.parametrize("shape", [(), (1,), (3, 2)])
def test_a_block_of_draws_consumes_the_stream_as_single_draws_do(shape: tuple[int, ...]) -> None:
    ahead, singly = seeded(5, doubt=2**30), seeded(5, doubt=2**30)  # some are settled by decimals
    block = ahead.gumbel((60, *shape), 34)
    assert np.array_equal(block, np.stack([singly.gumbel(shape, 34) for _ in range(60)]))
    assert np.array_equal(ahead.normal((4,), 0), singly.normal((4,), 0))
    assert ahead.settled > 0


@pytest.mark.parametrize("exponent", [-61, 46])
def test_a_scale_out_of_reach_is_refused(exponent: int) -> None:
    with pytest.raises(ValueError, match="exponent must be from -60 to 45"):
        seeded(0).gumbel((1,), exponent)


@pytest.mark.audit
@pytest.mark.parametrize("exponent", [-2, 0, 4, 9, 20, 31, 34])
def test_masses_on_many_draws(exponent: int) -> None:
    source, p_values = seeded(1000 + exponent), list[float]()
    for _ in range(10):
        p_values.append(lattice_p_value(source.gumbel((1_000_000,), exponent), exponent))
    assert stats.combine_pvalues(np.clip(p_values, 1e-300, 1.0)).pvalue > LEVEL


@pytest.mark.audit
def test_every_stage_agrees_on_many_draws() -> None:
    for exponent in (9, 34, FINEST):
        fast, exact = seeded(17), seeded(17, doubt=2**62)
        assert np.array_equal(fast.gumbel((20_000,), exponent), exact.gumbel((20_000,), exponent))
