"""Losses known by their values: what they are called with, what counts as bad, and what is refused beforehand."""

import os
import random
import signal
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt.ledger.amounts import Budget
from privopt.precision import double_precision
from privopt.problems.black_box import (
    BlackBox,
    CallsOfPoints,
    quiet_calls,
    seconds_per_value,
    try_on_made_up_records,
)
from privopt.problems.constraints import L2Ball
from privopt.problems.layout import PytreeLayout
from privopt.problems.problem import Problem
from privopt.public import Public, Relation
from privopt.solve import plan
from privopt.solve_arguments import check_loss, flat_start, posed_problem
from privopt.solvers.registry import NAMES, named

PUBLIC = Public(n=50, d=3, relation=Relation.REPLACE_ONE, row_bound=1.0)


def distance(params, features, target):
    return float(np.abs(params - features).sum() + target)


def box(values=distance, **others):
    return BlackBox(values, **({"value_range": (0.0, 10.0), "scale": 1.0} | others))


def laid(values=distance, start=(0.0, 0.0, 0.0), **others):
    return Problem.of_values(box(values, **others), np.asarray(start)).loss


def called(loss, points, features=(0.1, 0.2, 0.3), target=1.0):
    return CallsOfPoints(loss, np.asarray(points, float))(np.asarray(features), target)


@pytest.fixture(autouse=True)
def in_double_precision():
    with double_precision():
        yield


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value_range": None}, "give `value_range`"),
        ({"value_range": (1.0, 1.0)}, "lo < hi"),
        ({"value_range": (2.0, 1.0)}, "lo < hi"),
        ({"value_range": (0.0, np.inf)}, "finite with lo < hi"),
        ({"value_range": (np.nan, 1.0)}, "finite with lo < hi"),
        ({"value_range": 3.0}, "two numbers"),
        ({"scale": None}, "give `scale`"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"scale": {"a": np.array([1.0, np.nan])}}, "scale must be positive"),
    ],
)
def test_constants_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        box(**changes)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="values must be a function"):
        box(3.0)


def test_two_are_equal_when_they_hold_the_same_function():
    class Callable:
        __hash__ = None

        def __call__(self, params, features, target):
            return 0.0

    one, other = Callable(), Callable()
    assert box(one) == box(one)
    assert hash(box(one)) == hash(box(one))
    assert box(one) != box(other)
    assert box(one) != box(one, value_range=(0.0, 1.0))
    assert laid(one) == laid(one)
    assert box(one, scale={"a": np.ones(2)}) == box(one, scale={"a": np.ones(2)})


def test_parameters_come_back_in_their_own_units_and_shape():
    seen = []

    def values(params, features, target):
        seen.append((params["w"].shape, type(params["b"]), params["w"][0, 0], params["b"]))
        return 1.0

    start = {"w": np.full((2, 2), 3.0), "b": 5.0}
    problem = Problem.of_values(box(values, scale={"w": np.full((2, 2), 0.5), "b": 10.0}), start)
    flat = problem.ravel(start)
    assert np.allclose(flat, [0.5, 6.0, 6.0, 6.0, 6.0])
    assert np.allclose(problem.unravel(flat)["w"], 3.0)
    called(problem.loss, [flat])
    assert seen == [((2, 2), np.float64, 3.0, 5.0)]


def test_a_scale_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"scale must be .* got array\(2,\) where the start is array\(3,\)"):
        Problem.of_values(box(scale=np.ones(2)), np.zeros(3))
    with pytest.raises(ValueError, match=r"got \[number, number\] where the start is \{'s': number\}"):
        Problem.of_values(box(scale=[1.0, 2.0]), {"s": 1.0})


def test_a_scale_keeps_its_digits_without_double_precision():
    with jax.enable_x64(False):
        loss = box(scale={"s": 0.1, "t": np.array([3e60])}).laid_out(
            PytreeLayout.of({"s": 1.0, "t": np.ones(1)})
        )
    assert loss.scale == (0.1, 3e60)


def test_values_are_moved_into_the_range_and_bad_ones_are_nan():
    answers = [20.0, -3.0, np.nan, np.inf, None, np.ones(2), "1", 1j, True, np.float32(2.0)]
    places = iter(answers)
    loss = laid(lambda params, features, target: next(places))
    found = called(loss, np.zeros((len(answers), 3)))
    assert np.array_equal(found, [10.0, 0.0, np.nan, 10.0, np.nan, np.nan, np.nan, np.nan, 1.0, 2.0], True)


@pytest.mark.parametrize("failure", [ValueError, ZeroDivisionError, SystemExit, RecursionError])
def test_a_record_that_makes_the_callable_raise_has_bad_values(failure):
    def values(params, features, target):
        if params[0] > 0:
            raise failure
        return 1.0

    assert np.array_equal(called(laid(values), [[1.0, 0, 0], [0.0, 0, 0]]), [np.nan, 1.0], True)


def test_several_points_at_once_get_one_record():
    def values(params, features, target):
        assert features.shape == (3,)
        return np.abs(params - features).sum(axis=1) + target

    points = np.array([[0.0, 0, 0], [1.0, 2, 3]])
    assert np.allclose(called(laid(values, vectorized=True), points), called(laid(), points))
    short = laid(lambda params, features, target: np.zeros(1), vectorized=True)
    assert np.isnan(called(short, points)).all()


def test_the_callable_cannot_write_to_what_other_records_get():
    def values(params, features, target):
        params["w"][0] = 7.0
        return 1.0

    def changes_the_container(params, features, target):
        params["w"] = params["w"] + 7.0
        return float(params["w"][0])

    start = {"w": np.zeros(2)}
    assert np.isnan(called(Problem.of_values(box(values), start).loss, np.zeros((2, 2)))).all()
    loss = Problem.of_values(box(changes_the_container), start).loss
    calls = CallsOfPoints(loss, np.zeros((1, 2)))
    assert [calls(np.zeros(3), 0.0)[0] for _ in range(2)] == [7.0, 7.0]


def test_the_global_generators_begin_anew_at_every_call_and_are_as_they_were_after():
    def values(params, features, target):
        return np.random.rand() + random.random()  # noqa: NPY002

    problem = Problem.of_values(box(values), np.zeros(3))
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    first = np.random.rand() + random.random()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    value = problem.objective(jnp.zeros(3), np.zeros((5, 3)), np.zeros(5))
    assert np.random.rand() + random.random() == first  # noqa: NPY002
    assert float(value) == float(problem.loss.value(np.zeros(3), np.zeros(3), 0.0))


def test_the_objective_is_the_mean_of_the_values():
    rows = np.random.default_rng(0).normal(size=(6, 3))
    problem = Problem.of_values(box(scale=2.0), np.zeros(3))
    traced = Problem.of_values(
        box(
            lambda params, features, target: jnp.abs(params - features).sum() + target, host=False, scale=2.0
        ),
        np.zeros(3),
    )
    at = jnp.array([0.1, 0.2, 0.3])
    expected = np.abs(2.0 * np.asarray(at) - rows).sum(axis=1).mean() + 1.0
    assert np.isclose(problem.objective(at, rows, np.ones(6)), expected)
    assert np.isclose(traced.objective(at, rows, np.ones(6)), expected)


def test_there_is_no_gradient():
    problem = Problem.of_values(box(), np.zeros(3))
    with pytest.raises(ValueError, match="known by its values only"):
        problem.record_gradient(jnp.zeros(3), jnp.zeros(3), jnp.zeros(()))


def test_a_start_is_needed():
    with pytest.raises(ValueError, match=r"give `start`.*black box"):
        posed_problem(box(), None)
    with pytest.raises(ValueError, match=r"give `start`.*black box"):
        posed_problem(Problem(box(), constraint=L2Ball(1.0)), None)
    posed = posed_problem(Problem(box(scale=2.0), constraint=L2Ball(1.0)), np.ones(3))
    assert posed.constraint == L2Ball(1.0)
    assert np.allclose(flat_start(posed, np.ones(3), PUBLIC), 0.5)


def refused(values, **others):
    problem = posed_problem(box(values, **others), np.zeros(3))
    check_loss(problem, PUBLIC, np.zeros(3))


def raising(params, features, target):
    raise KeyError("price")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            raising,
            r"failed on made-up records: it raised KeyError \('price'\)\. It must answer with one real number",
        ),
        (lambda p, f, t: None, "it answered with None"),
        (lambda p, f, t: [1.0, "a"], "it answered with a list"),
        (lambda p, f, t: p - f, r"an array of shape \(3,\)"),
        (lambda p, f, t: np.nan, "it answered with .*nan"),
        (lambda p: 1.0, "it raised TypeError"),
        (lambda p, f, t: f.sort() or 1.0, r"it raised ValueError \(.*read-only\)"),
    ],
)
def test_a_callable_that_fails_on_made_up_records_is_refused_with_what_it_did(values, message):
    with pytest.raises(TypeError, match=message):
        refused(values)


def test_several_points_need_as_many_answers():
    with pytest.raises(TypeError, match="m real numbers for m points"):
        refused(lambda p, f, t: 1.0, vectorized=True)


def test_a_callable_that_keeps_state_is_refused():
    calls = []

    def counting(params, features, target):
        calls.append(1)
        return 0.01 * len(calls)

    own = np.random.default_rng(0)
    for values in (counting, lambda params, features, target: own.random()):
        with pytest.raises(ValueError, match="keeps state, or has a random generator of its own"):
            refused(values)
    refused(lambda params, features, target: np.random.rand())  # noqa: NPY002


def test_one_that_needs_certain_records_is_tried_on_an_example():
    def whole(params, features, target):
        if features[1] != 12.0:
            raise ValueError("no month")
        return float(target)

    with pytest.raises(TypeError, match="no month"):
        refused(whole)
    refused(whole, example=([1.0, 12.0, 3.0], 2.0))


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (3, "a pair of its features, numbers, and its target"),
        (([1.0, 2.0, "a"], 1.0), "a pair of its features, numbers, and its target"),
        ((np.ones(7), 1.0), r"features of one record, of shape \(3,\), got shape \(7,\)"),
    ],
)
def test_an_example_that_is_no_record_is_refused(example, message):
    with pytest.raises(ValueError, match=message):
        refused(lambda p, f, t: 1.0, example=example)


def test_jax_ones_are_traced_and_not_called():
    def traced(params, features, target):
        return jnp.sum(jnp.where(params > 0, params, features)) + target

    refused(traced, host=False)
    refused(
        lambda params, features, target: params @ features + target,
        host=False,
        vectorized=True,
    )
    with pytest.raises(TypeError, match="leave out host=False"):
        refused(distance, host=False)
    with pytest.raises(TypeError, match="one number for a record"):
        refused(lambda params, features, target: params, host=False)


def test_a_value_is_timed_on_made_up_records():
    loss = laid()
    assert 0 < seconds_per_value(loss, 3) < 0.1
    assert seconds_per_value(loss, 3) == seconds_per_value(laid(loss.values), 3)
    try_on_made_up_records(laid(), np.zeros(3), 3)


def test_every_solver_that_differentiates_refuses_it_with_one_sentence():
    problem = posed_problem(box(), np.zeros(3))
    for name in NAMES:
        solver = named(name)
        if not solver.by_values:
            with pytest.raises(ValueError, match="it needs derivatives, and the loss is a black box"):
                solver.check_applicable(problem, PUBLIC)
        else:
            assert name not in ("gradient-descent", "whitening")


def test_a_plan_by_a_solver_that_differentiates_is_refused():
    with pytest.raises(ValueError, match="black box, known by its values only"):
        plan(box(), n=50, d=3, epsilon=1.0, delta=1e-5, start=np.zeros(3), solver="gradient-descent")
    assert Budget(1.0, 1e-5).is_private


class Panic(BaseException):
    """What extension modules raise, and `except Exception` lets through."""


class NoArray:
    def __array__(self, *arguments, **others):
        np.seterr(all="raise")
        warnings.simplefilter("error")
        raise MemoryError


def strict_errors(params):
    np.seterr(all="raise")


def strict_warnings(params):
    warnings.simplefilter("error")


def another_shape(params):
    params.shape = (2, 1)


def another_value(params):
    with np.errstate():
        (params if params.base is None else params.base).flags.writeable = True
        params.flags.writeable = True
        params[:] = 7.0


def another_generator(params):
    np.random.set_bit_generator(np.random.PCG64(1))


def panics(params):
    raise Panic


def interrupts(params):
    raise KeyboardInterrupt


def answers_strangely(params):
    return NoArray()


def stops(params):
    raise GeneratorExit


@pytest.mark.parametrize(
    "does",
    [
        strict_errors,
        strict_warnings,
        another_shape,
        another_value,
        another_generator,
        panics,
        interrupts,
        answers_strangely,
        stops,
    ],
)
def test_whatever_the_callable_does_for_one_record_the_next_is_answered_alike(does):
    def values(params, features, target):
        if features[0] > 100.0:
            return does(params)
        warnings.warn("no business of the others", RuntimeWarning, stacklevel=1)
        at_infinity = np.minimum(np.float64(1.0) / np.float64(0.0), 5.0)
        return float(at_infinity + params.sum() + params.ndim + np.random.normal())  # noqa: NPY002

    loss = laid(values, start=(0.0, 0.0))

    def last_of(first):
        calls = CallsOfPoints(loss, np.asarray([[0.0, 0.0], [0.5, 0.5]]))
        with quiet_calls():
            calls(np.asarray([first, 0.0]), 0.0)
            return calls(np.asarray([1.0, 0.0]), 0.0)

    answers = last_of(1.0)
    assert np.all(np.isfinite(answers))
    assert np.array_equal(answers, last_of(200.0))


def test_an_answer_that_refuses_to_become_an_array_is_a_bad_one():
    assert np.isnan(called(laid(lambda params, features, target: NoArray()), [[0.0, 0.0, 0.0]])[0])


def test_only_an_interrupt_from_outside_ends_the_calls():
    def handler(number, frame):
        raise KeyboardInterrupt("by the user")

    def values(params, features, target):
        os.kill(os.getpid(), signal.SIGINT)
        return 1.0

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt, match="by the user"), quiet_calls():
            called(laid(values), [[0.0, 0.0, 0.0]])
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
