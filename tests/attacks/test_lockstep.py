import threading

import numpy as np
import pytest

from privopt import minimize
from privopt.attacks.lockstep import Steering, in_lockstep
from privopt.attacks.subjects import Turned
from privopt.curator.local import LocalCurator
from privopt.curator.run import Run
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.problems import losses
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.objective_perturbation import ObjectivePerturbation

ROWS = np.random.default_rng(0).uniform(-1, 1, (30, 2)) / 2
LABELS = (ROWS[:, 0] > 0).astype(np.int64)
OTHER = np.where(np.arange(30) == 7, 1 - LABELS, LABELS)


def program(labels, solver=None, problem=losses.logistic):
    solver = GradientDescent(steps=3) if solver is None else solver
    units = Units.from_arrays(ROWS, labels, classes=[0, 1], relation="replace-one", row_bound=1.0)

    def run():
        found = minimize(problem, units, budget=Budget(1.0, 1e-5), solver=solver, random_state=1)
        return [found.params]

    return run


def test_two_sides_are_given_the_same_answers_and_what_tells_them_apart_is_noted():
    seen = in_lockstep(program(LABELS), program(OTHER))
    assert seen.names == ["ClippedGradient"] * 3
    assert seen.same_end
    assert not seen.parted
    assert 0 < seen.longest.ratio <= 1
    assert seen.spread > 0
    assert seen.log_weight == 0.0
    steered = in_lockstep(program(LABELS), program(OTHER), steering=Steering.for_spread(seen.spread, 1e-5))
    assert steered.log_ratio > seen.log_ratio


def test_the_same_data_are_not_told_apart():
    seen = in_lockstep(program(LABELS), program(LABELS))
    assert (seen.log_ratio, seen.spread, seen.longest.ratio) == (0.0, 0.0, 0.0)


def test_a_release_whose_law_is_not_known_is_answered_and_named():
    from privopt.problems.problem import Problem
    from privopt.problems.regularisers import Ridge

    problem = Problem(losses.logistic, Ridge(0.1))
    solver = ObjectivePerturbation()
    seen = in_lockstep(program(LABELS, solver, problem), program(OTHER, solver, problem))
    assert seen.unwatched
    assert seen.same_end


def test_programs_that_ask_for_different_things_part_and_an_error_is_passed_on():
    longer = program(LABELS, GradientDescent(steps=4))
    seen = in_lockstep(program(LABELS), longer)
    assert seen.parted.startswith(("stop that follows", "control that follows", "noise that follows"))

    def fails():
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        in_lockstep(program(LABELS), fails)


def test_other_runs_of_the_process_are_as_ever():
    usual, found = Run.curator, []

    def bystander():
        units = Units.from_arrays(ROWS, LABELS, classes=[0, 1], relation="replace-one", row_bound=1.0)
        solver = GradientDescent(steps=2)
        found.append(minimize(losses.logistic, units, budget=Budget(1.0, 1e-5), solver=solver))

    def left():
        thread = threading.Thread(target=bystander)
        thread.start()
        thread.join()
        return program(LABELS)()

    in_lockstep(left, program(OTHER))
    assert found[0].transcript.releases == 2
    assert Run.curator is usual
    assert LocalCurator.__subclasses__()


def test_pairs_differ_in_one_record_and_strangers_in_all():
    worst = Turned(target=1, others=(0,), share=0.2)
    left, right = worst.left(50, int), worst.right(50, int)
    changed = np.any(left.rows != right.rows, axis=1) | (left.targets != right.targets)
    assert changed.tolist() == [False] * 49 + [True]
    assert len(left.first(49)) == 49
    assert [len(one) for one in worst.strangers(50, int)] == [50, 50]
