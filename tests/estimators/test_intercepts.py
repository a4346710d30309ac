"""The intercept is never penalised: the mean predicted probability is the share of ones, at any strength."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import panel_problems

from privopt import LogisticRegression
from privopt.ledger.curves import gaussian_mu

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
LEAST_CLIP_BIAS = 0.004  # a clip weighs rows that the model does not fit unequally


def made_up(rate: float, seed: int = 0, n: int = 6_000) -> tuple[Any, Any]:
    """Rows of uneven length and classes whose second has about this rate."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 6)) * rng.uniform(0.1, 1.0, (n, 1))
    scores = X @ np.array([3.0, -2.0, 1.0, 0.0, 0.0, 1.0]) + math.log(rate / (1.0 - rate))
    return X, (rng.random(n) < 1.0 / (1.0 + np.exp(-scores))).astype(int)


def missed(X: Any, y: Any, *, epsilon: float, alpha: float | None, seed: int, solver: Any = "auto") -> float:
    """Mean predicted probability of class 1 less its share."""
    delta = 0.0 if math.isinf(epsilon) else 1.0 / len(y) ** 2
    model = LogisticRegression(
        epsilon=epsilon,
        delta=delta,
        bounds=(-1, 1),
        classes=[0, 1],
        alpha=alpha,
        random_state=seed,
        solver=solver,
    )
    return float(np.mean(model.fit(X, y).predict_proba(X)[:, 1]) - np.mean(y))


def noise(n: int, epsilon: float) -> float:
    """Standard deviation of what is learnt of the rate: about that of three gradients of clip 1 for a tenth of mu^2."""
    return 0.0 if math.isinf(epsilon) else 2.0 / (n * gaussian_mu(epsilon, 1.0 / n**2) * math.sqrt(0.1))


@pytest.mark.at_once("10.0-10.0-0.06")
@pytest.mark.parametrize("rate", [0.06, 0.4])
@pytest.mark.parametrize("alpha", [None, 10.0])
@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_the_mean_probability_is_the_rate_within_the_noise(rate, alpha, epsilon):
    X, y = made_up(rate)
    errors = [missed(X, y, epsilon=epsilon, alpha=alpha, seed=seed) for seed in range(2)]
    assert abs(np.mean(errors)) <= 3.0 * noise(len(y), epsilon) / math.sqrt(2.0) + LEAST_CLIP_BIAS


@pytest.mark.later("None")
@pytest.mark.parametrize("alpha", [None, 10.0])
def test_without_noise_it_is_the_rate(alpha):
    X, y = made_up(0.06, n=2_000)
    assert abs(missed(X, y, epsilon=math.inf, alpha=alpha, seed=0, solver="whitening")) <= 1e-4


@pytest.mark.audit
@pytest.mark.skipif(not DATA.exists(), reason="the shared tables are not here")
@pytest.mark.parametrize(
    "name", ["adult: income", "covertype: second cover", "compas: re-arrest", "german: bad", "fars: fatal"]
)
@pytest.mark.parametrize("alpha", [None, 10.0])
@pytest.mark.parametrize("epsilon", [1.0, 10.0, math.inf])
def test_on_real_tables_too(name, alpha, epsilon):
    problem = next(one for one in panel_problems.PROBLEMS if one.name == name)
    stored = panel_problems.arrays(problem)
    X, y = stored.features[:8_000], stored.targets[:8_000].astype(int)
    solver = "whitening" if math.isinf(epsilon) else "auto"
    errors = [missed(X, y, epsilon=epsilon, alpha=alpha, seed=seed, solver=solver) for seed in range(3)]
    assert abs(np.mean(errors)) <= 3.0 * noise(len(y), epsilon) / math.sqrt(3.0) + LEAST_CLIP_BIAS
