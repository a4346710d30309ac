"""The reference numbers of posterior descent: excess on whole tables, beside whitened descent on the same seeds."""

import functools

import numpy as np
import pytest
from benchmarks.datasets import load
from benchmarks.encoded import Encoded
from benchmarks.optimum import mean_loss, optimum, scores

from privopt import LogisticRegression

pytestmark = pytest.mark.audit

SEEDS = 4


@functools.cache
def table(shared, name, rows, target):
    train, codes, test, test_codes, _ = load(name, shared, train=rows, target=target)
    return Encoded(
        name=f"{name}-{target}",
        train=train,
        train_targets=codes,
        test=test,
        test_targets=test_codes,
        classes=(0, 1),
        fingerprint=f"{name}-{rows}-{target}",
    )


def excess(data, epsilon, solver, folder):
    """Mean training loss above the least one, times 1000, over the seeds."""
    losses = []
    for seed in range(SEEDS):
        model = LogisticRegression(
            epsilon=epsilon,
            delta=1.0 / data.rows**2,
            bounds=(-1, 1),
            classes=[0, 1],
            solver=solver,
            random_state=seed,
        )
        model.fit(data.train, data.train_targets)
        losses.append(mean_loss(scores(model, data.train), data.train_targets))
    return 1000.0 * (float(np.mean(losses)) - optimum(data, None, folder)["loss"])


@pytest.mark.parametrize(
    ("name", "rows", "target", "epsilon", "expected", "landed"),
    [
        ("adult", None, None, 0.3, 10.9, 14.2),
        ("adult", None, None, 3.0, 1.67, 1.65),
        ("covertype", 50_000, None, 1.0, 3.46, 3.72),
        ("randhie", 16_152, "binexp", 0.1, 26.7, 43.3),
    ],
)
def test_the_excess_is_near_the_reference(
    name, rows, target, epsilon, expected, landed, tmp_path, shared_data
):
    """Four seeds of a reference and four others: each mean is off by a tenth to a fifth."""
    data = table(shared_data, name, rows, target)
    found = excess(data, epsilon, "posterior-descent", tmp_path)
    beside = excess(data, epsilon, "whitening", tmp_path)
    assert 0.6 * expected < found < 1.5 * expected
    assert 0.6 * landed < beside < 1.5 * landed
