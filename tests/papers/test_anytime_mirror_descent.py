"""Anytime mirror descent: a reference value with exact means, exact counts of draws, and the cap on its step."""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from tests.support.sparse_rows import InOrder, logistic_loss, reference_signs

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import NonPrivateEvent
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.papers.anytime_mirror_descent import AnytimeMirrorDescent, schedule
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.constraints import L1Ball, L2Ball
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.solve import minimize

BALL = Problem(losses.logistic, constraint=L1Ball(2.0))
BUDGET = Budget(1.0, 1e-6)
PUBLIC = Public(n=20_000, d=500)


class MeanSampler(VertexSampler):
    """Releases the weights of the average of the softmaxes so far, in place of draws. Not private."""

    def event(self):
        return NonPrivateEvent()

    def draw(self, state, noise):
        del noise
        private_masses = np.exp(self._logits(state, state.drawn))
        state.private_items[state.drawn] = private_masses / private_masses.sum()
        state.drawn += 1
        return np.mean(list(state.private_items.values()), axis=0)


@dataclass(frozen=True, kw_only=True)
class OfMeans(AnytimeMirrorDescent):
    """The same with every draw replaced by its mean."""

    def stream(self, public):
        drawn = super().stream(public)
        return MeanSampler(**{field.name: getattr(drawn, field.name) for field in fields(drawn)})

    def point(self, drawn):
        return self.vertices.mix(drawn)


def test_reference_value_of_the_means():
    rows, labels = reference_signs(24)
    units = Units.from_arrays(rows, labels, row_bound=2.0, storage="float64")
    clip = 10.0  # no gradient is so long
    solver = OfMeans(steps=6, interval=2, draws=1, clip=clip, noise_multiplier=1.0)
    solver = solver.filled(Instance(BALL, units.public, BUDGET))
    # tau = 1/2 times slopes along vertices of radius 2, of half-range 2 * clip
    multiplier = solver.step_of(units.public, 0.5) / (0.5 * 2.0 * clip)
    solver = replace(solver, noise_multiplier=multiplier)
    free = Budget(math.inf, 1e-6)
    ledger = Ledger(free, "replace-one", plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger, noise=InOrder(0)), BALL)
    expected = [0.323217649540, 0.101974629718, -0.447482616994]
    np.testing.assert_allclose(result.params, expected, atol=1e-8)
    assert logistic_loss(rows, labels, result.params) == pytest.approx(0.494003678216, abs=1e-8)


@pytest.mark.parametrize(("steps", "interval"), [(12, 3), (12, 1), (12, 12), (13, 3), (2, 5)])
def test_draws_are_counted_exactly(steps, interval):
    draws = schedule(steps, interval, 7)
    assert draws[0] == draws[-1] == 7
    if steps % interval == 0:
        assert sum(draws[1:]) == 7 * (interval + steps // interval - 2)
    public = replace(PUBLIC, n=1000)
    solver = AnytimeMirrorDescent(steps=steps, interval=interval, draws=7, noise_multiplier=2.0)
    stream = solver.filled(Instance(BALL, public, BUDGET)).stream(public)
    ranges = stream.range_bounds((0,))
    np.testing.assert_allclose(ranges[1:], ranges[1], rtol=1e-9)  # one unit, one batch, wherever it draws
    assert ranges[0] == 0.0
    assert stream.rho() == pytest.approx(sum(draws[1:]) * ranges[1] ** 2 / 8.0, rel=1e-9)
    assert stream.rho() == pytest.approx(1.0 / 8.0, rel=1e-9)
    late = stream.range_bounds((steps - 2,))
    assert np.count_nonzero(late > 1e-6) == 1  # the last batch is in the last draw only


def test_theory_s_settings_and_its_cap():
    second = AnytimeMirrorDescent().configure(Instance(BALL, PUBLIC, BUDGET))
    logarithm = math.log(1000)
    steps = 20_000 / (logarithm * math.sqrt(math.log(1e6)))
    assert second.interval == round(math.sqrt(steps / logarithm))
    assert second.steps == int(steps) // second.interval * second.interval
    assert second.draws == round(second.steps / second.interval)
    first = AnytimeMirrorDescent(smooth="first order").configure(Instance(BALL, PUBLIC, BUDGET))
    steps = 20_000**0.8 / (logarithm * math.log(1e6)) ** 0.4
    assert first.interval == round(math.sqrt(steps) / logarithm)
    assert first.draws == round(first.steps / logarithm)
    for solver, budget in ((second, BUDGET), (first, BUDGET)):
        plan = solver.plan(Instance(BALL, PUBLIC, budget))
        step = solver.step_of(PUBLIC, 0.5 / solver.noise_multiplier**2)
        assert step <= solver.longest_by_theory() * (1.0 + 1e-9)
        capped = step > solver.longest_by_theory() * (1.0 - 1e-6)
        assert any("is not spent" in note for note in plan.notices) == capped
        assert (plan.epsilon >= 0.999 * budget.epsilon) == (not capped)
        assert plan.epsilon <= budget.epsilon
    generous = AnytimeMirrorDescent(steps=4, interval=2, draws=1).plan(
        Instance(BALL, PUBLIC, Budget(5.0, 1e-6))
    )
    assert generous.epsilon < 4.0
    assert any("is not spent" in note for note in generous.notices)
    given = AnytimeMirrorDescent(steps=4, interval=2, draws=1, noise_multiplier=0.3)
    assert given.configure(Instance(BALL, PUBLIC, BUDGET)).noise_multiplier == 0.3


def test_small_and_odd_runs():
    rng = np.random.default_rng(0)
    units = Units.from_arrays(rng.normal(size=(30, 3)), np.sign(rng.normal(size=30)), row_bound=1.0)
    for steps, epsilon in ((0, 0.0), (1, 0.0)):
        result = minimize(
            BALL, units, budget=BUDGET, solver=AnytimeMirrorDescent(steps=steps, draws=1), random_state=0
        )
        assert result.plan.epsilon == epsilon
    assert np.sum(np.abs(np.asarray(result.params))) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="at most 16 steps"):
        minimize(BALL, units, budget=BUDGET, solver=AnytimeMirrorDescent(steps=17))
    with pytest.raises(ValueError, match="draws vertices of an l1 ball"):
        minimize(
            Problem(losses.logistic, constraint=L2Ball(2.0)),
            units,
            budget=BUDGET,
            solver="anytime-mirror-descent",
        )
    free = minimize(
        BALL, units, budget=Budget(math.inf, 1e-6), solver="anytime-mirror-descent", random_state=0
    )
    assert np.sum(np.abs(np.asarray(free.params))) <= 2.0 * (1 + 1e-12)
    usual = minimize(BALL, units, budget=BUDGET, solver="anytime-mirror-descent", random_state=0)
    assert accounting.epsilon(usual.plan.event, 1e-6, "replace-one") <= 1.0
