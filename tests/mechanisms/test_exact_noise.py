import decimal
import math
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from randomgen import AESCounter, ChaCha
from scipy import stats
from tests.support.scale_checks import LEVEL, frequency_p_value

from privopt.compilation import Compiled
from privopt.data import participants
from privopt.mechanisms import exact_noise
from privopt.mechanisms.exact_noise import DOUBT, FINEST, ExactNoise

LAWS: dict[str, Any] = {"normal": stats.norm, "laplace": stats.laplace}
EVEN_MOMENTS = {"normal": (1.0, 3.0, 15.0, 105.0), "laplace": (2.0, 24.0, 720.0, 40320.0)}  # second to eighth


def seeded(key: int, *, doubt: int = DOUBT) -> ExactNoise:
    return ExactNoise(AESCounter(key=key), doubt=doubt)


def drawn(law: str, source: ExactNoise, count: int, exponent: int) -> NDArray[np.int64]:
    return getattr(source, law)((count,), exponent)


class Script:
    """A stream that reads some words first, then a cipher's."""

    def __init__(self, words: list[int]) -> None:
        self._words, self._rest = words, AESCounter(key=1)

    def random_raw(self, size: int) -> NDArray[np.uint64]:
        ahead, self._words = self._words, []
        return np.concatenate([np.array(ahead, np.uint64), self._rest.random_raw(size)])


def lattice_p_value(law: str, draws: NDArray[np.int64], exponent: int, scale: float = 1.0) -> float:
    """Chi-square of integers against the masses of their cells; `scale` other than 1 is a mutant's law."""
    cdf = LAWS[law](scale=scale * 2.0**exponent).cdf
    reach = int(max(2, math.ceil(6 * 2.0**exponent)))
    width = max(1, reach // 100)  # cells of whole lattice points
    edges = np.arange(-reach, reach + 1, width)
    cells = np.searchsorted(edges, draws, side="right")  # cell i: edges[i - 1] <= draw < edges[i]
    counts = np.bincount(cells, minlength=len(edges) + 1)
    masses = np.diff(np.concatenate([[0.0], cdf(edges - 0.5), [1.0]]))
    return frequency_p_value(counts, masses)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("exponent", [-2, -1, 0, 3, 6, 20, 33, 45])
def test_draws_have_the_masses_of_a_rounded_variable(law: str, exponent: int) -> None:
    draws = drawn(law, seeded(exponent + 70), 200_000, exponent)
    assert draws.dtype == np.int64
    assert lattice_p_value(law, draws, exponent) > LEVEL
    assert lattice_p_value(law, draws, exponent, scale=1.03) < LEVEL


@pytest.mark.parametrize("law", LAWS)
def test_the_low_bits_are_uniform_and_the_sign_is_fair(law: str) -> None:
    draws = drawn(law, seeded(3), 400_000, FINEST)
    low = np.bincount(draws & 255, minlength=256)
    assert frequency_p_value(low, np.full(256, 1 / 256)) > LEVEL
    assert stats.binomtest(int(np.count_nonzero(draws < 0)), draws.size).pvalue > LEVEL


@pytest.mark.parametrize("law", LAWS)
def test_tails_match_their_mass(law: str) -> None:
    draws = np.abs(drawn(law, seeded(4), 2_000_000, 40)) / 2.0**40
    for level in (3.0, 4.0, 5.0, 12.0):
        beyond = int(np.count_nonzero(draws > level))
        assert stats.binomtest(beyond, draws.size, 2 * LAWS[law].sf(level)).pvalue > LEVEL
    assert (
        stats.binomtest(int(np.count_nonzero(draws > 4.2)), draws.size, 2 * LAWS[law].sf(4.0)).pvalue < LEVEL
    )


@pytest.mark.parametrize("law", LAWS)
def test_every_stage_gives_the_answer_of_exact_arithmetic(law: str) -> None:
    """With a large doubt, decimal arithmetic decides whatever the first bound does not, on the same words."""
    fast, exact = seeded(7), seeded(7, doubt=2**31)
    assert np.array_equal(drawn(law, fast, 60_000, FINEST), drawn(law, exact, 60_000, FINEST))
    assert fast.settled < 5 < 1000 < exact.settled


def test_the_fixed_point_exponential_is_within_its_bound() -> None:
    rng = np.random.default_rng(0)
    for r in [0, 1, 2, int(0.02 * 2**31), *rng.integers(0, int(0.02 * 2**31), 3000)]:
        off = exact_noise._exp_minus(int(r)) - math.exp(-64 * int(r) / 2**31) * 2**31
        assert abs(off) <= 319  # 64 times 4, and 63


def exact_magnitude(head: int, tail: int) -> tuple[int, int]:
    """The slab and the place that two words stand for, by the table's digits alone."""
    table = exact_noise._normal_table()
    slot = head & 511
    below = head >> 10 < table.digits[slot] >> (400 - 54)
    return (slot if below else int(table.alias[slot])), tail & (2**42 - 1)


def test_known_words_give_known_draws() -> None:
    head, tail = 5 | 3 << 20, 12345
    slab, place = exact_magnitude(head, tail)
    magnitude = (slab << 42) + place  # floor(2^46 |N|); u = 0 is kept by the first bound
    words = [head, tail, head | 512, tail]  # the second draw is negative
    draws = ExactNoise(Script(words)).normal((2,), FINEST)
    assert draws.tolist() == [(magnitude + 1) >> 1, (-magnitude) >> 1]


def test_the_tail_reaches_twenty_deviations() -> None:
    table = exact_noise._normal_table()
    slot = 319
    assert all(digit > 0 for digit in table.digits[:320])
    assert table.digits[slot] < 2 ** (400 - 246)  # the last slab comes up where 246 bits are zero, and more
    source = ExactNoise(Script([slot, 2**42 - 1, 0, 0, 0, 0, 0]))
    assert source.normal((1,), FINEST)[0] / 2.0**FINEST == pytest.approx(20.0, abs=1e-9)


def test_a_laplace_draw_goes_on_behind_the_last_slab() -> None:
    """The last outcome adds 511 slabs and draws again; so often as it comes."""
    table = exact_noise._laplace_table()
    slot = 511
    assert table.digits[slot] >> (400 - 54) > 0
    word = slot  # 54 zero bits are below its threshold
    start = 3 | 1 << 20  # slab 3, u = 0
    assert table.digits[3] >> (400 - 54) > 1 << 10
    draws = ExactNoise(Script([word, 0, word, 0, start, 99])).laplace((1,), FINEST)
    assert draws[0] == (((511 * 2 + 3) << 42) + 99 + 1) >> 1


def test_the_tables_are_the_laws() -> None:
    """Masses of the outcomes from the table's 400 bits; the tail of a Laplace is what rejection leaves it."""
    normal, laplace = exact_noise._normal_table(), exact_noise._laplace_table()

    def masses(table: Any) -> NDArray[np.float64]:
        own = np.array([digit / 2**400 for digit in table.digits])
        total = own.copy()
        np.add.at(total, table.alias, 1.0 - own)
        return total / 512

    k = np.arange(512)
    weights = np.where(k < 320, np.exp(-(k**2) / 512.0), 0.0)
    assert masses(normal) == pytest.approx(weights / weights.sum(), rel=1e-12, abs=1e-18)
    kept = masses(laplace)[:511] * 16 * (1 - math.exp(-1 / 16))
    beyond = masses(laplace)[511]
    assert beyond / (kept.sum() + beyond) == pytest.approx(math.exp(-511 / 16), rel=1e-2)


def test_where_the_first_54_bits_do_not_decide_the_others_do() -> None:
    table = exact_noise._normal_table()
    slot = next(k for k in range(40) if 0 < table.digits[k] < 2**400)
    digits = table.digits[slot]
    first, rest = digits >> (400 - 54), digits & (2 ** (400 - 54) - 1)
    head = slot | first << 10
    following = [rest >> (400 - 54 - 64 * i) & (2**64 - 1) for i in range(1, 6)]
    last = (rest << (64 * 6 - (400 - 54))) & (2**64 - 1)
    for decisive, expected in ((following[0] - 1, slot), (following[0] + 1, int(table.alias[slot]))):
        source = ExactNoise(Script([head, 7, decisive, 0]))
        assert source.normal((1,), FINEST)[0] == ((expected << 42) + 7 + 1) >> 1
        assert source.settled == 1
    source = ExactNoise(Script([head, 7, *following, last, 0]))  # all 400 bits are those of the threshold
    assert source.normal((1,), FINEST)[0] == ((int(table.alias[slot]) << 42) + 7 + 1) >> 1


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 2)])
def test_a_block_of_draws_consumes_the_stream_as_single_draws_do(law: str, shape: tuple[int, ...]) -> None:
    ahead, singly = seeded(5), seeded(5)
    block = getattr(ahead, law)((3000, *shape), 30)
    assert np.array_equal(block, np.stack([getattr(singly, law)(shape, 30) for _ in range(3000)]))
    assert np.array_equal(ahead.normal((4,), 0), singly.normal((4,), 0))


@pytest.mark.parametrize("law", LAWS)
def test_a_coarser_draw_is_a_finer_one_rounded(law: str) -> None:
    fine = drawn(law, seeded(6), 20_000, FINEST)
    for exponent in (44, 30, 3, -2, -60):
        coarse = drawn(law, seeded(6), 20_000, exponent)
        unit = 2.0 ** (FINEST - exponent)
        assert np.max(np.abs(coarse * unit - fine)) <= 0.5 * unit + 0.5


def test_threads_share_no_word() -> None:
    source, draws = seeded(8), list[NDArray[np.int64]]()

    def work() -> None:
        for _ in range(200):
            draws.append(source.normal((37,), FINEST))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = np.sort(np.concatenate(draws))
    assert np.array_equal(together, np.sort(seeded(8).normal((4 * 200 * 37,), FINEST)))


def test_chacha_words_do_as_well() -> None:
    draws = ExactNoise(ChaCha(key=9, rounds=20)).normal((100_000,), 4)
    assert lattice_p_value("normal", draws, 4) > LEVEL


@pytest.mark.parametrize("exponent", [-61, 46, 63])
def test_a_scale_out_of_reach_is_refused(exponent: int) -> None:
    with pytest.raises(ValueError, match="exponent must be from -60 to 45"):
        seeded(0).normal((1,), exponent)


def test_a_doubt_that_would_not_be_exact_is_refused() -> None:
    with pytest.raises(ValueError, match="doubt must be at least 1024"):
        seeded(0, doubt=1023)


def test_it_shows_nothing() -> None:
    assert repr(seeded(0)) == "ExactNoise(<private>)"


@pytest.mark.audit
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("exponent", [-2, -1, 0, 1, 2, 4, 8, 16, 28, 33, 34, 40, 45])
def test_masses_and_moments_on_many_draws(law: str, exponent: int, evidence: Any) -> None:
    """Twenty million draws: chi-square over the masses; of the fine ones, tails and the first four moments."""
    levels, total = np.array([4.0, 4.5, 5.0, 5.5]), 20_000_000
    evidence("noise", f"masses and moments, {law}, scale 2^{exponent}", tried=total, of="draws")
    p_values, beyond, sums = list[float](), np.zeros(len(levels)), np.zeros(4)
    source = seeded(1000 + exponent)
    for _ in range(20):
        draws = drawn(law, source, total // 20, exponent)
        p_values.append(lattice_p_value(law, draws, exponent))
        reals = draws / 2.0**exponent
        beyond += [np.count_nonzero(np.abs(reals) > level) for level in levels]
        sums += [np.sum(reals**power) for power in range(1, 5)]
    assert stats.combine_pvalues(np.clip(p_values, 1e-300, 1.0)).pvalue > LEVEL
    if exponent < 16:
        return
    for level, count in zip(levels, beyond, strict=True):
        assert stats.binomtest(int(count), total, 2 * LAWS[law].sf(level)).pvalue > LEVEL
    second, fourth, sixth, eighth = EVEN_MOMENTS[law]
    means = np.array([0.0, second, 0.0, fourth])
    variances = np.array([second, fourth, sixth, eighth]) - means**2
    assert np.all(np.abs(sums / total - means) < 4.5 * np.sqrt(variances / total))


@pytest.mark.audit
@pytest.mark.parametrize("law", LAWS)
def test_every_stage_agrees_on_many_draws(law: str, evidence: Any) -> None:
    evidence("noise", f"fast draws equal exact arithmetic, {law}", tried=5_000_000, of="draws")
    fast, exact = seeded(17), seeded(17, doubt=2**24)
    assert np.array_equal(drawn(law, fast, 5_000_000, FINEST), drawn(law, exact, 5_000_000, FINEST))
    assert exact.settled > 20_000


def test_the_programs_own_decimal_arithmetic_changes_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field of a context that is not given is that of the default one, which anybody may set."""
    plain = [drawn(law, seeded(7, doubt=2**31), 300, FINEST) for law in LAWS]
    settled = [seeded(7, doubt=2**62).gumbel((300,), FINEST), edge_sample()]
    default = decimal.DefaultContext
    monkeypatch.setattr(default, "rounding", decimal.ROUND_UP)
    monkeypatch.setattr(default, "Emin", -3)
    monkeypatch.setattr(default, "Emax", 3)
    monkeypatch.setitem(default.traps, decimal.Inexact, True)
    for name in ("_normal_table", "_laplace_table"):
        table = getattr(exact_noise, name)
        assert np.array_equal(table.__wrapped__().first, table().first)
    again = [drawn(law, seeded(7, doubt=2**31), 300, FINEST) for law in LAWS]
    assert np.array_equal(plain, again)
    for one, other in zip(
        settled, [seeded(7, doubt=2**62).gumbel((300,), FINEST), edge_sample()], strict=True
    ):
        assert np.array_equal(one, other)


def edge_sample() -> list[int]:
    """Gaps between those in a sample that float64 leaves in doubt."""
    return [participants._settled(2**63, rate, 9, lambda: 2**63) for rate in (0.5, 0.3, 0.01)]


@pytest.mark.parametrize("laplace", [False, True])
def test_few_draws_in_python_are_those_of_the_compiled_loop(laplace: bool) -> None:
    for exponent in (FINEST, 30, 3, -2):
        noise = [ExactNoise(np.random.PCG64(7)) for _ in range(2)]
        sizes = (1, 11, 3000, 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Compiled, "is_made", False)
            few = [noise[0]._draw((size,), exponent, laplace) for size in sizes]
            patch.setattr(exact_noise, "FEW", -1)
            compiled = [noise[1]._draw((size,), exponent, laplace) for size in sizes]
        for one, other in zip(few, compiled, strict=True):
            np.testing.assert_array_equal(one, other)
