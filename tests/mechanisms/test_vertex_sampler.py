import copy
import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.scale_checks import LEVEL, WRONG_SCALES, frequency_p_value, softmax

from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, NoEvent, SelectionsEvent
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.vertex_stream import VertexSampler

REFERENCE_SCORES = np.array([0.3, -1.2, 0.8, 0.0])


def full_batch(
    *, n: int, steps: int, power: float, scale: float, factor: int = 2, draws: int = 1
) -> VertexSampler:
    """beta_t = scale * t^power, linear weights, gradients clipped to [-1, 1], every unit in every item."""
    return VertexSampler.weighted_average(
        step_weights=[t + 1.0 for t in range(steps)],
        inverse_temperatures=[scale * t**power for t in range(steps)],
        draws=draws,
        half_range=1.0,
        sensitivities=factor * 2.0 / n,
    )


# Price ---------------------------------------------------------------------------------------------------------------


def two_players(items: int, sensitivity: float, participation: Any) -> float:
    """saddle-point reference 13.3: T = 10 steps, step 0.5, L = 1, one draw, both players."""
    sampler = VertexSampler(
        item_weights=(0.5 * sensitivity,) * items,
        temperatures=(1.0,) * 10,
        draws=(1,) * 10,
        participation=participation,
        largest_item=1.0 / sensitivity,
    )
    return 2 * sampler.rho()


def test_constant_step_schedules_have_their_reference_price() -> None:
    paper = two_players(10, 2 * 2 / 100, VertexSampler.one_item(10))
    single = two_players(9, 2 * 2 / 111, VertexSampler.one_item(9))
    full = two_players(10, 2 * 2 / 1000, VertexSampler.every_item(10))
    assert paper == pytest.approx(0.0009, rel=1e-9)
    assert single == pytest.approx(0.000730460190, abs=1e-12)
    assert full == pytest.approx(0.000285, rel=1e-9)


def test_epochs_are_priced_by_the_units_several_items() -> None:
    """E = 2 epochs over 5 batches of 200 units: K T^3 (1 + 1/E)(1 + 1/(2E)) / 3 in the limit; here exactly."""
    pattern = tuple((b, b + 5) for b in range(5))
    rho = two_players(10, 2 * 2 / 200, pattern) / 2
    shift = 0.5 * 2 * 2 / 200
    uses = [sum(1 for item in pattern[0] if item < t) for t in range(10)]
    assert rho == pytest.approx(sum((shift * u) ** 2 for u in uses) / 8, rel=1e-9)


def test_weighted_averages_over_the_full_batch_have_the_closed_price() -> None:
    for factor in (1, 2):
        sampler = full_batch(n=500, steps=12, power=0.5, scale=7.0, factor=factor, draws=3)
        closed = 3 * sum((2 * factor * 7.0 * math.sqrt(t) / 500) ** 2 for t in range(1, 12)) / 8
        assert sampler.rho() == pytest.approx(closed, rel=1e-9)
        assert sampler.event() == SelectionsEvent(sampler.rho(), sampler.pure_epsilon())


def test_a_single_pass_has_its_reference_price() -> None:
    """Saddle reference 5.1, one pass: rho = K (2 c L s)^2 / 8 max_r U2_r / B_r^2, with sqrt(U2) of 13.3 for T = 6."""
    roots = np.array([1.169520319523, 1.212893693244, 1.144552314226, 0.997775303140, 0.745355992500])
    sizes = np.array([22, 23, 22, 19, 14])
    sampler = VertexSampler.weighted_average(
        step_weights=[1.0, 2.0, 3.0, 4.0, 5.0],
        inverse_temperatures=[0.3 * math.sqrt(t) for t in range(6)],
        draws=2,
        half_range=1.0,
        sensitivities=(2 * 2.0 / sizes).tolist(),
        participation=VertexSampler.one_item(5),
    )
    expected = 2 * (2 * 2 * 0.3) ** 2 / 8 * np.max(roots**2 / sizes**2)
    assert sampler.rho() == pytest.approx(float(expected), rel=1e-10)


def test_the_first_step_and_zero_temperatures_are_free() -> None:
    assert full_batch(n=10, steps=1, power=0.5, scale=3.0).event() == NoEvent()
    assert full_batch(n=10, steps=6, power=0.5, scale=0.0).event() == NoEvent()


def test_the_rounding_of_the_scores_is_in_the_price() -> None:
    sampler = full_batch(n=10**6, steps=1000, power=0.5, scale=1.0)
    plain = sum((4 * math.sqrt(t) / 10**6) ** 2 for t in range(1, 1000)) / 8
    assert 1e-8 < sampler.rho() / plain - 1 < 1e-5


def test_draws_may_differ_from_step_to_step_and_both_currencies_count_them() -> None:
    sampler = VertexSampler.weighted_average(
        step_weights=[1.0, 2.0, 3.0],
        inverse_temperatures=[0.0, 1.0, 2.0, 3.0],
        draws=[5, 0, 2, 7],
        half_range=1.0,
        sensitivities=0.01,
    )
    assert sampler.rho() == pytest.approx((2 * 0.02**2 + 7 * 0.03**2) / 8, rel=1e-9)
    assert sampler.pure_epsilon() == pytest.approx(2 * 0.02 + 7 * 0.03, rel=1e-9)
    assert sampler.scaled(3.0).rho() == pytest.approx(9 * sampler.rho(), rel=1e-9)
    noise = NoiseSource(seed=79)
    state = sampler.open(noise, (6,))
    found = [sampler.draw(state, noise).shape]
    for _ in range(3):
        sampler.add(state, noise, np.zeros(6), 0.01)
        found.append(sampler.draw(state, noise).shape)
    assert found == [(5,), (0,), (2,), (7,)]


@pytest.mark.parametrize("mixture", [False, True])
def test_a_budget_without_delta_pays_by_pure_epsilon(mixture: bool) -> None:
    def event(scale: float) -> Event:
        return VertexSampler.weighted_average(
            step_weights=[1.0, 2.0, 3.0],
            inverse_temperatures=[math.sqrt(t) / scale for t in range(4)],
            draws=2,
            half_range=1.0,
            sensitivities=0.01,
            mixture=mixture,
        ).event()

    for budget in (Budget(1.0, 0.0), Budget(1.0, 2.5e-9)):
        plan = event(calibrate(event, budget, "replace-one"))
        assert 0.999 < Ledger(budget, "replace-one", plan=plan).epsilon() <= 1.0
        assert isinstance(plan, SelectionsEvent)
        if budget.delta == 0:
            assert plan.epsilon == pytest.approx(1.0, rel=1e-6)


def test_many_patterns_are_priced_in_no_time() -> None:
    sampler = VertexSampler.weighted_average(
        step_weights=[t + 1.0 for t in range(1000)],
        inverse_temperatures=[math.sqrt(t) for t in range(1001)],
        draws=1,
        half_range=1.0,
        sensitivities=0.01,
        participation=VertexSampler.one_item(1000),
    )
    assert sampler.rho() == pytest.approx(
        max(float(np.sum(sampler.range_bounds((item,)) ** 2)) / 8 for item in range(1000)), rel=1e-12
    )


# The stream ----------------------------------------------------------------------------------------------------------


def test_the_hidden_scores_are_the_weighted_average() -> None:
    sampler = full_batch(n=100, steps=4, power=0.5, scale=2.0)
    noise = NoiseSource(seed=75)
    items = np.cos(np.arange(20.0)).reshape(4, 5)
    state = sampler.open(noise, (5,))
    for t in range(4):
        above = items[:t] - items[:t].min(axis=1, keepdims=True)  # a constant changes no draw
        average = above.T @ np.arange(1, t + 1) / max(1, sum(range(1, t + 1)))
        assert np.allclose(
            sampler.temperatures[t] * state.private_scores, 2 * math.sqrt(t) * average, atol=1e-14
        )
        assert sampler.draw(state, noise).shape == (1,)
        assert sampler.add(state, noise, items[t], 0.04) is None
    assert not sampler.request("add").releases


def test_the_first_draw_is_uniform_and_later_ones_follow_the_scores() -> None:
    sampler = VertexSampler(
        item_weights=(1.0,),
        temperatures=(1.0, 1.5),
        draws=(20_000, 20_000),
        participation=VertexSampler.every_item(1),
        largest_item=10.0,
    )
    noise = NoiseSource(seed=76)
    state = sampler.open(noise, (4,))
    first = np.bincount(sampler.draw(state, noise), minlength=4)
    sampler.add(state, noise, -0.1 * REFERENCE_SCORES, 0.1)
    second = np.bincount(sampler.draw(state, noise), minlength=4)
    assert frequency_p_value(first, np.full(4, 0.25)) > LEVEL
    assert frequency_p_value(second, softmax(1.5 * REFERENCE_SCORES)) > LEVEL
    for wrong in WRONG_SCALES:
        assert frequency_p_value(second, softmax(1.5 * wrong * REFERENCE_SCORES)) < LEVEL


def test_steps_and_items_take_turns() -> None:
    sampler = full_batch(n=10, steps=2, power=0.5, scale=1.0)
    noise = NoiseSource(seed=77)
    state = sampler.open(noise, (3,))
    sampler.draw(state, noise)
    with pytest.raises(ValueError, match="drawn after 1 items"):
        sampler.draw(state, noise)
    with pytest.raises(ValueError, match="shape"):
        sampler.add(state, noise, np.zeros(2), 0.4)
    with pytest.raises(ValueError, match="sensitivity 0"):
        sampler.add(state, noise, np.zeros(3), 0.0)
    with pytest.raises(ValueError, match="infinite"):
        sampler.add(state, noise, np.zeros(3), math.inf)
    sampler.add(state, noise, np.zeros(3), 0.4)
    sampler.draw(state, noise)
    sampler.add(state, noise, np.zeros(3), 0.4)
    with pytest.raises(ValueError, match="all have been drawn"):
        sampler.draw(state, noise)
    with pytest.raises(ValueError, match="all have been added"):
        sampler.add(state, noise, np.zeros(3), 0.4)


def sampler_with(**changes: Any) -> VertexSampler:
    fields: dict[str, Any] = {
        "item_weights": (1.0, 1.0),
        "temperatures": (1.0, 1.0),
        "draws": (1, 1),
        "participation": ((0, 1),),
        "largest_item": 5.0,
    }
    return VertexSampler(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draws": (1,)}, "every step needs"),
        ({"item_weights": (1.0,) * 3}, "every step needs"),
        ({"temperatures": (1.0, math.inf)}, "finite and at least 0"),
        ({"item_weights": (1.0, -1.0)}, "finite and at least 0"),
        ({"draws": (1, -1)}, "number of draws"),
        ({"participation": ((0,),)}, "participation"),
        ({"participation": ((0, 1, 2),)}, "participation"),
        ({"largest_item": 0.1}, "largest_item"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sampler_with(**changes)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        full_batch(n=10, steps=2, power=0.5, scale=1.0, factor=0)
    with pytest.raises(ValueError, match="one step more"):
        VertexSampler.weighted_average(
            step_weights=[1.0], inverse_temperatures=[0.0] * 3, draws=1, half_range=1.0, sensitivities=0.1
        )
    with pytest.raises(ValueError, match="vertices"):
        sampler_with().open(NoiseSource(seed=1), (0,))


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_the_hidden_state_stays_hidden(duplicate: Any) -> None:
    state = sampler_with().open(NoiseSource(seed=78), (3,))
    assert repr(state) == "<private>"
    assert repr(sampler_with()) == "VertexSampler(steps=2, draws=2, rho=0.125)"
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        duplicate(state)


# Mixtures ------------------------------------------------------------------------------------------------------------


def mixed(draws: tuple[int, ...], temperatures: tuple[float, ...]) -> VertexSampler:
    return VertexSampler(
        item_weights=(4.0,) * (len(draws) - 1),
        temperatures=temperatures,
        draws=draws,
        participation=VertexSampler.every_item(len(draws) - 1),
        largest_item=0.5,
        mixture=True,
    )


def test_a_mixture_is_charged_at_the_largest_range_so_far() -> None:
    sampler = mixed((1, 2, 3, 4), (9.0, 0.1, 0.3, 0.05))
    assert sampler.range_bounds((0, 1, 2)) == pytest.approx([0.0, 0.4, 2.4, 2.4], rel=1e-9)
    assert sampler.rho() == pytest.approx((2 * 0.4**2 + 7 * 2.4**2) / 8, rel=1e-9)
    assert sampler.pure_epsilon() == pytest.approx(2 * 0.4 + 7 * 2.4, rel=1e-9)


def test_a_draw_from_the_average_of_two_softmaxes_has_the_reference_divergence() -> None:
    """Saddle reference 13.2, mixture: t = 2, d = 3, B = 1, step 0.7, gradients in {-1, 1}^3."""
    sampler = mixed((0, 1), (0.0, 0.7))

    def law(gradient: tuple[int, ...]) -> NDArray[np.float64]:
        noise = NoiseSource(seed=80)
        state = sampler.open(noise, (3,))
        parts = []
        for _ in range(2):
            parts.append(softmax(-sampler.temperatures[state.drawn] * state.private_scores))
            sampler.draw(state, noise)
            if state.added == 0:
                sampler.add(state, noise, np.array(gradient, dtype=float), 4.0)
        return np.mean(parts, axis=0)

    laws = [law(gradient) for gradient in itertools.product((-1, 1), repeat=3)]
    worst = max(
        math.log(np.sum(p**order * q ** (1 - order))) / (order - 1) / order
        for p in laws
        for q in laws
        for order in (1.01, 1.5, 2.0, 4.0, 8.0)
    )
    assert worst == pytest.approx(0.190, abs=5e-4)
    assert sampler.rho() == pytest.approx(0.98, rel=1e-9)
    assert worst <= sampler.rho()


def test_vertices_of_a_mixture_follow_the_average_of_the_softmaxes() -> None:
    sampler = mixed((0, 0, 30_000), (1.0, 0.3, 0.5))
    noise = NoiseSource(seed=81)
    state = sampler.open(noise, (4,))
    parts = []
    for t in range(3):
        parts.append(softmax(-sampler.temperatures[t] * state.private_scores))
        found = sampler.draw(state, noise)
        if t < 2:
            assert found.shape == (0,)
            sampler.add(state, noise, np.cos(np.arange(4.0) + 3 * t), 1.0)
    counts = np.bincount(found, minlength=4)
    assert frequency_p_value(counts, np.mean(parts, axis=0)) > LEVEL
    for part in parts:
        assert frequency_p_value(counts, part) < LEVEL


# An exact audit ------------------------------------------------------------------------------------------------------


class ChosenIndex(NoiseSource):
    """Words that make a two-vertex draw give the wanted index."""

    wanted = 0

    def words(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        return np.full(shape, 0 if self.wanted == 0 else 2**53 - 1)


def transcript_probability(
    make: Callable[[], VertexSampler],
    mean_payoff: Callable[[int], NDArray[np.float64]],
    sensitivity: float,
    plays: tuple[tuple[int, int], ...],
) -> float:
    """The probability of these plays in a 2 x 2 game, from the samplers' own hidden scores."""
    samplers, noise = (make(), make()), ChosenIndex()
    states = [sampler.open(noise, (2,)) for sampler in samplers]
    probability = 1.0
    for t, (row, column) in enumerate(plays):
        for sampler, state, index in zip(samplers, states, (row, column), strict=True):
            probability *= softmax(-sampler.temperatures[t] * state.private_scores)[index]
            noise.wanted = index
            assert sampler.draw(state, noise).tolist() == [index]
        if t < len(samplers[0].item_weights):
            payoff = mean_payoff(t)
            for sampler, state, gradient in zip(
                samplers, states, (payoff[:, column], -payoff[row]), strict=True
            ):
                sampler.add(state, noise, gradient - np.mean(gradient), sensitivity)
    return probability


@pytest.mark.at_once("full-2-1.43")
@pytest.mark.parametrize(
    ("schedule", "factor", "expected"),
    [("full", 2, 1.430), ("full", 1, 0.3684), ("pass", 2, 2.564), ("pass", 1, 0.6973)],
)
def test_the_price_bounds_the_renyi_divergence_of_all_transcripts(
    schedule: str, factor: int, expected: float
) -> None:
    """Saddle reference 13.2, tight: 4 steps, all 256 transcripts, on both data sets. Both players are charged."""
    units = 6 if schedule == "full" else 8
    batch = 6 if schedule == "full" else 2
    table = np.array([[0.0, 2.0], [-2.0, 0.0]])
    sensitivity = factor * 2.0 / batch
    neighbour = -table if factor == 2 else 0 * table

    def sampler() -> VertexSampler:
        items = 4 if schedule == "full" else 3
        return VertexSampler.weighted_average(
            step_weights=[1.0, 2.0, 3.0, 4.0][:items],
            inverse_temperatures=[1.5 * math.sqrt(t) for t in range(4)],
            draws=1,
            half_range=1.0,
            sensitivities=sensitivity,
            participation=None if schedule == "full" else VertexSampler.one_item(3),
        )

    def law(record: NDArray[np.float64], position: int) -> NDArray[np.float64]:
        def mean_payoff(t: int) -> NDArray[np.float64]:
            present = schedule == "full" or t == position // batch
            return record / batch if present else 0 * record

        moves = list(itertools.product((0, 1), (0, 1)))
        return np.array(
            [
                transcript_probability(sampler, mean_payoff, sensitivity, plays)
                for plays in itertools.product(moves, repeat=4)
            ]
        )

    one = sampler()
    rho, scale = 2 * one.rho(), np.array([0.0, *(1.5 * math.sqrt(t) for t in (1, 2, 3))])
    worst = 0.0
    for position in range(0, 1 if schedule == "full" else units - batch, batch):
        laws = law(table, position), law(neighbour, position)
        assert all(p.sum() == pytest.approx(1.0) for p in laws)
        for p, q in (laws, laws[::-1]):
            for order in (1.01, 1.5, 2.0, 4.0, 8.0):
                worst = max(worst, math.log(np.sum(p**order * q ** (1 - order))) / (order - 1) / order)
    assert worst <= rho
    assert worst == pytest.approx(expected, abs=6e-4)
    assert rho == pytest.approx({"full": 0.375, "pass": 0.734375}[schedule] * factor**2, rel=1e-9)
    # Wrong prices that the audit would find: ranges halved (c = 1 for 2, or L for 2 L), one player forgotten, and the
    # last item's weight in place of all that a unit has moved.
    last = np.array([0.0, *(one.item_weights[t - 1] * one.temperatures[t] for t in (1, 2, 3))])
    assert last[1] == pytest.approx(scale[1] * sensitivity)
    wrong = [rho / 4, rho / 2]
    wrong += [2 * float(np.sum(last**2)) / 8] if schedule == "full" else [2 * float(np.max(last**2)) / 8]
    assert all(price < worst for price in wrong)


# What is declared is held -----------------------------------------------------------------------------------------


def test_a_step_without_draws_hides_no_price() -> None:
    """0 draws at an infinite range cost nothing; what the other steps cost must not be lost in 0 times infinity."""
    sampler = VertexSampler(
        item_weights=(5.0, 1.0),
        temperatures=(0.0, 1.0, 1e200),
        draws=(1, 100, 0),
        participation=((0, 1),),
        largest_item=1.0,
    )
    assert sampler.pure_epsilon() == pytest.approx(500.0)
    event = sampler.event()
    assert isinstance(event, SelectionsEvent)
    assert event.rho == pytest.approx(100 * 25 / 8)


def test_a_schedule_cannot_be_changed_after_it_was_priced() -> None:
    draws: Any = [1, 1]
    sampler = VertexSampler(
        item_weights=(1.0,), temperatures=(0.0, 1.0), draws=draws, participation=((0,),), largest_item=1.0
    )
    draws[1] = 1000
    assert sampler.draws == (1, 1)


def test_items_are_held_to_their_declared_size_and_lose_nothing_within_it() -> None:
    sampler = VertexSampler(
        item_weights=(1.0,), temperatures=(0.0, 1.0), draws=(1, 1), participation=((0,),), largest_item=2.0
    )
    for item, kept in (
        ([1e17, 1e17 + 64.0, 1e17 + 16.0], [0.0, 4.0, 4.0]),
        ([-2.0, 2.0, 1.0], [0.0, 4.0, 3.0]),
        ([5.0, 5.0, 5.5], [0.0, 0.0, 0.5]),
        ([0.0, 1e300, math.nan], [0.0, 4.0, 0.0]),
    ):
        state = sampler.open(NoiseSource(seed=0), (3,))
        sampler.draw(state, NoiseSource(seed=0))
        sampler.add(state, NoiseSource(seed=0), np.array(item), 1.0)
        np.testing.assert_array_equal(state.private_scores, kept)


def test_holding_items_to_their_size_widens_no_range() -> None:
    rng = np.random.default_rng(0)
    sampler = VertexSampler(
        item_weights=(1.0,), temperatures=(0.0, 1.0), draws=(1, 1), participation=((0,),), largest_item=1.0
    )
    for _ in range(500):
        item = rng.normal(size=4) * 10.0 ** rng.uniform(-2, 2)
        other = item + rng.normal() * 10.0 ** rng.uniform(-2, 3) + rng.uniform(0, 1, 4)
        scores = []
        for one in (item, other):
            state = sampler.open(NoiseSource(seed=0), (4,))
            sampler.draw(state, NoiseSource(seed=0))
            sampler.add(state, NoiseSource(seed=0), one, 1.0)
            scores.append(state.private_scores)
        assert np.ptp(scores[0] - scores[1]) <= np.ptp(item - other) * (1 + 1e-9) + 1e-9


def test_the_chances_that_an_audit_compares_are_those_of_the_draws() -> None:
    sampler = full_batch(n=50, steps=2, power=0.0, scale=1.5, draws=2000)
    noise = NoiseSource(2)
    state = sampler.open(noise, (4,))
    sampler.draw(state, noise)
    sampler.add(state, noise, REFERENCE_SCORES, 0.1)
    chances = np.exp(sampler.log_chances(state))
    assert np.sum(chances) == pytest.approx(1.0)
    drawn = sampler.draw(state, noise)
    assert np.bincount(drawn, minlength=4) / len(drawn) == pytest.approx(chances, abs=0.05)
