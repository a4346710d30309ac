"""Which losses of the user's own look convex."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt.problems import losses
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.solvers.registry import looks_convex, shares_corners

PUBLIC = Public(n=1_000, d=5, row_bound=2.0)

CONVEX = {
    "squared": lambda w, x, y: (x @ w - y) ** 2,
    "absolute": lambda w, x, y: jnp.abs(x @ w - y),
    "logistic": lambda w, x, y: jnp.logaddexp(0.0, -y * (x @ w)),
    "log cosh": lambda w, x, y: jnp.log(jnp.cosh(x @ w - y)),
    "Poisson": lambda w, x, y: jnp.exp(x @ w) - y * (x @ w),
    "largest entry": lambda w, x, y: jnp.max(jnp.abs(w)) + x @ w,
}
BENT = {
    "sigmoid": lambda w, x, y: (jax.nn.sigmoid(x @ w) - y) ** 2,
    "Cauchy": lambda w, x, y: jnp.log1p((x @ w - y) ** 2),
    "Tukey": lambda w, x, y: 1.0 - jnp.maximum(0.0, 1.0 - (x @ w - y) ** 2) ** 3,
    "phase": lambda w, x, y: jnp.abs((x @ w) ** 2 - y),
    "leaky": lambda w, x, y: (jax.nn.leaky_relu(x @ w, 0.3) - y) ** 2,
    "not finite": lambda w, x, y: jnp.nan * (x @ w),
}


@pytest.mark.parametrize("name", CONVEX)
def test_convex_losses_look_so(name):
    assert looks_convex(Problem(RecordLoss(CONVEX[name])), PUBLIC)


@pytest.mark.parametrize("name", BENT)
def test_losses_that_are_not_convex_do_not(name):
    assert not looks_convex(Problem(RecordLoss(BENT[name])), PUBLIC)


def test_a_network_does_not():
    start = {"hidden": np.zeros((5, 4)), "last": np.zeros(4)}
    problem = Problem.from_pytree(lambda w, x, y: (jnp.tanh(x @ w["hidden"]) @ w["last"] - y) ** 2, start)
    assert not looks_convex(problem, PUBLIC)


def test_what_is_stated_is_not_tried():
    def never(params, features, target):
        raise AssertionError

    assert looks_convex(Problem(RecordLoss(never, convex=True)), PUBLIC)
    assert not looks_convex(Problem(RecordLoss(never, convex=False)), PUBLIC)
    assert looks_convex(Problem(losses.logistic), PUBLIC)


def test_a_large_model_is_not_tried():
    assert not looks_convex(Problem(RecordLoss(CONVEX["squared"])), Public(n=10, d=1_000_000))


@pytest.mark.later("largest entry", "logistic", "squared")
@pytest.mark.parametrize("name", CONVEX)
def test_only_corners_that_all_records_share_are_corners_of_the_mean(name):
    assert shares_corners(Problem(RecordLoss(CONVEX[name])), PUBLIC) == (name == "largest entry")


def test_a_penalty_inside_a_loss_has_corners_too():
    lasso = RecordLoss(lambda w, x, y: (x @ w - y) ** 2 + 3.0 * jnp.sum(jnp.abs(w)))
    assert shares_corners(Problem(lasso), PUBLIC)
    assert not shares_corners(Problem(RecordLoss(lasso.value, curvature=1.0)), PUBLIC)
