"""A Flower strategy that runs a solver of the library: the solver asks the curator, the curator asks the nodes."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from privopt.curator.base import Observer
from privopt.data.units import Units
from privopt.engine.receiving import Asked, ReceivingEngine
from privopt.errors import ArgumentError
from privopt.flower.messages import Settings, question, read_answer
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.problems.losses import GLMLoss, RecordLoss
from privopt.problems.problem import Problem
from privopt.public import DEFAULT_RECORDS, DEFAULT_WEIGHTING, Public, Relation, Weighting
from privopt.queries.received import loss_name
from privopt.result import Result
from privopt.solve import Loss, minimize
from privopt.solve_arguments import check_payment, posed_problem
from privopt.solvers.base import Solver

_POLL_SECONDS = 1.0
# Under add-or-remove-one, times n: what bounds of the rounding of sums suppose of a drawn block.
MOST_NODES = 2


@dataclass
class UserResult(FlowerResult):
    """What `UserStrategy.start` returns: Flower's result, whose metrics of nodes stay empty, and the library's.

    Attributes:
        private: parameters, status, transcript, plan and privacy report of the run.
    """

    private: Result | None = None

    def __repr__(self) -> str:
        return f"UserResult({self.private!r})"


class UserStrategy(Strategy):
    """Minimise a mean loss over people, each of whom keeps their records on a node of their own.

    It runs the same solver as `privopt.minimize`, on a curator whose engine asks the nodes: with the same seed and one
    person a node the releases are the same. The solver says how many rounds there are, and everything they cost is paid
    before the first node is asked.

    Args:
        problem: a loss, a `Problem`, or a function, as for `minimize`; `client_app` gets the same.
        n: public number of people, by which means are divided however many answer. Under replace-one the n nodes of the
            smallest identifiers take part if there are more. Under add-or-remove-one everybody does, and more than 2n
            are refused: let n be a number that the people hardly exceed, and no data set have more than 2n.
        d: columns of a record's features, the intercept's included.
        budget: the (epsilon, delta) of the run.
        row_bound: public bound on the norm of a record's features, without the intercept.
        relation: the neighbouring relation: one person's records are replaced, or one person comes or goes.
        max_records_per_user: public cap on the records of a person that count.
        user_weighting: what the average of a person's records weighs, see `Units.from_arrays`.
        typical_records: public guess of the records of a typical person, likewise.
        classes: public labels, likewise.
        target_bounds: public (low, high), likewise.
        intercept: public value of a constant last column that the nodes append; None for none.
        solver: "auto", a name, or a configured solver. It must get by with means over people, see `queries.received`.
        account: a budget shared with other runs; charged for the whole plan.
        random_state: a seed: reproducible, and *not private*.
        observer: called with (name, count) after releases.
        least_nodes: `start` waits until so many nodes are there, for as long as it would wait for an answer. Only under
            replace-one, where their number is public.
        wait_seconds: public number of seconds that `start` waits, always in full, before it looks who is there.
        round_seconds: public number of seconds that every round lasts at least, however soon the answers are there; it
            must exceed the `timeout` of `start`. None ends a round with its last answer.
    Privacy:
        (epsilon, delta)-differential privacy of one person, who is one node, towards whoever sees what the server
        releases: parameters, transcript, result. The server itself sees the contributions, which are clipped and have
        no noise, and is trusted with them, as are the channels to it. What a node answers is trusted in nothing: each
        counts once a round, is clipped again, and counts as zero if it is late, silent or senseless; see
        `engine.receiving`. No metric, number of examples or error of a node is read or passed on. That a person has
        one node is the caller's declaration. A price that supposes a secret sample supposes that nobody but the server
        learns which nodes were asked.

        Under add-or-remove-one the data sets, and so the neighbours among which the guarantee holds, are those of at
        most 2n nodes: the caller's declaration too, as that no data set exceeds the n of `Units.from_arrays`. The
        rounding of sums is priced for so many, see `engine.rounding`. Everybody takes part, so one who comes changes
        their own part alone. No coin could take the declaration's place: at a public rate it bounds the expected
        number for a declared number of nodes only, and the number itself for none; at a rate computed from how many
        there are, one who comes would change the part of everybody. The one refusal that depends on the number of
        nodes names the declaration, and no two declared neighbours differ in it.

        How long things take is no release and is not priced. A round ends with its last answer, or at the timeout: one
        person who is slow or silent makes it longer, for whoever can see when rounds begin or results appear. With
        `round_seconds` rounds last alike, up to what the server itself computes and what the grid needs beyond its
        timeout; so do starts under add-or-remove-one, which wait for nobody.
    Raises:
        TypeError, ValueError: an argument is out of its range, or `least_nodes` is above 1 under add-or-remove-one.
    """

    def __init__(
        self,
        problem: Loss,
        *,
        n: int,
        d: int,
        budget: Budget,
        row_bound: float,
        relation: Relation | str = Relation.REPLACE_ONE,
        max_records_per_user: int = DEFAULT_RECORDS,
        user_weighting: Weighting = DEFAULT_WEIGHTING,
        typical_records: float | None = None,
        classes: Sequence[Any] | None = None,
        target_bounds: tuple[float, float] | None = None,
        intercept: float | None = None,
        solver: Solver | str = "auto",
        account: Account | None = None,
        random_state: int | None = None,
        observer: Observer | None = None,
        least_nodes: int = 1,
        wait_seconds: float = 0.0,
        round_seconds: float | None = None,
    ) -> None:
        check_payment(budget, account, observer)
        columns = d - (intercept is not None)
        if columns < 1:
            raise ValueError(f"d must be at least {1 + (intercept is not None)} columns, got {d}.")
        # No records at all: what is public about people who hold theirs elsewhere, checked as for those at hand.
        nobody = Units.from_arrays(
            np.zeros((0, columns)),
            None if classes is None else np.zeros(0, np.asarray(list(classes)).dtype),
            relation=relation,
            row_bound=row_bound,
            n=n,
            groups=np.zeros(0, np.int64),
            max_records_per_user=max_records_per_user,
            user_weighting=user_weighting,
            typical_records=typical_records,
            classes=classes,
            target_bounds=target_bounds,
            intercept=intercept,
        )
        self.public: Public = nobody.public.block(int(n))
        self._problem, self._solver, self._budget = problem, solver, budget
        self._account, self._random_state, self._observer = account, random_state, observer
        self._least_nodes = _least_nodes(least_nodes, self.public.relation)
        self._wait_seconds = _seconds("wait_seconds", wait_seconds)
        self._round_seconds = None if round_seconds is None else _seconds("round_seconds", round_seconds)
        self._settings = Settings(
            loss="",
            n=int(n),
            d=self.public.d,
            relation=self.public.relation.value,
            row_bound=float(row_bound),
            max_records_per_user=self.public.records_per_unit,
            user_weighting=user_weighting,
            typical_records=self.public.typical_records,
            classes=None if classes is None else np.asarray(list(classes)).tolist(),
            target_bounds=None
            if target_bounds is None
            else (float(target_bounds[0]), float(target_bounds[1])),
            intercept=None if intercept is None else float(intercept),
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> UserResult:
        """Run the solver.

        Args:
            grid: the nodes, of which those take part in the whole run that are there when it has waited.
            initial_arrays: the starting point: one array, or for a function the arrays of its dictionary of parameters.
            num_rounds: not taken: the number of rounds is the solver's, since it decides the price.
            timeout: seconds to wait for the answers to one question. If `round_seconds` is given, less than that by
                what the grid needs beyond it: three seconds, where it looks for answers every three.
            train_config: sent to the nodes with each question.
            evaluate_config: not taken: what nodes measure is not private.
            evaluate_fn: called with (0, the starting point) and (questions asked, the released parameters), at the
                server and on its own data.
        Raises:
            TypeError, ValueError, BudgetExceeded: an argument is not usable, or the budget cannot pay; no node was
                asked.
            ArgumentError: there are more nodes than were declared, see `Privacy`; no node was asked, nothing paid.
        """
        _refuse(num_rounds, evaluate_config)
        self._check_timeout(timeout)
        start, shapes = _starting_point(initial_arrays, self._problem)
        loss = posed_problem(self._problem, start).loss
        settings = replace(self._settings, loss=loss_name(loss), start=shapes)
        self.summary()
        nodes = Nodes(
            grid,
            self._taking_part(grid, timeout),
            settings,
            timeout=timeout,
            config=train_config,
            round_seconds=self._round_seconds,
        )
        result = UserResult()
        _evaluate(evaluate_fn, 0, initial_arrays, result)
        result.private = minimize(
            self._problem,
            ReceivingEngine(self.public, nodes),
            budget=self._budget,
            solver=self._solver,
            start=start,
            account=self._account,
            random_state=self._random_state,
            observer=self._observer,
        )
        result.arrays = _released(result.private.params, initial_arrays)
        _evaluate(evaluate_fn, nodes.asked, result.arrays, result)
        log(INFO, "%s after %s questions.", result.private.status.value, nodes.asked)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message with a question to every node of the grid; what `start` sends to those that take part."""
        return messages_to(sorted(grid.get_node_ids()), arrays, config, None, server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Nothing: contributions leave the server through the curator's releases only."""
        del server_round, replies
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: what nodes measure on their records is not private."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing, whoever sent something."""
        del server_round, replies

    def summary(self) -> None:
        """Log the public numbers."""
        solver = self._solver if isinstance(self._solver, str) else self._solver.title
        log(INFO, "privopt: %s, %s, solver %s", self._budget, self.public, solver)

    def _check_timeout(self, timeout: float) -> None:
        if self._round_seconds is not None and not timeout < self._round_seconds:
            raise ValueError(
                f"timeout = {timeout!r} must be less than round_seconds = {self._round_seconds:g}: a round in which "
                "somebody is silent would last longer than the others. Give start(..., timeout=...) some seconds less."
            )

    def _taking_part(self, grid: Grid, timeout: float) -> list[int]:
        """The nodes of the run, chosen without asking them.

        Privacy:
            Under replace-one the nodes are public: the n of the smallest identifiers, and the wait may depend on how
            many there are. Under add-or-remove-one the wait is a public number of seconds, and one that comes moves no
            other out: everybody takes part.
        """
        time.sleep(self._wait_seconds)
        private_ids = set(grid.get_node_ids())
        if self.public.relation is Relation.REPLACE_ONE:
            until = time.monotonic() + timeout
            while len(private_ids) < self._least_nodes and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)
                private_ids = set(grid.get_node_ids())
            return sorted(private_ids)[: self.public.n]
        if len(private_ids) > MOST_NODES * self.public.n:
            raise ArgumentError(
                f"there are more than {MOST_NODES} n = {MOST_NODES * self.public.n} nodes: under add-or-remove-one n "
                f"declares that no data set has more than {MOST_NODES} n people. Give a public n that they hardly "
                "exceed."
            )
        return sorted(private_ids)


def _least_nodes(least_nodes: Any, relation: Relation) -> int:
    if isinstance(least_nodes, bool) or not isinstance(least_nodes, int | np.integer):
        raise TypeError(f"least_nodes must be an integer, got {least_nodes!r}.")
    if least_nodes > 1 and relation is Relation.ADD_OR_REMOVE_ONE:
        raise ValueError(
            f"least_nodes = {least_nodes} is not taken under add-or-remove-one: the number of nodes is private, and "
            "how long the run waits for them would show whether one person is there. Give `wait_seconds`, a public "
            "number of seconds that is always waited in full."
        )
    return int(least_nodes)


def _seconds(name: str, seconds: Any) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number):
        raise TypeError(f"{name} must be a number of seconds, got {seconds!r}.")
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{name} must be a finite number of seconds, at least 0, got {seconds!r}.")
    return float(seconds)


def _refuse(num_rounds: Any, evaluate_config: Any) -> None:
    if num_rounds is not None:
        raise ValueError(
            f"num_rounds = {num_rounds!r} is not taken: the rounds are part of the price and belong to the solver, "
            "such as UserStrategy(..., solver=GradientDescent(steps=20))."
        )
    if evaluate_config is not None:
        raise ValueError(
            "evaluate_config is not taken: what nodes measure on their own records is not private. Evaluate released "
            "parameters with `evaluate_fn`, on data of the server's."
        )


def _starting_point(initial: ArrayRecord, problem: Loss) -> tuple[Any, list[tuple[str, tuple[int, ...]]]]:
    """The start as `minimize` takes it, and the shapes that a node needs to pose a function's problem."""
    arrays = {str(name): np.asarray(array.numpy(), np.float64) for name, array in initial.items()}
    if not arrays:
        raise ValueError("initial_arrays holds no array: give the parameters at which the run begins.")
    start: Any = next(iter(arrays.values())) if len(arrays) == 1 else arrays
    if isinstance(problem, GLMLoss | RecordLoss) or (isinstance(problem, Problem) and problem.layout is None):
        if len(arrays) != 1:
            raise ValueError(f"initial_arrays must hold one array for this loss, got {sorted(arrays)}.")
        return start, []
    return start, [(name, array.shape) for name, array in arrays.items()]


def _released(params: Any, initial: ArrayRecord) -> ArrayRecord:
    """Parameters as records under the names of the starting point."""
    if len(initial) == 1:
        params = {next(iter(initial)): params}
    return ArrayRecord({name: Array(np.asarray(params[name])) for name in initial})


def _evaluate(
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    number: int,
    arrays: ArrayRecord,
    result: UserResult,
) -> None:
    metrics = None if evaluate is None else evaluate(number, arrays)
    if metrics is not None:
        result.evaluate_metrics_serverapp[number] = metrics


# ---- The people behind the nodes of a Flower grid, as an engine asks them ----------------------------------
class Nodes:
    """Asks nodes, each one person, by messages.

    Args:
        grid: carries the messages.
        private_ids: the nodes that take part in the run, by position.
        settings: the public numbers that a node needs.
        timeout: seconds to wait for answers to one question.
        config: sent along with each question.
        round_seconds: how long a question takes at least, whoever answers it and when; None for as long as answers do.
    """

    def __init__(
        self,
        grid: Grid,
        private_ids: Sequence[int],
        settings: Settings,
        *,
        timeout: float,
        config: ConfigRecord | None = None,
        round_seconds: float | None = None,
    ) -> None:
        self._grid, self._settings = grid, settings
        self._private_ids = list(private_ids)
        self._timeout, self._config = timeout, config
        self._round_seconds = 0.0 if round_seconds is None else round_seconds
        self.asked = 0

    @property
    def private_count(self) -> int:
        """How many there are."""
        return len(self._private_ids)

    def ask(self, asked: Asked, private_positions: NDArray[np.int64]) -> Mapping[int, Any]:
        """See `Respondents.ask`: the first reply of each node that was asked, whatever is in it.

        Privacy:
            Which nodes reply, how often and with what decides nothing but what is in the mapping, and how long this
            takes: at least `round_seconds`, also where nobody is asked.
        """
        until = time.monotonic() + self._round_seconds
        private_answers = self._answers(asked, private_positions)
        time.sleep(max(0.0, until - time.monotonic()))
        return private_answers

    def _answers(self, asked: Asked, private_positions: NDArray[np.int64]) -> dict[int, Any]:
        self.asked += 1
        arrays, config = question(asked, self._settings, self.asked)
        private_asked = {self._private_ids[position]: position for position in private_positions.tolist()}
        private_answers: dict[int, Any] = {}
        if not private_asked:
            return private_answers
        messages = messages_to(private_asked, arrays, config, self._config, self.asked)
        for reply in self._grid.send_and_receive(messages, timeout=self._timeout):
            position = private_asked.get(_sender(reply))
            if position is not None and position not in private_answers:
                private_answers[position] = read_answer(reply, self.asked, asked.shape)
        return private_answers


def messages_to(
    nodes: Any, arrays: ArrayRecord, config: ConfigRecord, given: ConfigRecord | None, number: int
) -> list[Message]:
    """One message a node, with the same question in it."""
    records = {"query": arrays, "privopt": config} | ({} if given is None else {"config": given})
    return [
        Message(
            RecordDict(dict(records)), dst_node_id=node, message_type=MessageType.TRAIN, group_id=str(number)
        )
        for node in nodes
    ]


def _sender(reply: Any) -> int:
    """Who a reply is from, as the grid says; -1 if it says nothing."""
    try:
        return int(reply.metadata.src_node_id)
    except Exception:
        return -1
