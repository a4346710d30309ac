"""`minimize` and `plan` say in one sentence what they cannot use, before anything is charged."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt.data.units import Units
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.problems import losses
from privopt.problems.glm import RecordLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.solve import minimize, plan
from privopt.solvers.gradient_descent import GradientDescent

START = {"weights": np.zeros(3), "offset": 0.0}
MODULE = {"weights": np.zeros(3), "offset": 0.0, "activation": jax.nn.relu}


def own(params: Any, features: Any, target: Any) -> Any:
    return (features @ params["weights"] + params["offset"] - target) ** 2


def units() -> Units:
    rows = np.random.default_rng(0).normal(size=(50, 3))
    return Units.from_arrays(rows, rows[:, 0], row_bound=2.0)


LOSSES = [
    (lambda params, a, y: a * params["weights"], "must be one real number, got an array of shape \\(3,\\)"),
    (lambda params, a, y: (y, y), "must be one real number, got a tuple"),
    (lambda params, a, y: None, "must be one real number, got a NoneType"),
    (lambda params, a, y: 1, "must be one real number, got a number of type int"),
    (lambda params, a, y: jax.lax.complex(y, y), "must be one real number, got a number of type complex"),
    (lambda params, a, y: np.exp(a @ params["weights"]), "jax.numpy in place of NumPy"),
    (lambda params, a, y: math.exp(params["offset"]), "jax.numpy in place of NumPy and math"),
    (lambda params, a, y: params["offset"] if y > 0 else 0.0, "jnp.where or jax.lax.cond"),
    (lambda params, a, y: jnp.sum(a[a > 0]) * params["offset"], "jnp.where or jax.lax.cond"),
]
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"units": (np.ones((5, 3)), np.ones(5))}, TypeError, "units must be Units, got tuple: .*from_arrays"),
    ({"budget": 1.0}, TypeError, "budget must be a Budget, got float: .*Budget\\(1.0, 1e-6\\)"),
    ({"budget": (1.0, 1e-6)}, TypeError, "budget must be a Budget, got tuple"),
    ({"account": 3}, TypeError, "account must be an Account or None, got int"),
    ({"observer": "progress"}, TypeError, "observer must be a function of \\(name, count\\)"),
    ({"solver": 3}, TypeError, "solver must be 'auto', a name .* got int"),
    ({"solver": GradientDescent}, TypeError, "got GradientDescent itself"),
    ({"problem": "logistic"}, TypeError, "the loss must be one of .* got str"),
    ({"start": None}, ValueError, "give `start`"),
    ({"start": MODULE}, TypeError, "real numbers only, but \\['activation'\\] is a custom_jvp"),
    ({"start": {}}, ValueError, "start holds no numbers"),
    ({"start": "zeros"}, TypeError, "real numbers only, but it is a str"),
    ({"start": {"weights": np.zeros(3, complex)}}, TypeError, "is a ndarray of complex128"),
    ({"start": {"weights": np.zeros(3), "offset": math.nan}}, ValueError, "start must be finite"),
    ({"problem": losses.squared, "start": "zeros"}, TypeError, "start must be an array of numbers, got str"),
    (
        {"problem": losses.squared, "start": np.zeros(4)},
        ValueError,
        "must have shape \\(3,\\), .* got \\(4,\\)",
    ),
    *[({"problem": loss}, TypeError, sentence) for loss, sentence in LOSSES],
]


@pytest.mark.parametrize(("change", "error", "sentence"), WRONG)
def test_what_cannot_be_used_gets_a_sentence_before_anything_is_charged(
    change: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    account = Account(2.0, 1e-5)
    given = {
        "problem": own,
        "units": units(),
        "budget": Budget(1.0, 1e-6),
        "start": START,
        "account": account,
    }
    given |= change
    with pytest.raises(error, match=sentence):
        minimize(given.pop("problem"), given.pop("units"), **given)
    assert account.entries == ()


@pytest.mark.parametrize(("loss", "sentence"), LOSSES)
def test_a_plan_refuses_the_same_losses(loss: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        plan(loss, n=50, d=3, epsilon=1.0, delta=1e-6, start=START)


def test_a_sound_loss_of_ones_own_is_taken_as_a_function_or_as_a_value() -> None:
    solver = GradientDescent(steps=2)
    result = minimize(own, units(), budget=Budget(1.0, 1e-6), start=START, solver=solver)
    assert result.params["weights"].shape == (3,)
    flat = RecordLoss(lambda params, features, target: (features @ params - target) ** 2)
    for problem in (flat, Problem(flat)):
        result = minimize(problem, units(), budget=Budget(1.0, 1e-6), start=np.zeros(3, int), solver=solver)
        assert result.params.shape == (3,)


@pytest.mark.parametrize("wrong", ["1", None, True, [1.0]])
def test_a_budget_is_made_of_numbers(wrong: Any) -> None:
    with pytest.raises(TypeError, match="epsilon must be a number"):
        Budget(wrong, 1e-6)
    with pytest.raises(TypeError, match="delta must be a number"):
        Budget(1.0, wrong)


@pytest.mark.parametrize("wrong", [2000.5, "2000", True])
def test_public_sizes_are_integers(wrong: Any) -> None:
    for name in ("n", "d", "records_per_unit"):
        with pytest.raises(TypeError, match=f"{name} must be an integer"):
            Public(**({"n": 10, "d": 2} | {name: wrong}))
    with pytest.raises(TypeError, match="row_bound must be a number"):
        Public(n=10, d=2, row_bound="1")  # pyright: ignore[reportArgumentType]
