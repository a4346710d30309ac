"""A federated run is the run in one process; nodes that misbehave move it as far as anybody may, and no further."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from tests.support.turns import in_turn

import privopt
from privopt import Budget, Problem, Units, flower, minimize
from privopt.data.places import Stretch
from privopt.engine.receiving import ReceivingEngine
from privopt.engine.reference import ReferenceEngine
from privopt.errors import ArgumentError
from privopt.flower import InProcessGrid, UserStrategy, client_app
from privopt.flower.messages import Settings
from privopt.flower.strategy import Nodes
from privopt.ledger.events import EveryUnit, Poisson
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.regularisers import Ridge
from privopt.public import DEFAULT_WEIGHTING
from privopt.queries.slopes import ClippedGradient
from privopt.solvers.user_federated_averaging import UserFederatedAveraging
from privopt.solvers.user_gradient_descent import UserGradientDescent

N, D, CAP = 24, 3, 4
BUDGET = Budget(8.0, 1e-4)
RELATIONS = ["replace-one", "add-or-remove-one"]
IDS = [1000 + 7 * person for person in range(N)]


def people(labels=(-1.0, 1.0), seed=0, *, fewest=0):
    """(features, targets) of each person; the first has `fewest` records."""
    rng = np.random.default_rng(seed)
    sizes = [fewest, 1, *rng.integers(1, CAP + 1, N - 2)]
    return [(rng.normal(size=(k, D)), rng.choice(labels, size=k)) for k in sizes]


def in_process(data, loss=losses.logistic, *, tamper=None, ids=IDS):
    """A grid of these people's nodes."""

    def load(context):
        return data[context.node_config["person"]]

    nodes = {node: {"person": person} for person, node in enumerate(ids)}
    return InProcessGrid(client_app(loss, load), nodes, tamper=tamper)


def strategy(loss=losses.logistic, *, solver=None, **options):
    solver = UserGradientDescent(steps=4) if solver is None else solver
    options = {"n": N, "d": D, "budget": BUDGET, "row_bound": 1.5, "max_records_per_user": CAP} | options
    return UserStrategy(loss, solver=solver, random_state=7, **options)


def at_hand(data, **options):
    """The same people as units in one process."""
    keys = np.repeat(np.arange(len(data)), [len(features) for features, _ in data])
    options = {"n": N, "row_bound": 1.5, "max_records_per_user": CAP} | options
    columns = [np.concatenate(parts) for parts in zip(*data, strict=True)]
    return Units.from_arrays(*columns, groups=keys, **options)


def record(array, name="w"):
    return ArrayRecord({name: Array(np.asarray(array, float))})


def own_loss(params, features, target):
    return jnp.log1p((features @ params["slope"] + params["offset"] - target) ** 2)


def same_releases(left, right):
    assert [one.name for one in left.transcript] == [one.name for one in right.transcript]
    for one, other in zip(left.transcript, right.transcript, strict=True):
        np.testing.assert_allclose(one.released, other.released, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(one.sensitivity, other.sensitivity, rtol=1e-12)
        assert one.event == other.event


AVERAGING = UserFederatedAveraging(rounds=2, first_counts=3, later_counts=1)
CASES = {
    "user gradient descent": ({}, {}),
    "whitened": ({"solver": "auto"}, {}),
    "federated averaging": ({"solver": AVERAGING}, {}),
    "gradient descent": ({"solver": privopt.solvers.GradientDescent(steps=3, clip=0.2)}, {}),
    "sampled": ({"solver": privopt.solvers.StochasticGradientDescent(rate=0.4, steps=5, clip=0.2)}, {}),
    "numbers, intercept, ridge": (
        {"loss": Problem(losses.squared, Ridge(0.1)), "d": D + 1},
        {"target_bounds": (-1.0, 0.5), "intercept": 0.7},
    ),
    "classes": ({"loss": losses.softmax(3)}, {"classes": ["a", "b", "c"]}),
    "weights": ({}, {"user_weighting": "record", "typical_records": 2.0}),
}


@pytest.mark.at_once("gradient descent-add-or-remove-one")
@pytest.mark.parametrize(("name", "relation"), in_turn(CASES, RELATIONS))
def test_a_federated_run_has_the_releases_of_the_run_in_one_process(name, relation):
    server, public = CASES[name]
    # A sample is drawn, and a point counted, among those who are there: at hand, who has no records has no key.
    data = people(
        ["a", "b", "c"] if name == "classes" else (-1.0, 1.0),
        fewest=int(name in ("sampled", "federated averaging")),
    )
    loss = server.get("loss", losses.logistic)
    run = strategy(relation=relation, **server, **public)
    width = run.public.d if name != "classes" else (D, 3)
    found = run.start(in_process(data, loss), record(np.zeros(width), "weights")).private
    units = at_hand(data, relation=relation, **public)
    solver = server.get("solver", UserGradientDescent(steps=4))
    expected = minimize(loss, units, budget=BUDGET, solver=solver, random_state=7, start=np.zeros(width))
    same_releases(found, expected)
    np.testing.assert_allclose(found.params, expected.params, rtol=1e-12, atol=1e-12)
    assert found.plan.event == expected.plan.event


@pytest.mark.audit
def test_a_function_of_ones_own_takes_its_parameters_by_name():
    start = {"slope": np.zeros(D), "offset": np.zeros(())}
    initial = ArrayRecord({name: Array(value) for name, value in start.items()})
    data = people()
    options = {"solver": UserGradientDescent(steps=3, clip=0.3, step_size=0.5)}
    result = strategy(own_loss, **options).start(in_process(data, own_loss), initial)
    expected = minimize(own_loss, at_hand(data), budget=BUDGET, random_state=7, start=start, **options)
    same_releases(result.private, expected)
    assert list(result.arrays) == ["slope", "offset"]
    np.testing.assert_allclose(result.arrays["slope"].numpy(), expected.params["slope"], rtol=1e-12)


def test_the_result_is_flower_s_with_the_privacy_report_in_it():
    seen = []

    def evaluate(number, arrays):
        seen.append((number, arrays["w"].numpy().shape))
        return MetricRecord({"norm": float(np.linalg.norm(arrays["w"].numpy()))})

    run = strategy()
    assert isinstance(run, Strategy)
    result = run.start(in_process(people()), record(np.zeros(D)), evaluate_fn=evaluate)
    assert seen == [(0, (D,)), (5, (D,))]  # total weight, and four gradients
    assert set(result.evaluate_metrics_serverapp) == {0, 5}
    assert not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp
    assert "one user" in str(result.private.report)
    assert "UserResult(Result(" in repr(result)


# ---- nodes that misbehave -------------------------------------------------------------------------------------------
def vector_reply(reply, array):
    content = RecordDict(
        {"contribution": ArrayRecord({"vector": array}), "privopt": reply.content["privopt"]}
    )
    return resent(reply, content)


def resent(reply, content):
    return Message(metadata=reply.metadata, content=content)


def lie(number):
    def tamper(reply):
        honest = reply.content["contribution"]["vector"].numpy()
        return [vector_reply(reply, Array(np.full(honest.shape, number)))]

    return tamper


def _late(reply):
    content = RecordDict(
        {"contribution": reply.content["contribution"], "privopt": ConfigRecord({"ask": 10**6})}
    )
    return [resent(reply, content)]


def _boasting(reply):
    content = RecordDict(dict(reply.content) | {"metrics": MetricRecord({"num-examples": 10**9})})
    return [resent(reply, content)]


def _forged(reply):
    honest = reply.content["contribution"]["vector"]
    data = honest.data.replace(b"<f8", b"|O8").replace(b"'shape': (", b"'shape': (9")
    return [vector_reply(reply, Array(honest.dtype, honest.shape, honest.stype, data))]


MISCHIEF = {
    "silent": lambda reply: [],
    "late": _late,
    "nan": lie(np.nan),
    "infinite": lie(-np.inf),
    "huge": lie(1e30),
    "opposite": lie(-1e30),
    "wrong shape": lambda reply: [vector_reply(reply, Array(np.ones((2, 7))))],
    "long": lambda reply: [vector_reply(reply, Array(np.ones(10**5)))],
    "wrong type": lambda reply: [vector_reply(reply, Array(np.ones(D, np.float32)))],
    "forged array": _forged,
    "no array": lambda reply: [vector_reply(reply, Array("float64", (D,), "numpy.ndarray", b"\x93NUMPY"))],
    "wrong keys": lambda reply: [resent(reply, RecordDict({"arrays": record(np.ones(D))}))],
    "empty": lambda reply: [resent(reply, RecordDict())],
    "no message": lambda reply: [None, "hello", 3],
    "doubled": lambda reply: [reply, reply],
    "doubled, then huge": lambda reply: [reply, *lie(1e30)(reply)],
    "boasting": _boasting,
}
HARMLESS = {"doubled", "doubled, then huge", "boasting"}


def by(node, mischief):
    """One node misbehaves."""
    return lambda sender, reply: MISCHIEF[mischief](reply) if sender == node else [reply]


def engine_of(grid, relation, ids=IDS):
    run = strategy(relation=relation)
    settings = Settings(
        loss="Logistic()",
        n=N,
        d=D,
        relation=relation,
        row_bound=1.5,
        max_records_per_user=CAP,
        user_weighting=DEFAULT_WEIGHTING,
        typical_records=2.0,
        classes=None,
        target_bounds=None,
        intercept=None,
    )
    return ReceivingEngine(run.public, Nodes(grid, ids, settings, timeout=1.0))


@pytest.mark.at_once("silent-replace-one")
@pytest.mark.parametrize(("mischief", "relation"), in_turn(MISCHIEF, RELATIONS))
def test_a_node_moves_a_mean_by_at_most_the_sensitivity_whatever_it_answers(mischief, relation):
    data, bad = people(), 5
    query = ClippedGradient(loss=losses.logistic, at=np.array([0.3, -0.2, 0.4]), clip=0.25)
    others = [one for person, one in enumerate(data) if person != bad]
    with double_precision():
        honest = engine_of(in_process(data), relation)
        tampered = engine_of(in_process(data, tamper=by(IDS[bad], mischief)), relation)
        without = engine_of(
            in_process(others, ids=IDS[:bad] + IDS[bad + 1 :]), relation, IDS[:bad] + IDS[bad + 1 :]
        )
        found, expected = tampered.clipped_sum(query), honest.clipped_sum(query)
        gone = without.clipped_sum(query)
        most = float(honest.sensitivity(query, EveryUnit())) * N * (1 + 1e-9)
        assert np.linalg.norm(found - (expected if relation == "replace-one" else gone)) <= most
        if mischief in HARMLESS:
            assert np.array_equal(found, expected)
        elif mischief not in ("huge", "opposite"):
            np.testing.assert_allclose(found, gone, atol=1e-15)
        held = tampered.gather(query)
        present = tampered.presence()
        assert held.shape == (len(present), D)
        assert present[:N].all()
        assert not present[N:].any()
        np.testing.assert_allclose(np.sum(held, axis=0), found, atol=1e-15)


SOLVERS = {"descent": UserGradientDescent(steps=4), "averaging": AVERAGING}


@pytest.mark.at_once("doubled, then huge-averaging", "no message-averaging")
@pytest.mark.parametrize(("mischief", "solver"), in_turn(MISCHIEF, SOLVERS))
def test_a_run_ends_as_planned_though_every_node_misbehaves(mischief, solver):
    grid = in_process(people(), tamper=lambda node, reply: MISCHIEF[mischief](reply))
    run = strategy(solver=SOLVERS[solver])
    result = run.start(grid, record(np.zeros(D)), timeout=0.1).private
    assert np.all(np.isfinite(result.params))
    assert result.transcript.releases == result.plan.releases
    assert result.transcript.epsilon(BUDGET.delta) <= BUDGET.epsilon


@pytest.mark.audit
def test_a_node_whose_app_fails_counts_as_zero():
    data = people()
    data[3] = (np.ones((2, D + 1)), np.ones(2))  # columns that the public numbers know nothing of
    result = strategy().start(in_process(data), record(np.zeros(D))).private
    data[3] = (np.zeros((0, D)), np.zeros(0))
    same_releases(result, strategy().start(in_process(data), record(np.zeros(D))).private)


@pytest.mark.audit
def test_a_stranger_is_not_counted():
    data = people()

    def tamper(node, reply):
        stranger = in_process(data, ids=[node + 1])
        message = Message(RecordDict(), dst_node_id=node + 1, message_type=MessageType.TRAIN)
        stranger._replies.clear()
        return [Message(reply.content, reply_to=message), reply]

    result = strategy().start(in_process(data, tamper=tamper), record(np.zeros(D))).private
    same_releases(result, strategy().start(in_process(data), record(np.zeros(D))).private)


# ---- who takes part -------------------------------------------------------------------------------------------------
def asked_nodes(run, data, ids):
    asked = set()

    def tamper(node, reply):
        asked.add(node)
        return [reply]

    run.start(in_process(data, tamper=tamper, ids=ids), record(np.zeros(D)))
    return asked


@pytest.mark.audit
def test_of_more_nodes_than_people_the_first_take_part_where_the_nodes_are_public():
    assert asked_nodes(strategy(n=20), people(), IDS[::-1]) == set(IDS[:20])


def test_everybody_takes_part_where_people_come_and_go():
    """A node that comes must not move another one out: that would be two changes."""
    assert asked_nodes(strategy(n=20, relation="add-or-remove-one"), people(), IDS) == set(IDS)


@pytest.mark.at_once("0", "1", "19")
@pytest.mark.parametrize("count", [0, 1, 19, 20, 21, 39, 40])
def test_one_who_comes_changes_their_own_part_alone(count):
    data, ids = people() + people(seed=1), list(range(2 * N))
    run = strategy(n=20, relation="add-or-remove-one", solver=UserGradientDescent(steps=1))
    assert asked_nodes(run, data, ids[:count]) == set(ids[:count])


def test_more_people_than_were_declared_are_refused_before_anything_is_asked_or_paid():
    grid = in_process(people() + people(), ids=range(2 * N))
    account = privopt.Account(8.0, 1e-4, relation="add-or-remove-one")
    run = strategy(n=20, relation="add-or-remove-one", account=account)
    with pytest.raises(ArgumentError, match="n declares that no data set has more than 2 n people"):
        run.start(grid, record(np.zeros(D)))
    assert grid._sent == 0
    assert not account.entries


# ---- how long it takes ----------------------------------------------------------------------------------------------
class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(flower.strategy, "time", self)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        assert seconds >= 0
        self.now += seconds


def seconds_of(monkeypatch, run, data, *, slow=(), silent=(), timeout=6.0):
    """How long a run takes by the clock, on a grid that waits for the last answer or the timeout."""
    clock = Clock(monkeypatch)

    class Waiting(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            sent = list(messages)
            asked = {message.metadata.dst_node_id for message in sent}
            clock.sleep(timeout if asked & set(silent) else 2.0 * bool(asked & set(slow)))
            replies = super().send_and_receive(sent)
            return [reply for reply in replies if reply.metadata.src_node_id not in silent]

    nodes = {node: {"person": person} for person, node in enumerate(IDS[: len(data)])}
    grid = Waiting(client_app(losses.logistic, lambda context: data[context.node_config["person"]]), nodes)
    run.start(grid, record(np.zeros(D)), timeout=timeout)
    return clock.now


@pytest.mark.audit
def test_who_is_there_does_not_show_in_how_long_a_run_waits(monkeypatch):
    waits = {
        seconds_of(monkeypatch, strategy(relation="add-or-remove-one", wait_seconds=5.0), people()[:count])
        for count in (0, 1, N - 1, N)
    }
    assert waits == {5.0}


def test_nobody_is_waited_for_unless_asked(monkeypatch):
    assert seconds_of(monkeypatch, strategy(relation="add-or-remove-one"), []) == 0.0


@pytest.mark.audit
def test_where_nodes_are_public_a_run_waits_for_them(monkeypatch):
    assert seconds_of(monkeypatch, strategy(least_nodes=N, wait_seconds=5.0), people()) == 5.0
    assert seconds_of(monkeypatch, strategy(least_nodes=N, wait_seconds=5.0), people()[1:]) == 11.0


@pytest.mark.later("everybody")
@pytest.mark.parametrize(
    "solver",
    [
        UserGradientDescent(steps=4),
        privopt.solvers.StochasticGradientDescent(rate=0.1, steps=5, clip=0.2),
    ],
    ids=["everybody", "sampled"],
)
def test_with_fixed_rounds_nobody_who_is_slow_or_silent_or_absent_shows(monkeypatch, solver):
    run = strategy(relation="add-or-remove-one", solver=solver, round_seconds=7.0)
    plain = strategy(relation="add-or-remove-one", solver=solver)
    cases = [
        (people(), {}),
        (people(), {"slow": IDS[:1]}),
        (people(), {"silent": IDS[:1]}),
        (people(), {"silent": IDS}),
        (people()[:-1], {}),
        ([], {}),
    ]
    rounds = {seconds_of(monkeypatch, run, data, **those) / 7.0 for data, those in cases}
    assert rounds in ({5.0}, {6.0})  # a total weight before the four gradients, perhaps one before the five
    assert seconds_of(monkeypatch, plain, people(), silent=IDS) > seconds_of(monkeypatch, plain, people())


def test_a_wait_that_would_show_one_person_is_refused():
    with pytest.raises(ValueError, match="how long the run waits for them would show whether one person is"):
        strategy(relation="add-or-remove-one", least_nodes=2)
    with pytest.raises(TypeError, match=r"least_nodes must be an integer, got 2\.5"):
        strategy(least_nodes=2.5)


@pytest.mark.parametrize("name", ["wait_seconds", "round_seconds"])
def test_a_number_of_seconds_is_one(name):
    for wrong in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"{name} must be a finite number of seconds"):
            strategy(**{name: wrong})
    with pytest.raises(TypeError, match=f"{name} must be a number of seconds, got '1'"):
        strategy(**{name: "1"})


def test_a_round_must_have_time_for_the_timeout():
    grid = in_process(people())
    with pytest.raises(ValueError, match="timeout = 3600 must be less than round_seconds = 60"):
        strategy(round_seconds=60).start(grid, record(np.zeros(D)))
    assert grid._sent == 0


def test_nobody_at_all_is_a_run_too():
    result = strategy().start(in_process([], ids=[]), record(np.zeros(D)), timeout=0.01).private
    assert np.all(np.isfinite(result.params))


def test_blocks_and_samples_ask_their_own_people_only():
    data, query = people(), ClippedGradient(loss=losses.logistic, at=np.zeros(D), clip=0.4)
    asked = []

    def tamper(node, reply):
        asked.append(node)
        return [reply]

    engine = engine_of(in_process(data, tamper=tamper), "replace-one")
    with double_precision():
        whole = engine.clipped_sum(query)
        asked.clear()
        parts = [engine.subset(Stretch(0, 5), 5), engine.subset(Stretch(5, 40), 19)]
        sums = [part.clipped_sum(query) for part in parts]
        assert asked == IDS
        np.testing.assert_allclose(sum(sums), whole, rtol=1e-12)
        assert [part.public.n for part in parts] == [5, 19]
        asked.clear()
        drawn = engine.draw(Poisson(0.5), np.random.default_rng(1))
        engine.clipped_sum(query, drawn)
        assert asked == [IDS[position] for position in drawn]
        matrix = np.linspace(-1.0, 1.0, 2 * D).reshape(D, 2)
        view = engine.view(matrix, 0.8)
        mapped = ClippedGradient(loss=losses.logistic, at=np.zeros(2), clip=0.4)
        units = at_hand(data).mapped(matrix, 0.8)
        np.testing.assert_allclose(
            view.clipped_sum(mapped), ReferenceEngine(units).clipped_sum(mapped), rtol=1e-12
        )


def test_of_many_records_the_same_ones_count_in_every_round():
    rng = np.random.default_rng(3)
    data = [(rng.normal(size=(50, D)), rng.choice([-1.0, 1.0], 50)) for _ in range(N)]
    engine = engine_of(in_process(data), "replace-one")
    query = ClippedGradient(loss=losses.logistic, at=np.zeros(D), clip=1.0)
    other = engine_of(in_process(data), "replace-one")
    with double_precision():
        first = engine.clipped_sum(query)
        assert np.array_equal(first, engine.clipped_sum(query))
        assert not np.allclose(first, other.clipped_sum(query))


# ---- what is refused ------------------------------------------------------------------------------------------------
def test_what_needs_all_records_is_refused_before_anybody_is_asked():
    grid = in_process(people())
    with pytest.raises(ValueError, match="objective-perturbation"):
        strategy(solver="objective-perturbation").start(grid, record(np.zeros(D)))
    with pytest.raises(ValueError, match="NewtonDirection is not answered by units that hold their own"):
        strategy(solver=privopt.papers.DoubleNoiseNewton()).start(grid, record(np.zeros(D)))
    engine = engine_of(grid, "replace-one")
    with pytest.raises(ValueError, match="a query that sees all of them at once cannot be answered"):
        engine.records()
    with pytest.raises(ValueError, match="an objective over all of them cannot be minimised"):
        engine.objective(None)
    with pytest.raises(ValueError, match="with `release`"):
        engine.rows(np.arange(1), 1)
    assert grid._sent == 0


def test_arguments_that_are_not_taken_say_why():
    run, grid, start = strategy(), in_process(people()), record(np.zeros(D))
    with pytest.raises(ValueError, match="the rounds are part of the price"):
        run.start(grid, start, num_rounds=3)
    with pytest.raises(ValueError, match="what nodes measure on their own records is not private"):
        run.start(grid, start, evaluate_config=ConfigRecord())
    with pytest.raises(ValueError, match="holds no array"):
        run.start(grid, ArrayRecord())
    with pytest.raises(ValueError, match=r"must hold one array for this loss, got \['a', 'b'\]"):
        run.start(grid, ArrayRecord({name: Array(np.zeros(D)) for name in "ab"}))
    with pytest.raises(ValueError, match="row_bound must be positive"):
        strategy(row_bound=0.0)
    with pytest.raises(TypeError, match="budget must be a Budget"):
        strategy(budget=1.0)
    with pytest.raises(ValueError, match="d must be at least 2 columns, got 1"):
        strategy(d=1, intercept=1.0)
    assert grid._sent == 0


def test_a_node_refuses_to_answer_for_another_loss():
    failures = []

    def tamper(node, reply):
        failures.append(reply.error.reason)
        return [reply]

    strategy().start(in_process(people(), losses.huber(0.5), tamper=tamper), record(np.zeros(D)))
    assert "the loss here is 'Huber(threshold=0.5)', but 'Logistic()' was asked for" in failures[0]


def test_flower_s_own_steps_tell_nothing():
    run, grid = strategy(), in_process(people())
    messages = list(run.configure_train(1, record(np.zeros(D)), ConfigRecord(), grid))
    assert [message.metadata.dst_node_id for message in messages] == IDS
    assert run.aggregate_train(1, messages) == (None, None)
    assert run.configure_evaluate(1, ArrayRecord(), ConfigRecord(), grid) == []
    assert run.aggregate_evaluate(1, messages) is None


def test_without_flower_the_import_says_what_to_install():
    program = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "flwr" else found(name, *rest)
import privopt.flower
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'privopt[flower]'" in finished.stderr
