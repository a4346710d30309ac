"""A loss or a query that would hand single records to the outside is refused before anything is read or charged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Poisson
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.glm import LossFacts
from privopt.problems.losses import RecordLoss
from privopt.queries import safeguards
from privopt.queries.base import RecordSum, query
from privopt.queries.slopes import ClippedGradient
from privopt.solve import minimize

N, D, NOISE = 30, 3, Gaussian(50.0)
SEEN = []


@pytest.fixture(autouse=True)
def double():
    SEEN.clear()
    with double_precision():
        yield
    assert not SEEN


def note(*values):
    SEEN.append(values)


def squared(params, features, target):
    return 0.5 * (features @ params - target) ** 2


def printed(params, features, target):
    jax.debug.callback(note, target)
    return squared(params, features, target)


def inside_a_loop(params, features, target):
    def step(k, total):
        jax.lax.cond(target > 0, lambda: jax.debug.callback(note, features[k]), lambda: None)
        return total + features[k] * params[k]

    return 0.5 * (jax.lax.fori_loop(0, D, step, 0.0) - target) ** 2


def from_the_host(params, features, target):
    known = jax.pure_callback(
        lambda x: np.asarray(note(x) or 0.0), jax.ShapeDtypeStruct((), jnp.float64), target
    )
    return squared(params, features, target) + jax.lax.stop_gradient(known)


def stored(params, features, target):
    io_callback(note, None, features, ordered=True)
    return squared(params, features, target)


@jax.custom_vjp
def own_derivative(prediction, target):
    return 0.5 * (prediction - target) ** 2


def _forward(prediction, target):
    return own_derivative(prediction, target), (prediction, target)


def _backward(kept, cotangent):
    prediction, target = kept
    jax.debug.callback(note, target)
    return cotangent * (prediction - target), jnp.zeros_like(target)


own_derivative.defvjp(_forward, _backward)


def in_the_derivative(params, features, target):
    return own_derivative(features @ params, target)


LEAKING = [printed, inside_a_loop, from_the_host, stored]


def units():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(N, D))
    return Units.from_arrays(rows, rows[:, 0], row_bound=1.0)


def curator():
    return LocalCurator(units(), Ledger(Budget(9.0, 1e-6), "replace-one", composition="gaussian"))


@pytest.mark.parametrize("function", LEAKING, ids=lambda function: function.__name__)
def test_a_loss_with_a_callback_is_refused_before_the_account_pays(function):
    account = Account(9.0, 1e-5)
    with pytest.raises(ValueError, match=r"does more than compute .*callback.*: a callback, such as"):
        minimize(function, units(), budget=Budget(1.0, 1e-6), start=np.zeros(D), account=account)
    assert account.entries == ()


@pytest.mark.parametrize("function", [*LEAKING, in_the_derivative], ids=lambda function: function.__name__)
def test_a_gradient_of_a_loss_with_effects_is_refused_by_every_way_through_a_curator(function):
    asked = ClippedGradient(loss=RecordLoss(function), at=jnp.ones(D), clip=1.0)
    where = curator()

    def step(w, release):
        return w - release(ClippedGradient(loss=RecordLoss(function), at=w, clip=1.0), NOISE, Poisson(0.5))

    for use in (
        lambda: where.release(asked, NOISE),
        lambda: where.hold(asked),
        lambda: where.iterate(step, jnp.ones(D), 2),
        lambda: DryRun(where.public).release(asked, NOISE),
    ):
        with pytest.raises(ValueError, match="does more than compute"):
            use()
    assert where.ledger.spent == 0.0
    assert len(where.transcript) == 0


class OwnLoss(losses.Squared):
    """A generalised-linear loss of somebody's own that prints its targets."""

    @property
    def facts(self):
        return LossFacts(name="own", curvature=1.0)

    def slope(self, prediction, target):
        jax.debug.callback(note, target)
        return prediction - target


@query
class OwnClip(RecordSum):
    def radius(self):
        return 1.0

    def shape(self, public):
        return (public.d,)

    def record_contribution(self, private_features, private_target):
        return private_features

    def clip_unit(self, private_vector):
        jax.debug.print("{}", private_vector[0])
        return super().clip_unit(private_vector)


def test_slopes_and_clips_of_ones_own_are_traced_too():
    for asked in (ClippedGradient(loss=OwnLoss(), at=jnp.ones(D), clip=1.0), OwnClip()):
        where = curator()
        with pytest.raises(ValueError, match="does more than compute"):
            where.release(asked, NOISE)
        assert where.ledger.spent == 0.0


def test_a_loss_that_only_computes_is_taken_and_traced_once(monkeypatch):
    traced = []
    monkeypatch.setattr(safeguards, "_require_no_effects", lambda program, what: traced.append(what))
    loss, where = RecordLoss(lambda *record: squared(*record), name="own"), curator()
    for at in (0.0, 1.0, 2.0):
        where.release(ClippedGradient(loss=loss, at=jnp.full(D, at), clip=1.0), NOISE)
    assert traced == ["the loss 'own'", "ClippedGradient"]
    where.release(ClippedGradient(loss=losses.squared, at=jnp.ones(D), clip=1.0), NOISE)
    assert len(traced) == 2  # the library's own are not traced


def test_a_class_that_was_not_decorated_is_told_so():
    class Bare(ClippedGradient):
        pass

    where = curator()
    with pytest.raises(TypeError, match="Bare is unknown to JAX: put `@query` above its class"):
        where.release(Bare(loss=losses.squared, at=jnp.ones(D), clip=1.0), NOISE)
    assert where.ledger.spent == 0.0
