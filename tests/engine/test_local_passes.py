"""The compiled local pass equals the plain one, on any number of threads and any layout."""

import numpy as np
import pytest
from scipy import sparse

from privopt.data.participants import draw_groups
from privopt.data.units import Units
from privopt.engine import local_passes
from privopt.engine.in_process import InProcessEngine
from privopt.engine.reference import ReferenceEngine
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import Box, L2Ball
from privopt.problems.regularisers import ElasticNet, GroupLasso, Ridge
from privopt.queries.base import query
from privopt.queries.lots import LocalPass

ROWS, D, USERS = 300, 7, 40
WEIGHTS = tuple(0.3 * j for j in range(D))


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def users(loss, layout, *, count=USERS, rows=ROWS):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows, D)) * (rng.random((rows, D)) < 0.4)
    targets = rng.integers(0, 3, rows) if loss.outputs > 1 else np.where(features[:, 0] >= 0, 1.0, -1.0)
    return Units.from_arrays(
        sparse.csr_array(features) if "sparse" in layout else features,
        targets.astype(float),
        row_bound=2.5,
        groups=rng.integers(0, count, rows),
        max_records_per_user=20,
        n=count + 5,
        storage="float64" if "float64" in layout else "float32",
        noise=NoiseSource(1),
    )


def point(loss):
    return 0.3 * np.random.default_rng(1).normal(size=(D,) if loss.outputs == 1 else (D, loss.outputs))


CASES = [
    (losses.logistic, "dense", {}),
    (losses.logistic, "sparse float64", {"returns": "average", "shuffle": 4}),
    (losses.squared, "sparse", {"constraint": L2Ball(1.2), "returns": "average"}),
    (losses.huber(0.5), "dense float64", {"regulariser": Ridge(0.2, WEIGHTS)}),
    (losses.quantile(0.3), "dense", {"reach": 0.3}),
    (losses.poisson(2.0, 5.0), "sparse", {"regulariser": ElasticNet(0.05, 0.1), "constraint": L2Ball(1.5)}),
    (losses.smoothed_hinge(0.5), "sparse", {"shuffle": 0}),
    (losses.softmax(3), "dense", {"returns": "average"}),
    (losses.softmax(3), "sparse", {"regulariser": Ridge(0.1), "reach": 0.5}),
]


@pytest.mark.at_once("loss3-dense float64-options3")
@pytest.mark.parametrize(("loss", "layout", "options"), CASES)
def test_the_kernel_equals_the_plain_pass(loss, layout, options):
    units = users(loss, layout)
    asked = LocalPass(loss=loss, at=point(loss), step_size=0.4, clip=0.5, **options)
    assert local_passes.supports(units, asked)
    fast, plain = InProcessEngine(units), ReferenceEngine(units)
    for draw in (None, np.arange(0, USERS, 3)):
        np.testing.assert_allclose(
            fast.clipped_sum(asked, draw), plain.clipped_sum(asked, draw), rtol=1e-12, atol=1e-12
        )
    held = fast.gather(asked)
    assert held.shape == (USERS + 5, point(loss).size)
    np.testing.assert_allclose(held, plain.gather(asked), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("options", [{}, {"regulariser": Ridge(0.1), "constraint": L2Ball(2.0)}])
def test_the_sum_is_the_same_to_the_last_bit_on_any_number_of_threads(layout, options):
    units = users(losses.logistic, layout, count=3000, rows=9000)
    asked = LocalPass(loss=losses.logistic, at=point(losses.logistic), step_size=0.4, clip=0.5, **options)
    sums = [InProcessEngine(units, threads=threads).clipped_sum(asked) for threads in (1, 2, 3)]
    assert np.array_equal(sums[0], sums[1])
    assert np.array_equal(sums[0], sums[2])
    held = [InProcessEngine(units, threads=threads).gather(asked) for threads in (1, 3)]
    assert np.array_equal(held[0], held[1])
    np.testing.assert_allclose(held[0].sum(axis=0), sums[0], rtol=1e-12)


@pytest.mark.parametrize("owners", ["users", "records"])
def test_a_pass_of_groups_equals_the_plain_one(owners):
    units = users(losses.logistic, "dense")
    if owners == "records":
        units = Units.from_arrays(
            np.random.default_rng(0).normal(size=(60, D)), np.sign(np.arange(60) - 30.5), row_bound=2.5
        )
    draw = draw_groups(units.public, 8, np.random.default_rng(1), private_count=units.private_count)
    asked = LocalPass(
        loss=losses.logistic, at=point(losses.logistic), step_size=0.4, clip=50.0, returns="average"
    )
    held = InProcessEngine(units).gather_groups(asked, draw)
    assert held.shape == (8, D)
    np.testing.assert_allclose(
        held, ReferenceEngine(units).gather_groups(asked, draw), rtol=1e-12, atol=1e-12
    )


def test_what_the_kernel_does_not_know_goes_the_plain_way():
    units = users(losses.logistic, "dense")
    common = {"loss": losses.logistic, "at": point(losses.logistic), "step_size": 0.4, "clip": 0.5}

    @query
    class HalfPass(LocalPass):
        def unit_contribution(self, private_features, private_targets, private_mask, private_weight):
            return 0.5 * super().unit_contribution(
                private_features, private_targets, private_mask, private_weight
            )

    for asked in (
        LocalPass(constraint=Box(-0.5, 0.5), **common),
        LocalPass(regulariser=GroupLasso(0.1, ((0, 1),)), **common),
        HalfPass(**common),
    ):
        assert not local_passes.supports(units, asked)
    halved = InProcessEngine(units).gather(HalfPass(**(common | {"clip": 50.0})))
    whole = InProcessEngine(units).gather(LocalPass(**(common | {"clip": 50.0})))
    np.testing.assert_allclose(halved, 0.5 * whole, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("options", [{}, {"regulariser": ElasticNet(0.1, 0.1), "constraint": L2Ball(2.0)}])
@pytest.mark.parametrize("step_size", [1e200, 1e308])
def test_a_pass_that_overflows_counts_as_zero(options, step_size):
    rows, targets = np.ones((4, D)), np.array([1e300, -1e300, 1e308, 1e308])
    units = Units.from_arrays(
        rows, targets, row_bound=2.5, groups=[0, 0, 1, 1], max_records_per_user=2, n=3, noise=NoiseSource(1)
    )
    asked = LocalPass(loss=losses.squared, at=point(losses.squared), step_size=step_size, clip=0.5, **options)
    assert not np.any(InProcessEngine(units).gather(asked))
