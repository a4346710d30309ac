"""A line of a journal is repeated to the block that it was made of, whatever the program that goes on asks first."""

from dataclasses import replace

import numpy as np
import pytest

from privopt import Budget, resumable
from privopt.curator.run import Run
from privopt.data.units import Units
from privopt.errors import ReplayMismatch
from privopt.ledger.events import GaussianEvent, Parallel, Repeated
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.queries.moments import SecondMoment

ROWS = np.random.default_rng(0).normal(size=(60, 2))
TIMES, NOISE = 2, Gaussian(noise_multiplier=20.0)
PLAN = Parallel((Repeated(GaussianEvent(20.0), TIMES),) * 2)


def asked(folder, order):
    """What a program gets that asks two blocks, the first or the second at a time, for the same at the same price."""
    units = replace(Units.from_arrays(ROWS, row_bound=1.0), origin="files")
    with double_precision(), resumable(folder, data="toy"):
        run = Run("two blocks", PLAN, Budget(1.0, 1e-6), units.public, noise=NoiseSource(), of={})
        blocks = run.curator(units).blocks(2)
        return [np.asarray(blocks[k].release(SecondMoment(row_bound=1.0), NOISE)) for k in order]


def test_what_one_block_released_is_not_repeated_for_another(tmp_path):
    first = asked(tmp_path, [1])
    with pytest.raises(ReplayMismatch, match="block"):
        asked(tmp_path, [0, 1, 1])  # else the second block would answer three times, where two are paid for
    again = asked(tmp_path, [1, 0, 1, 0])
    np.testing.assert_array_equal(again[0], first[0])
