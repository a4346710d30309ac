"""Nothing that a solve prints, stores or raises holds private data, and a refusal leaves no trace."""

import copy
import json
import pickle
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.contracts.cases import BUDGET, CASES, EVERY_CASE, D, N, as_units, tagged, toy_arrays

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.errors import BudgetExceeded, PlanMismatch
from privopt.ledger.account import Account
from privopt.ledger.events import FixedSize, GaussianEvent, Repeated
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.tests import AboveThreshold
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient, GradientNorm
from privopt.solve import minimize

CANARY = 0.123456789012345678  # a private number, looked for in everything that comes out
HOSTILE = [np.nan, np.inf, -np.inf, 1e300, -1.7e308, 5e-324, 1e-310, -0.0]


def case_named(name):
    return next(case for case, _ in CASES if case.name == name)


def solve(case, relation, units, **options):
    solver = case.solver.configure(Instance(case.problem, units.public, BUDGET))
    budget = BUDGET if case.solver.noise_multiplier is None else replace(BUDGET, epsilon=1e6)
    ledger = Ledger(budget, relation, plan=solver.event(units.public))
    curator = LocalCurator(units, ledger, noise=NoiseSource(3), **options)
    return curator, solver.solve(curator, case.problem)


def marked_arrays(case):
    """Toy arrays in which the canary stands as a feature of unit 5; its row is short, so it is stored as it is."""
    features, targets = toy_arrays(case)
    features[5] = 0.0
    features[5, 2] = CANARY
    return features, targets


def assert_no_canary(thing):
    """No text holds the canary or its float32, no bytes their patterns in either byte order."""
    if isinstance(thing, bytes):
        for dtype in ("<f4", "<f8", ">f4", ">f8"):
            assert np.asarray(CANARY, dtype).tobytes() not in thing
    else:
        assert "0.1234567" not in thing


@pytest.mark.parametrize(("case", "relation"), **tagged("typical"))
def test_nothing_that_comes_out_holds_a_private_number(case, relation):
    units = as_units(*marked_arrays(case), relation, by_user=case.by_user)
    assert np.float32(CANARY).tobytes() in np.asarray(units.private_features).tobytes()
    said = []
    curator, result = solve(case, relation, units, observer=lambda *what: said.append(what))
    for thing in (
        units,
        curator,
        curator.private_engine,
        curator._noise,
        curator.ledger,
        curator.transcript,
        result,
        said,
    ):
        assert_no_canary(repr(thing))
        assert_no_canary(str(thing))
    for document in (
        curator.ledger.to_dict(),
        curator.transcript.to_dict(),
        curator.transcript.to_dict(values=True),
    ):
        assert_no_canary(json.dumps(document))
    assert_no_canary(pickle.dumps(np.asarray(result.params)))
    assert_no_canary(pickle.dumps(result.transcript))
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        pickle.dumps(curator)


def test_a_result_and_its_report_hold_no_private_number():
    case = case_named("gradient descent")
    units = as_units(*marked_arrays(case), "replace-one", by_user=case.by_user)
    result = minimize(case.problem, units, budget=BUDGET, solver=case.solver)
    assert_no_canary(pickle.dumps(result))
    assert_no_canary(str(result.plan))
    assert_no_canary(json.dumps(result.plan.to_dict()))
    assert_no_canary(json.dumps(result.report.to_dict()))
    assert_no_canary(result.report.to_html())


def test_the_transcript_without_values_does_not_depend_on_the_data():
    case = case_named("gradient descent")
    features, targets = toy_arrays(case)
    documents = [
        solve(case, "replace-one", as_units(x, y, "replace-one"))[0].transcript.to_json()
        for x, y in ((features, targets), (np.full_like(features, np.nan), -targets))
    ]
    assert documents[0] == documents[1]


def test_handles_and_streams_hold_no_data():
    case = case_named("gradient descent")
    units = as_units(*marked_arrays(case), "replace-one", by_user=case.by_user)
    with double_precision():
        curator = LocalCurator(units, Ledger(BUDGET, "replace-one", composition="zcdp"), noise=NoiseSource(1))
        query = ClippedGradient(loss=losses.squared, at=jnp.ones(D), clip=1.0)
        held = curator.hold(query)
        stream = curator.stream("far enough?", AboveThreshold(0.5, 0.1, 0.1))
        stream.ask("answer", GradientNorm(loss=losses.squared, at=jnp.ones(D), clip=1.0))
    assert_no_canary(pickle.dumps(held))
    assert repr(stream) == repr(held) == "<private>"
    assert re.fullmatch(r"(<private>|\{\d+: <private>\})", repr(curator._streams))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(stream)
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.deepcopy(curator._streams)


# Every eighth case, and all where there is time.
IN_TURN = [
    pytest.param(case, id=case.name, marks=(pytest.mark.audit,) if place % 8 else ())
    for place, case in enumerate(EVERY_CASE)
]


NOWHERE = slice(0, 0)
# Rows of nothing else are among the promises of every case in test_solvers.py.
PLACES = [
    pytest.param((3, 2), 3, id="an entry and its label"),
    pytest.param((0, 0), slice(None), id="an entry and every label"),
    pytest.param(3, NOWHERE, id="a row", marks=pytest.mark.audit),
    pytest.param(slice(None), NOWHERE, id="every row", marks=pytest.mark.audit),
]


@pytest.mark.at_once(
    "accelerated mirror descent, l2, gradient step-an entry and every label",
    "accelerated mirror descent, l2, gradient step-an entry and its label",
    "continuous spider, softmax-an entry and every label",
    "gradient descent-an entry and every label",
    "gradient descent-an entry and its label",
    "kl proximal point, median, ball-an entry and every label",
    "objective perturbation, l1, ball-an entry and every label",
    "randomized smoothing, median-an entry and every label",
    "svrg, own loss-an entry and every label",
    "variance-reduced frank-wolfe-an entry and every label",
)
@pytest.mark.parametrize(("feature_place", "target_place"), PLACES)
@pytest.mark.parametrize("case", IN_TURN)
def test_hostile_values_raise_no_warning(case, feature_place, target_place):
    """Pytest runs with warnings as errors; numpy's floating-point warnings are as visible as an exception."""
    for value in HOSTILE:
        features, targets = toy_arrays(case)
        targets = targets.astype(float)
        features[feature_place], targets[target_place] = value, value
        _, result = solve(
            case, "replace-one", as_units(features, targets, "replace-one", by_user=case.by_user)
        )
        assert np.all(np.isfinite(result.params))


@pytest.mark.parametrize("factor", [1e300, 1e308, np.inf, np.nan])
def test_a_point_or_a_row_map_out_of_range_raises_no_warning(factor):
    """Iterates and released maps are public; what overflows beside a private row must not show."""
    features, targets = toy_arrays(case_named("gradient descent, softmax"))
    signs = np.where(np.arange(3 * D).reshape(D, 3) % 2, 1.0, -1.0)
    with double_precision(), np.errstate(all="raise"):
        ledger = Ledger(BUDGET, "replace-one", composition="gaussian")
        curator = LocalCurator(as_units(features, targets, "replace-one"), ledger, noise=NoiseSource(1))
        query = ClippedGradient(loss=losses.softmax(3), at=jnp.asarray(factor * signs), clip=0.5)
        assert np.all(np.isfinite(curator.release(query, Gaussian(50.0))))
        assert np.all(
            np.isfinite(curator.private_engine._row_form_sum(query, query.row_form(curator.public), None))
        )
        view = curator.view(factor * signs, 2.0)
        query = ClippedGradient(loss=losses.logistic, at=jnp.ones(3), clip=0.5)
        assert np.all(np.isfinite(view.release(query, Gaussian(50.0))))


def refusals():
    """Calls on a curator that must fail, by what is wrong with them."""

    def gradient(clip=0.5, at=None):
        return ClippedGradient(loss=losses.logistic, at=jnp.zeros(D) if at is None else at, clip=clip)

    def two_releases(state, release):
        return state - release(gradient(), Gaussian(60.0)) - release(gradient(), Gaussian(0.01))

    return {
        "too dear": (BudgetExceeded, lambda curator: curator.release(gradient(), Gaussian(0.01))),
        "no noise": (BudgetExceeded, lambda curator: curator.release(gradient(), Gaussian(0.0))),
        "infinite clip": (ValueError, lambda curator: curator.release(gradient(np.inf), Gaussian(60.0))),
        "clip not a number": (ValueError, lambda curator: curator.release(gradient(np.nan), Gaussian(60.0))),
        "negative clip": (ValueError, lambda curator: curator.release(gradient(-1.0), Gaussian(60.0))),
        "another norm": (ValueError, lambda curator: curator.release(gradient(), Laplace(60.0))),
        "a sample of others": (
            ValueError,
            lambda curator: curator.release(gradient(), Gaussian(60.0), FixedSize(10, 10 * N)),
        ),
        "second release of a loop": (
            BudgetExceeded,
            lambda curator: curator.iterate(two_releases, jnp.zeros(D), 3),
        ),
        "a stream too dear": (
            BudgetExceeded,
            lambda curator: curator.stream("s", AboveThreshold(1.0, 9.0, 9.0)),
        ),
        "an allotment of more than all": (ValueError, lambda curator: curator.allot("inner", share=1.5)),
        "too many blocks": (ValueError, lambda curator: curator.blocks(N)),
    }


@pytest.mark.parametrize("wrong", refusals())
def test_a_refused_call_reads_nothing_spends_nothing_and_records_nothing(wrong, monkeypatch):
    features, targets = toy_arrays(case_named("gradient descent"))
    ledger = Ledger(BUDGET, "replace-one", composition="zcdp")
    curator = LocalCurator(as_units(features, targets, "replace-one"), ledger, noise=NoiseSource(1))
    for method in ("clipped_sum", "gather", "rows"):
        monkeypatch.setattr(curator.private_engine, method, lambda *_: pytest.fail("the data was read"))
    error, call = refusals()[wrong]
    with double_precision(), pytest.raises(error) as raised:
        call(curator)
    assert ledger.entries == []
    assert ledger.spent == 0.0
    assert len(curator.transcript) == 0
    assert "private" not in str(raised.value) or "share" in str(raised.value)


def test_a_refused_piece_of_a_plan_stays_in_the_plan():
    features, targets = toy_arrays(case_named("gradient descent"))
    ledger = Ledger(BUDGET, "replace-one", plan=Repeated(GaussianEvent(30.0), 2))
    curator = LocalCurator(as_units(features, targets, "replace-one"), ledger, noise=NoiseSource(1))
    query = ClippedGradient(loss=losses.logistic, at=jnp.zeros(D), clip=0.5)
    with double_precision():
        with pytest.raises(PlanMismatch, match="plan"):
            curator.iterate(lambda state, release: state - release(query, Gaussian(30.0)), jnp.zeros(D), 3)
        curator.iterate(lambda state, release: state - release(query, Gaussian(30.0)), jnp.zeros(D), 2)


def test_a_plan_that_its_own_budget_refuses_is_not_charged_to_the_account():
    case = case_named("gradient descent")
    account = Account(100.0, 1e-4)
    loud = replace(case.solver, noise_multiplier=3.0)
    with pytest.raises(BudgetExceeded, match="the plan costs"):
        minimize(
            case.problem,
            as_units(*toy_arrays(case), "replace-one", by_user=case.by_user),
            budget=replace(BUDGET, epsilon=0.1),
            solver=loud,
            account=account,
        )
    assert account.entries == ()


def test_no_message_of_a_failure_carries_a_private_number():
    """What is wrong with public arguments is said in public words, whatever the data."""
    features, targets = marked_arrays(case_named("gradient descent"))
    curator = LocalCurator(
        as_units(features, targets, "replace-one"), Ledger(BUDGET, "replace-one"), noise=NoiseSource(1)
    )
    wrong_shape = ClippedGradient(loss=losses.logistic, at=jnp.zeros(D + 1), clip=0.5)
    with double_precision(), pytest.raises(Exception) as raised:  # noqa: PT011  # JAX chooses the type
        curator.release(wrong_shape, Gaussian(60.0))
    assert_no_canary(str(raised.value))
    with pytest.raises(ValueError, match="n must be a public number") as raised:
        Units.from_arrays(features, targets, row_bound=1.0, relation="add-or-remove-one", n=N - 1)
    assert str(N) not in str(raised.value).replace(str(N - 1), "")


def test_values_that_are_no_labels_raise_nothing():
    rows = np.ones((4, 2))
    for labels in (
        np.array([0, [1], {}, None], dtype=object),
        np.array([0.0, np.nan, np.inf, 7.0]),
        np.array([2**63, 1, 0, 2**64 - 1], dtype=np.uint64),
        np.array([0, 1j, 1, np.nan]),
    ):
        units = Units.from_arrays(rows, labels, row_bound=1.0, classes=[0.0, 1.0])
        assert units.public.n == 4
    with pytest.raises(
        TypeError, match="give the labels as stored"
    ):  # bytes that are no text would raise later
        Units.from_arrays(rows, np.array([b"a", b"\xff", b"b", b"a"]), row_bound=1.0, classes=["a", "b"])


def test_a_loss_that_is_not_a_number_for_one_unit_does_not_stop_a_debugging_jax():
    loss = losses.RecordLoss(lambda params, features, target: jnp.sqrt(features @ params - target))
    curator = LocalCurator(
        as_units(*toy_arrays(case_named("gradient descent")), "replace-one"),
        Ledger(BUDGET, "replace-one", composition="gaussian"),
        noise=NoiseSource(1),
    )
    with double_precision(), jax.debug_nans(True):
        released = curator.release(ClippedGradient(loss=loss, at=jnp.ones(D), clip=0.5), Gaussian(60.0))
    assert np.all(np.isfinite(released))
