from dataclasses import replace

import numpy as np
import pytest
from tests.reference.promises import (
    NO_PRIVACY,
    assert_costs,
    assert_rehearses,
    assert_replays,
    assert_tight,
    hostile_rows,
    largest_move,
    solve,
)
from tests.reference.single_pass_o2nc import (
    SinglePassO2NC,
    SmoothedDifference,
    SmoothedGradient,
    period_noise,
)
from tests.support.formula_noise import FormulaNoise, silence

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.gaussian_dp import gaussian_epsilon
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian

N, D = 40, 3
SOLVER = SinglePassO2NC(
    steps=8,
    period=4,
    first_batch=8,
    later_batch=4,
    averaged=4,
    radius=0.05,
    step_size=0.1,
    smoothing=0.2,
    clip=1.0,
    difference_clip=1.0,
    noise_multiplier=3.0,
)
SILENT = replace(SOLVER, noise_multiplier=0.0)


def records():
    i, j = np.arange(1, N + 1)[:, None], np.arange(1, D + 1)[None, :]
    rows = np.cos(0.7 * i * j) + 0.1 * j
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, 1.5 * np.abs(np.sin(np.arange(1, N + 1)))


def as_units(rows, targets, relation="replace-one"):
    return Units.from_arrays(rows, targets, relation=relation, row_bound=1.0, n=len(rows))


def close(found, expected):
    """The rows are stored in float32, the references were computed on float64 rows."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=6e-8)


def test_smoothed_gradients_have_their_reference_values():
    units = as_units(*records())
    curator = LocalCurator(units, Ledger(NO_PRIVACY, "replace-one"))
    at = np.array([0.3, -0.2, 0.5])
    common = {"smoothing": 0.2, "clip": 1.0}
    gradient = curator.release(SmoothedGradient(at=at, **common), Gaussian(0.0))
    close(gradient, [-0.2316410979, 0.0878943716, -0.1244579626])
    moved = SmoothedDifference(at=at, anchor=at + np.array([0.02, 0.01, -0.03]), **common)
    close(curator.release(moved, Gaussian(0.0)), [0.0117638433, 0.0024480972, 0.0026128687])


def test_without_noise_and_clipping_the_outputs_have_their_reference_values():
    units = as_units(*records())
    plan = SILENT.event(units.public)
    result = solve(SILENT.solve, units, plan=plan, budget=NO_PRIVACY, noise=FormulaNoise(silence))
    close(
        result.params,
        [[0.0068227029, 0.0004857898, 0.0074720191], [0.0779959272, 0.0065900437, 0.0804736577]],
    )


def test_with_formula_noise_on_every_prefix_the_outputs_have_their_reference_values():
    """The noise 0.05 cos(t + 2 j) on the released sums, carried back through strategy and sensitivities."""
    units = as_units(*records())
    t, j = np.arange(1, 9)[:, None], np.arange(1, 4)[None, :]
    on_sums = 0.05 * np.cos(t + 2 * j)
    on_items = on_sums - np.where((t - 1) % 4 == 0, 0.0, np.roll(on_sums, 1, axis=0))
    scales = SOLVER.noise_multiplier * SOLVER.sensitivities(units.public)
    draws = SOLVER.stream().strategy @ (on_items / scales[:, None])
    noise = FormulaNoise(lambda k, shape: draws[k])
    result = solve(SOLVER.solve, units, plan=SOLVER.event(units.public), noise=noise)
    close(
        result.params,
        [[0.0141887370, -0.0041860683, 0.0039183638], [0.1099766627, -0.0321810421, 0.0753279363]],
    )


def test_released_sums_carry_noise_of_the_reference_scale():
    """With independent unit vectors for normals, the norm of a released sum of zeros is its standard deviation."""
    expected = [
        0.0400000000,
        0.0420410519,
        0.0425360148,
        0.0428119168,
        0.0430024739,
        0.0431478004,
        0.0432651570,
        0.0433635236,
    ]
    np.testing.assert_allclose(period_noise(0.02, 0.005, 8, 0.5), expected, atol=6e-11)
    solver = replace(
        SOLVER,
        period=8,
        first_batch=100,
        later_batch=100,
        averaged=8,
        difference_clip=0.25,
        noise_multiplier=2.0,
    )
    units = as_units(np.zeros((800, D)), np.zeros(800))
    np.testing.assert_allclose(solver.sensitivities(units.public), [0.02] + [0.005] * 7)
    variances = np.zeros(8)
    for columns in np.split(np.eye(8, 9), 3, axis=1):
        noise = FormulaNoise(lambda k, shape, columns=columns: columns[k])
        result = solve(solver.solve, units, plan=solver.event(units.public), noise=noise)
        sums = [release.released[0] for release in result.transcript if release.name == "PrefixSum.add"]
        variances += np.sum(np.square(sums), axis=1)
    np.testing.assert_allclose(np.sqrt(variances), expected, atol=6e-11)


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_replay_and_price(relation):
    units = as_units(*records(), relation)
    plan = SOLVER.event(units.public)
    result = solve(SOLVER.solve, units, plan=plan)
    assert_replays(SOLVER.solve, result, units.public)
    assert_costs(result, plan, units.public)
    assert_rehearses(SOLVER.solve, plan, units.public)
    assert result.transcript.epsilon(1e-6) == gaussian_epsilon(1 / 3, 1e-6)  # one Gaussian release


@pytest.mark.parametrize("kind", hostile_rows(np.ones(D)))
def test_no_record_moves_an_item_by_more_than_its_sensitivity(kind):
    rows, targets = records()
    other, clipped = rows.copy(), replace(SOLVER, clip=0.4, difference_clip=0.02)
    other[7] = hostile_rows(rows[3])[kind]
    left, right = as_units(rows, targets), as_units(other, targets)
    assert largest_move(clipped.solve, left, right, plan=clipped.event(left.public)) <= 1.0


def test_the_audit_notices_an_understated_sensitivity():
    """At the start the smoothed slope of a record far from its target is -1/2: clipped to 0.3, and turned."""
    clipped = replace(SOLVER, clip=0.3)
    rows = np.tile([0.6, 0.0, 0.8], (N, 1))
    other = rows.copy()
    other[2] = -rows[2]  # of the first batch: blocks are drawn in order
    left, right = (as_units(x, np.full(N, 5.0)) for x in (rows, other))
    plan = clipped.event(left.public)
    assert_tight(clipped.solve, left, right, plan=plan, noise=FormulaNoise(silence))


def test_a_unit_enters_the_stream_once():
    units = as_units(*records())
    item = SmoothedGradient(at=np.zeros(D), smoothing=0.2, clip=1.0)
    curator = LocalCurator(units, Ledger(NO_PRIVACY, "replace-one"))
    stream = curator.stream("prefix sums", SILENT.stream(), (D,))
    first, second = curator.blocks(2)
    stream.ask("add", item, on=first)
    with pytest.raises(ValueError, match="would hold units of earlier items"):
        stream.ask("add", item)
    with pytest.raises(ValueError, match="would hold units of earlier items"):
        stream.ask("add", item, on=first.blocks(2)[1])
    with pytest.raises(ValueError, match="would hold units of earlier items"):
        stream.ask("add", item, on=curator.blocks(4)[2])
    inner, outer = second.blocks(2)
    stream.ask("add", item, on=inner)
    stream.ask("add", item, on=outer)
