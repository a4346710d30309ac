"""Released marginals read off a transcript, and added up onto fewer columns."""

import numpy as np
import pytest

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems.workload import Workload, marginal_of
from privopt.public import Relation
from privopt.queries.marginals import HeldMarginal, MarginalMeans
from privopt.synthesis.base import ReleasedMarginal, estimated, released_marginals, released_total

LEVELS = (3, 2, 4)
WORK = Workload(LEVELS, sets=((0, 1), (2, 1)))


def test_a_transcript_names_the_marginals_and_their_noise():
    rng = np.random.default_rng(0)
    units = Units.from_codes(rng.integers(0, 4, (500, 3)), levels=LEVELS)
    curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE), noise=NoiseSource(seed=1))
    with double_precision():
        mean = curator.hold_mean(MarginalMeans(workload=WORK))
        curator.release(HeldMarginal(mean=mean, place=1), Gaussian(3.0))
        curator.release(MarginalMeans(workload=WORK), Gaussian(2.0))
        found = released_marginals(curator.transcript, LEVELS)
        exact = curator.private_engine.clipped_sum(MarginalMeans(workload=WORK)) / 500
    assert [one.columns for one in found] == [(2, 1), (0, 1), (2, 1)]
    assert found[0].stddev == pytest.approx(3.0 * 2**0.5 / 500, rel=1e-6)
    assert found[1].stddev == pytest.approx(2.0 * 2 / 500, rel=1e-6)
    np.testing.assert_allclose(found[0].shares, exact[6:], atol=6 * found[0].stddev)
    assert released_total(found) == 1.0


def test_cells_and_their_noise_are_added_up():
    table = np.random.default_rng(1).random(24)
    pair = ReleasedMarginal((2, 0), marginal_of(table, LEVELS, (2, 0)), 0.1)
    for columns, ratio in (((0,), 4), ((2,), 3), ((0, 2), 1)):
        onto = pair.onto(LEVELS, columns)
        np.testing.assert_allclose(onto.shares, marginal_of(table, LEVELS, columns))
        assert onto.stddev == pytest.approx(0.1 * ratio**0.5)


def test_estimates_are_weighted_by_precision():
    single = ReleasedMarginal((1,), np.array([0.4, 0.6]), 0.1)
    pair = ReleasedMarginal((1, 0), np.array([0.1, 0.2, 0.1, 0.2, 0.3, 0.1]), 0.1)
    both = estimated([single, pair], LEVELS, (1,))
    assert both is not None
    np.testing.assert_allclose(both.shares, 0.75 * np.array([0.4, 0.6]) + 0.25 * np.array([0.5, 0.5]))
    assert both.stddev == pytest.approx((100 + 100 / 3) ** -0.5)
    assert estimated([single, pair], LEVELS, (2,)) is None
    exact = ReleasedMarginal((1,), np.array([0.3, 0.7]), 0.0)
    assert estimated([pair, exact], LEVELS, (1,)).shares.tolist() == [0.3, 0.7]
