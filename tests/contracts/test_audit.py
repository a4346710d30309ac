"""The audit itself: it must fail when a sensitivity is understated by 0.2 %."""

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.audit import Audit
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference, GradientNorm

N, D = 12, 3


def linear_loss(params, features, target):
    """<features, params> + target ||params||^2 / 2: its gradients and differences are as large as their clips."""
    return features @ params + 0.5 * target * jnp.sum(params**2)


LINEAR = losses.RecordLoss(linear_loss)
AT, ANCHOR = np.array([0.3, -0.2, 0.5]), np.zeros(D)
ROW = np.array([0.6, 0.0, 0.8])  # norm 1

QUERIES = {
    "clipped gradient, compiled kernel": ClippedGradient(loss=losses.squared, at=ANCHOR, clip=0.5),
    "clipped gradient, general path": ClippedGradient(loss=LINEAR, at=ANCHOR, clip=0.5),
    "gradient norm": GradientNorm(loss=LINEAR, at=ANCHOR, clip=1.0),
    "gradient difference": ClippedGradientDifference(loss=LINEAR, at=AT, anchor=ANCHOR, slope_clip=1.0),
}


def tight_pair(name, relation):
    """Neighbours whose query moves by exactly the sensitivity: all units pull one way, one is turned or removed."""
    features, targets = np.tile(ROW, (N, 1)), np.ones(N)
    other, turned = features.copy(), targets.copy()
    other[4], turned[4] = (ROW, -1.0) if "kernel" in name or "difference" in name else (-ROW, 1.0)
    if relation == "add-or-remove-one":
        other, turned = np.delete(features, 4, axis=0), np.delete(targets, 4)
    return (
        Units.from_arrays(x, y, relation=relation, row_bound=1.0, n=N)
        for x, y in ((features, targets), (other, turned))
    )


def largest_move(name, relation, understate=0.0):
    left, right = tight_pair(name, relation)
    ledger = Ledger(Budget(10.0, 1e-5), relation, composition="gaussian")
    audit = Audit(left, right, ledger, noise=NoiseSource(1), understate=understate)
    with double_precision():
        audit.release(QUERIES[name], Gaussian(5.0))
    return audit.moves[0][1]


RELATIONS = ["replace-one", "add-or-remove-one"]
# A norm moves by the full amount only when a unit is added or removed.
PAIRS = [(n, r) for n in QUERIES for r in RELATIONS if (n, r) != ("gradient norm", "replace-one")]


@pytest.mark.later("gradient difference-add-or-remove-one", "gradient difference-replace-one")
@pytest.mark.parametrize(("name", "relation"), PAIRS)
def test_the_tight_pair_moves_every_query_by_its_sensitivity(name, relation):
    assert 0.999 <= largest_move(name, relation) <= 1.0


@pytest.mark.parametrize(("name", "relation"), PAIRS)
def test_a_sensitivity_understated_by_two_in_a_thousand_is_noticed(name, relation):
    assert largest_move(name, relation, understate=0.002) > 1.0
