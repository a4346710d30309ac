import math

import numpy as np
import pytest

from privopt.attacks.lockstep import Steering, transcript_epsilon
from privopt.ledger.curves import gaussian_epsilon, gaussian_mu

BUDGET = (1.0, 1e-6)


def transcripts(mu, steering, *, runs, steps, generator):
    """Log-likelihood ratios and weights of Gaussian transcripts whose shifts follow the answers before them."""
    found = []
    for _ in range(runs):
        ratio = weight = spent = 0.0
        for _ in range(steps):
            spread = mu**2 / steps * (0.5 if ratio < 0 else 1.0)
            tilt = steering.lean(ratio, spent, spread)
            shift = math.sqrt(spread)
            own = shift * (generator.standard_normal() + tilt * shift) + spread / 2
            ratio, weight, spent = (
                ratio + own,
                weight + (tilt + tilt**2) * spread / 2 - tilt * own,
                spent + spread,
            )
        found.append((ratio, weight))
    return (np.asarray(values) for values in zip(*found, strict=True))


def test_steered_transcripts_reach_the_epsilon_of_their_noise_in_few_runs():
    mu = gaussian_mu(*BUDGET)
    steering = Steering.for_spread(mu**2, BUDGET[1])
    found = [
        transcript_epsilon(
            *transcripts(mu, steering, runs=20, steps=30, generator=np.random.default_rng(seed)), BUDGET[1]
        )
        for seed in range(5)
    ]
    assert min(found) >= 0.85
    assert max(found) <= 1.0


def test_a_bound_is_wrong_no_more_often_than_it_says():
    mu = gaussian_mu(*BUDGET)
    steering = Steering.for_spread(mu**2, BUDGET[1])
    generator = np.random.default_rng(1)
    ratios, weights = transcripts(mu, steering, runs=2000, steps=5, generator=generator)
    found = [
        transcript_epsilon(ratios[part], weights[part], BUDGET[1], 0.9)
        for part in np.arange(2000).reshape(200, 10)
    ]
    assert np.mean(np.asarray(found) > 1.0) <= 0.1


def test_nothing_is_steered_where_nothing_is_to_be_seen():
    assert Steering().lean(0.0, 0.0, 0.1) == 0.0
    assert Steering.for_spread(0.0, 1e-6).lean(0.0, 0.0, 0.0) == 0.0
    assert transcript_epsilon(np.zeros(20), np.zeros(20), 1e-6) == 0.0
    mu = gaussian_mu(*BUDGET)
    steering = Steering.for_spread(mu**2, BUDGET[1])
    assert steering.target < gaussian_epsilon(mu, BUDGET[1])
    # Far below the target it leans, far above it no longer does.
    assert steering.lean(0.0, 0.0, 1e-3) == pytest.approx(steering.target / mu**2, rel=0.5)
    assert steering.lean(5.0, 0.0, 1e-3) < 0.02
