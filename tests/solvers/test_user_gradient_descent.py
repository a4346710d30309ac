"""User-level gradient descent: the specification's figures, scale by the mean weight, statuses, what is refused."""

import math
from typing import Any

import numpy as np
import pytest

import privopt
from privopt.data.units import Units
from privopt.errors import BudgetTooSmall
from privopt.ledger.amounts import Budget
from privopt.ledger.events import leaf_counts
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public, of_users
from privopt.solvers.user_gradient_descent import UserGradientDescent
from privopt.status import Status

NO_PRIVACY = Budget(math.inf, 0.0)


def six_users(**options: Any) -> Units:
    """Six users with five records each."""
    i = np.arange(30)
    features = np.stack([np.ones(30), np.sin(i + 1), np.cos(2 * i)], axis=1)
    labels = np.where((i**2 + i // 7) % 3 == 0, 1, 0)
    given: dict[str, Any] = {
        "user_weighting": "user",
        "max_records_per_user": 5,
        "groups": i // 5,
        "storage": "float64",
    }
    return Units.from_arrays(features, labels, classes=[0, 1], row_bound=10.0, **(given | options))


def test_without_noise_it_takes_the_steps_of_the_specification() -> None:
    ends, clips = [], []
    for rounds in range(1, 8):
        solver = UserGradientDescent(
            steps=rounds,
            step_size=1.0,
            clip=0.3,
            quantile=0.5,
            momentum=0.5,
            returns="last",
            noise_multiplier=0.0,
        )
        result = privopt.minimize(losses.logistic, six_users(), budget=NO_PRIVACY, solver=solver)
        ends.append(np.asarray(result.params))
        clips.append(result.findings["clip"].value)
    expected = [0.3427892435, 0.3206817317, 0.3206817317, 0.3, 0.2806520955, 0.3, 0.3]
    np.testing.assert_allclose(clips, expected, rtol=1e-8)
    np.testing.assert_allclose(
        np.mean(ends[4:], axis=0), [-0.6318387762, 0.285555858, 0.0061378748], rtol=1e-7
    )


@pytest.mark.parametrize("weighting", ["user", "sqrt", "record"])
def test_the_scale_of_the_weights_drops_out(weighting: Any) -> None:
    """Users with as many records as each other: every weighting has the same objective, and the same steps."""
    units = six_users(user_weighting=weighting, max_records_per_user=20)
    solver = UserGradientDescent(
        steps=30, step_size=1.0, clip=0.5, typical=5, quantile=0.9, momentum=0.5, noise_multiplier=0.0
    )
    problem = Problem(losses.logistic, Ridge(0.01))
    found = privopt.minimize(problem, units, budget=NO_PRIVACY, solver=solver)
    alike = privopt.minimize(problem, six_users(), budget=NO_PRIVACY, solver=solver)
    np.testing.assert_allclose(found.params, alike.params, rtol=1e-6)


def test_what_is_planned_is_what_is_released() -> None:
    generator = np.random.default_rng(0)
    rows, users = generator.normal(size=(3000, 4)), np.arange(3000) % 300
    labels = np.where(rows[:, 0] > 0, 1, 0)
    for relation in ("replace-one", "add-or-remove-one"):
        for rate in (None, 0.2):
            units = Units.from_arrays(
                rows,
                labels,
                classes=[0, 1],
                row_bound=2.0,
                groups=users,
                relation=relation,
                n=300,
                noise=NoiseSource(1),
            )
            solver = UserGradientDescent(rate=rate)
            result = privopt.minimize(
                losses.logistic, units, budget=Budget(1.0, 1e-5), solver=solver, random_state=0
            )
            assert result.plan is not None
            assert result.status is Status.FINISHED
            assert 0.998 <= result.plan.epsilon <= 1.0
            released = sum(release.count for release in result.transcript)
            assert released == result.plan.releases == sum(leaf_counts(result.plan.event)[0].values())


def test_a_user_with_nothing_but_nonsense_ends_nothing() -> None:
    units = six_users()
    hostile = six_users()
    hostile.private_features[:5] = 1e30
    solver = UserGradientDescent(
        steps=5, step_size=1e30, clip=1e30, quantile=0.5, momentum=0.9, noise_multiplier=1.0
    )
    for data in (units, hostile):
        result = privopt.minimize(
            losses.squared, data, budget=Budget(1e6, 1e-5), solver=solver, random_state=0
        )
        assert np.all(np.isfinite(result.params))


def test_too_few_users_are_refused_before_anything_is_read() -> None:
    users = {"user_weighting": "sqrt", "max_records_per_user": 100, "typical_records": 10}
    with pytest.raises(BudgetTooSmall, match="19 users are too few"):
        privopt.plan(
            losses.logistic, n=19, d=2, epsilon=8.0, delta=1e-3, solver="user-gradient-descent", **users
        )
    with pytest.raises(BudgetTooSmall, match="At least"):
        privopt.plan(
            losses.logistic, n=100, d=200, epsilon=0.1, delta=1e-6, solver="user-gradient-descent", **users
        )


def test_losses_without_curvature_take_shrinking_steps() -> None:
    public = Public(n=1000, d=5, **of_users(100, "record", 10))
    budget = Budget(1.0, 1e-6)
    corner = UserGradientDescent().filled(Instance(Problem(losses.quantile(0.3)), public, budget))
    smooth = UserGradientDescent().filled(Instance(Problem(losses.logistic), public, budget))
    assert (corner.fading, smooth.fading) == (True, False)
