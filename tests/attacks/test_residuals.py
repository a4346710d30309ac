from itertools import pairwise

import numpy as np
import pytest

from privopt.attacks.optimal import noise_faults


def noise(seed, runs=20, releases=30, size=3):
    generator = np.random.default_rng(seed)
    return [list(generator.standard_normal((releases, size))) for _ in range(runs)]


def test_noise_that_is_right_is_never_accused():
    assert [fault for seed in range(40) for fault in noise_faults(noise(seed))] == []
    assert list(noise_faults([])) == []


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        ("noise too small", lambda runs: [[0.9 * one for one in run] for run in runs]),
        ("noise reused", lambda runs: [*runs, [runs[0][0]]]),
        (
            "noise not independent",
            lambda runs: [[0.8 * one + 0.6 * before for before, one in pairwise(run)] for run in runs],
        ),
    ],
)
def test_noise_that_is_wrong_is_told_by_its_name(fault, broken):
    found = list(noise_faults(broken(noise(1))))
    assert [one.split(":")[0] for one in found] == [fault]


def test_single_numbers_may_agree_by_chance():
    assert list(noise_faults([[np.array([0.5])], [np.array([0.5])]])) == []
