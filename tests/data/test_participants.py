"""Who takes part, as exactly as it is priced: the argument of `data.participants`, tried at its edges."""

import itertools
import math
import tracemalloc
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from randomgen import UserBitGenerator
from scipy import stats
from tests.support.scale_checks import LEVEL, frequency_p_value

from privopt.data import participants
from privopt.data.participants import drawn_positions, poisson_positions
from privopt.ledger.events import EveryUnit, FixedSize, Poisson
from privopt.mechanisms.noise import NoiseSource

RATES = [5e-324, 1e-20, 1e-9, 1e-3, 0.3, 0.9999, 1 - 2**-53]


class Script:
    """A generator whose words are these, then those of a cipher."""

    def __init__(self, *words: int) -> None:
        self._words, self._rest = list(words), NoiseSource(3).units_generator.bit_generator
        self.bit_generator, self.read = SimpleNamespace(random_raw=self._raw), 0

    def _raw(self, size: int | None = None) -> Any:
        count = 1 if size is None else size
        ahead, self._words = self._words[:count], self._words[count:]
        self.read += count
        words = np.concatenate([np.array(ahead, np.uint64), self._rest.random_raw(count - len(ahead))])
        return words if size is not None else int(words[0])


def generator(seed: int) -> np.random.Generator:
    return NoiseSource(seed).units_generator


def positions(rate: float, count: int, *words: int) -> NDArray[np.int64]:
    source: Any = Script(*words)
    return poisson_positions(rate, count, source)


@pytest.mark.later("5e-324")
@pytest.mark.parametrize("rate", RATES)
def test_the_fast_stage_gives_the_gaps_of_exact_arithmetic(rate: float) -> None:
    ends = [0, 1, 2, 2**64 - 1, 2**64 - 2**11, 2**63]
    words = [*ends, *generator(4).bit_generator.random_raw(60).tolist()]
    for word in words:
        places = np.empty(10**6, np.int64)
        used, found, after, doubtful = participants._fill(
            np.array([word], np.uint64), 0, rate, places, 0, 0, 10**6
        )
        exact = participants._settled(word, rate, 10**6, lambda: 2**63)
        assert doubtful or (used, found) == (1, int(exact < 10**6))
        assert doubtful or after == min(exact + 1, 10**6)
    assert not doubtful


@pytest.mark.parametrize(("rate", "gap"), [(0.25, 1), (0.25, 7), (1e-3, 40), (0.5 + 2**-53, 3), (2**-40, 2)])
def test_a_gap_in_doubt_is_decided_by_further_words(rate: float, gap: int) -> None:
    """U next to (1 - p)^j, in rational arithmetic: at least j gaps below it, fewer above."""
    edge = math.floor((1 - Fraction(rate)) ** gap * 2**192)
    for nudge, expected in ((-2, gap), (2, gap - 1)):
        words = [(edge + nudge) >> 64 * i & (2**64 - 1) for i in (2, 1, 0)]
        assert participants._settled(words[0], rate, 10**6, iter([*words[1:], 0]).__next__) == expected


def test_a_rate_is_not_rounded_to_a_multiple_of_the_last_bit_of_a_uniform_number() -> None:
    """Comparing uniform float64 numbers with this rate would take it for a third more than it is."""
    rate = 1.5 * 2.0**-53
    edge = math.floor((1 - Fraction(rate)) * 2**128)  # the first unit joins if U > 1 - rate
    for nudge, gap in ((-2, 1), (2, 0)):
        high, low = divmod(edge + nudge, 2**64)
        assert participants._settled(high, rate, 1, iter([low, 0]).__next__) == gap


def test_a_gap_in_doubt_reads_more_words_and_goes_on() -> None:
    assert positions(0.3, 10, 0).size == 0
    assert positions(0.3, 10, 2**64 - 1, 2**64 - 1)[:2].tolist() == [0, 1]


@pytest.mark.parametrize(("rate", "count"), [(0.2, 12), (0.75, 12), (0.01, 400)])
def test_units_join_independently_with_the_rate(rate: float, count: int) -> None:
    source, times = generator(7), 6000
    joined = np.zeros((times, count), bool)
    for row in joined:
        drawn = poisson_positions(rate, count, source)
        assert np.all(np.diff(drawn) > 0)
        row[drawn] = True
    sizes = np.bincount(joined.sum(axis=1), minlength=count + 1)
    assert frequency_p_value(sizes, stats.binom.pmf(np.arange(count + 1), count, rate)) > LEVEL
    assert frequency_p_value(sizes, stats.binom.pmf(np.arange(count + 1), count, rate * 1.1)) < LEVEL
    assert stats.binomtest(int(joined[:, -1].sum()), times, rate).pvalue > LEVEL
    together = int(np.count_nonzero(joined[:, 3] & joined[:, 4]))
    assert stats.binomtest(together, times, rate**2).pvalue > LEVEL


def test_everybody_nobody_and_seeds() -> None:
    assert poisson_positions(1.0, 5, generator(1)).tolist() == [0, 1, 2, 3, 4]
    assert poisson_positions(0.5, 0, generator(1)).size == 0
    assert poisson_positions(5e-324, 1000, generator(1)).size == 0
    first, again = (poisson_positions(0.01, 10**5, generator(9)) for _ in range(2))
    assert np.array_equal(first, again)


def test_every_kind_of_sampling_is_drawn() -> None:
    def drawn(sampling: Any, n: int = 8, there: int = 6) -> NDArray[np.int64]:
        return drawn_positions(sampling, generator(2), n=n, private_count=there)

    assert drawn(EveryUnit()).tolist() == list(range(6))
    assert drawn(FixedSize(8, 8)).tolist() == list(range(6))
    assert len(drawn(FixedSize(3, 8), there=8)) == 3
    assert np.array_equal(drawn(Poisson(0.5)), poisson_positions(0.5, 6, generator(2)))


def test_bounded_integers_reject_the_surplus_of_a_word() -> None:
    """Lemire: with 3 outcomes, of 2^32 words the one whose product leaves 0 below is thrown away."""
    script = iter([0, 2**63, 2**62, 0, 0, 0])
    bits: Any = UserBitGenerator(lambda _: next(script), 64)
    source = np.random.Generator(bits)
    assert source.integers(0, 3) in (0, 1, 2)
    left = len(list(script))
    assert left < 5  # the first word alone did not decide


def test_room_that_was_too_small_is_made_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [poisson_positions(rate, 3000, generator(5)) for rate in (0.001, 0.2, 0.99)]
    monkeypatch.setattr(participants, "_likely", lambda expected: 3)
    for rate, whole in zip((0.001, 0.2, 0.99), expected, strict=True):
        assert np.array_equal(poisson_positions(rate, 3000, generator(5)), whole)


@pytest.mark.parametrize("count", [5, 2**33 + 7, 2**63 - 25])
def test_selection_compares_the_integers_of_exact_arithmetic(count: int) -> None:
    """One word a position: thrown away, or an integer below what is left, as multiplied out by hand."""
    words = [0, 1, 2**63, 2**64 - 1, *generator(6).bit_generator.random_raw(300).tolist()]
    wanted, place, taken = count // 2 if count < 2**33 else 90, count - 5 if count < 2**33 else 0, 0
    for word in words:
        high, low = divmod(word * (count - place), 2**64)
        room = np.zeros(wanted if count < 2**33 else 100, np.int64)
        before = len(room) - min(wanted - taken, len(room))
        found, after = participants._select(np.array([word], np.uint64), room, before, place, count)
        rejected = low < 2**64 % (count - place)
        assert after == place + (not rejected)
        assert found - before == (not rejected and high < len(room) - before)


def test_large_batches_are_uniform_subsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every subset of 3 out of 6 positions; of more than fit a handful of words at a time."""
    monkeypatch.setattr(participants, "_SHUFFLED", 5)
    monkeypatch.setattr(participants, "_WORDS", 4)
    source, subsets = generator(8), list(itertools.combinations(range(6), 3))
    drawn = [tuple(participants.fixed_positions(3, 6, source).tolist()) for _ in range(8000)]
    counts = np.array([drawn.count(subset) for subset in subsets])
    assert counts.sum() == 8000
    assert frequency_p_value(counts, np.full(20, 0.05)) > LEVEL
    assert participants.fixed_positions(6, 6, source).tolist() == list(range(6))


def test_a_large_batch_takes_memory_for_itself_alone() -> None:
    count, batch = participants._SHUFFLED + 1, participants._SHUFFLED // 16
    participants.fixed_positions(batch, count, generator(2))  # compiles
    tracemalloc.start()
    drawn = participants.fixed_positions(batch, count, generator(2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(drawn)) == batch
    assert drawn[0] >= 0
    assert drawn[-1] < count
    assert peak < 8 * batch + 2**21
    halves = np.array([np.count_nonzero(drawn < count // 2), np.count_nonzero(drawn >= count // 2)])
    assert frequency_p_value(halves, np.array([0.5, 0.5])) > LEVEL


@pytest.mark.audit
@pytest.mark.parametrize(("count", "batch"), [(40, 3), (40, 20), (40, 38)])
def test_large_batches_are_uniform_on_many_draws(
    count: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chi-square of the gaps between those taken, whose law is that of a uniform subset, and of the positions."""
    monkeypatch.setattr(participants, "_SHUFFLED", 1)
    monkeypatch.setattr(participants, "_WORDS", 64)
    source, times = generator(12), 30_000
    drawn = np.stack([participants.fixed_positions(batch, count, source) for _ in range(times)])
    first = np.bincount(drawn[:, 0], minlength=count)
    law = np.array([math.comb(count - 1 - k, batch - 1) / math.comb(count, batch) for k in range(count)])
    assert frequency_p_value(first, law) > LEVEL
    middle = np.bincount(drawn[:, batch // 2], minlength=count)
    at = batch // 2
    law = np.array(
        [math.comb(k, at) * math.comb(count - 1 - k, batch - 1 - at) for k in range(count)], np.float64
    ) / math.comb(count, batch)
    assert frequency_p_value(middle, law) > LEVEL


@pytest.mark.audit
@pytest.mark.parametrize("rate", [0.5, 0.1, 1e-3])
def test_gaps_are_geometric_on_many_draws(rate: float) -> None:
    """Chi-square against the exact law, in cells of about equal mass."""
    source = generator(11)
    drawn = np.concatenate(
        [np.diff(poisson_positions(rate, int(200_000 / rate), source)) - 1 for _ in range(20)]
    )
    edges = np.unique(np.floor(np.log(np.linspace(1, 0.01, 60)) / math.log1p(-rate)).astype(np.int64))
    cells = np.bincount(np.searchsorted(edges, drawn, side="right"), minlength=len(edges) + 1)[1:]
    above = np.exp(np.append(edges, np.inf) * math.log1p(-rate))
    assert frequency_p_value(cells, -np.diff(above)) > LEVEL
