"""What a plan says: bounds, indicators, the default with its reason, losses of the user's own, JSON."""

import json
import math
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import privopt
from privopt import LogisticRegression, losses
from privopt.ledger.amounts import Budget
from privopt.ledger.events import GaussianEvent
from privopt.planning import averaging
from privopt.planning.plan import WIDTH, Bound, Finding, Plan, figure
from privopt.public import Public
from privopt.solve import Plans

PLAN = Plan(
    solver="some-descent",
    settings={"steps": 30, "clip": math.inf, "weights": (1.0, math.nan)},
    event=GaussianEvent(30.0),
    budget=Budget(1.0, 1e-6),
    public=Public(n=10_000, d=20),
    releases=3000,
    passes=3000.0,
    memory_bytes=3_000_000,
    seconds=1.5,
)
START = {"inner": np.zeros((4, 3)), "outer": np.zeros(3)}
BUDGET: dict[str, Any] = {"n": 5000, "epsilon": 1.0, "delta": 1e-7}


def network(params: dict[str, Any], features: Any, target: Any) -> Any:
    return jnp.logaddexp(0.0, -target * (params["outer"] @ jnp.tanh(features @ params["inner"])))


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        (None, "bound no bound"),
        (
            Bound(0.04, 0.95, "no clip is active"),
            "excess at most 0.04 with probability 0.95, if no clip is active",
        ),
        (Bound(0.04, 0.95, "if no clip is active."), "probability 0.95, if no clip is active"),
        (Bound(math.inf, 0.9, ""), "excess at most infinite with probability 0.9"),
    ],
)
def test_a_bound_is_a_sentence_with_its_condition(bound: Bound | None, sentence: str) -> None:
    text = str(replace(PLAN, bound=bound))
    assert sentence in flat(text)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "if if" not in text


def test_a_plan_prints_reason_indicators_and_notices() -> None:
    told = replace(
        PLAN,
        adaptive=True,
        reason="nothing else was as good.",
        indicators={
            "one_query_floor": Finding(1.5e-4, "the noise of one release"),
            "many": Finding(np.ones(9), "a row"),
        },
        notices=("The noise is as large as the signal.",),
    )
    text = flat(str(told))
    for phrase in (
        "chosen by 'auto' because nothing else was as good effort",
        "at most 3,000 releases, 3,000 passes over 10,000 x 20",
        "indicator one query floor 0.00015: the noise of one release",
        "indicator many 9 numbers: a row",
        "note The noise is as large as the signal.",
    ):
        assert phrase in text


def test_a_plan_is_json_whatever_its_numbers_are() -> None:
    odd = replace(
        PLAN,
        predicted_excess=math.nan,
        bound=Bound(math.inf, 0.95, "it holds"),
        indicators={"floor": Finding(np.float64(math.inf), "none"), "long": Finding(np.zeros(1000), "zeros")},
    )
    document = json.loads(json.dumps(odd.to_dict(), allow_nan=False))
    assert document["settings"]["clip"] == "infinity"
    assert document["predicted_excess"] == "nan"
    assert document["bound"] == {
        "value": "infinity",
        "probability": 0.95,
        "condition": "it holds",
        "of": "excess",
    }
    assert document["indicators"]["floor"] == {"value": "infinity", "meaning": "none"}
    assert document["indicators"]["long"]["value"] == "1,000 numbers"


def test_a_plan_is_read_back_from_its_json() -> None:
    planned = replace(
        PLAN,
        settings={"steps": 30, "clip": math.inf, "returns": "tail"},
        bound=Bound(math.inf, 0.95, "it holds"),
        indicators={"floor": Finding(0.5, "none")},
    )
    document = json.loads(json.dumps(planned.to_dict(), allow_nan=False))
    assert Plan.from_dict(document) == planned


def test_figures_are_short() -> None:
    assert [
        figure(value) for value in (0.123456, 3000, math.inf, np.float64(2.0), jnp.asarray(0.5), None)
    ] == [
        "0.123",
        "3,000",
        "infinite",
        "2",
        "0.5",
        "None",
    ]


@pytest.mark.audit
def test_a_function_is_planned_from_the_shape_of_its_start() -> None:
    plans = privopt.plan(network, d=4, start=START, **BUDGET)
    assert plans.default.solver == "privately clipped o2nc"
    same = privopt.plan(privopt.Problem.from_pytree(network, START), d=4, **BUDGET)
    assert same.default.to_dict() == plans.default.to_dict()
    with pytest.raises(ValueError, match="give `start`: the parameters at which your loss function begins"):
        privopt.plan(network, d=4, **BUDGET)


def test_the_plans_print_the_default_first_and_the_others_in_a_table() -> None:
    plans = privopt.plan(losses.logistic, d=4, **BUDGET)
    text = str(plans)
    assert text.startswith(str(plans.default))
    others = text.partition("Other solvers")[2].partition("Not applicable:")[0]
    for one in plans.plans[1:]:
        (line,) = [line for line in others.splitlines() if line.strip().startswith(f"{one.solver} ")]
        assert f"{one.releases:,}" in line
    assert "frank-wolfe: it moves" in flat(text.partition("Not applicable:")[2])
    assert max(map(len, text.splitlines())) <= WIDTH
    json.dumps(plans.to_dict(), allow_nan=False)


def test_one_plan_is_found_by_its_name() -> None:
    plans = Plans((PLAN,), (("other", "it cannot"),))
    assert plans["some-descent"] is PLAN
    with pytest.raises(KeyError, match="no plan of 'other': it cannot"):
        plans["other"]
    with pytest.raises(KeyError, match="there are plans of"):
        plans["a third"]


def test_there_is_a_plan_without_privacy_that_is_json() -> None:
    plans = privopt.plan(network, d=4, start=START, n=5000, epsilon=math.inf, delta=1e-7)
    assert "no privacy" in str(plans)
    json.dumps(plans.to_dict(), allow_nan=False)


def model(**options: Any) -> LogisticRegression:
    return LogisticRegression(epsilon=1.0, delta=1e-10, classes=(0, 1), **({"bounds": (-1, 1)} | options))


@pytest.mark.parametrize("features", [10, 54, 108, 511])
def test_the_seconds_of_a_plan_count_loading_releases_and_matrices_beside_the_passes(features: int) -> None:
    plan = model().plan(n_features=features, n=60_000)
    assert plan.solver == "whitened gradient-descent"
    parts = (
        averaging.loading_seconds(plan.public),
        plan.passes * averaging.pass_seconds(plan.public),
        plan.releases * averaging.RELEASE_SECONDS,
        averaging.second_moment_seconds(plan.public) + averaging.mapping_seconds(plan.public),
    )
    assert min(parts) > 0
    assert plan.seconds == pytest.approx(math.fsum(parts))


def test_matrices_outweigh_the_passes_on_wide_rows_and_not_on_narrow_ones() -> None:
    def share(features: int) -> float:
        plan = model().plan(n_features=features, n=60_000)
        matrices = averaging.second_moment_seconds(plan.public) + averaging.mapping_seconds(plan.public)
        return matrices / plan.seconds

    assert share(10) < 0.1 < 0.5 < share(511)


@pytest.mark.audit
def test_estimated_bounds_and_a_search_take_longer_than_one_fit() -> None:
    plain = model().plan(n_features=54, n=60_000).seconds
    assert model(bounds=None, loose_bounds=(-9, 9)).plan(n_features=54, n=60_000).seconds > 1.2 * plain
    assert model(alpha="private").plan(n_features=54, n=60_000).seconds > 2.0 * plain


def test_a_method_that_releases_curvature_plans_for_it() -> None:
    newton, descent = (
        privopt.plan(losses.logistic, n=60_000, d=500, epsilon=1.0, delta=1e-10, solver=name).default
        for name in ("newton", "gradient-descent")
    )
    assert newton.seconds > 20 * averaging.second_moment_seconds(newton.public)
    assert newton.seconds > 5 * descent.seconds
