"""What a node runs: it computes one person's clipped contribution to whatever statistic the server asks for."""

import secrets
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from privopt.data.units import Units
from privopt.engine.reference import ReferenceEngine
from privopt.flower.messages import Question, Settings, answer, read_question
from privopt.precision import in_float64
from privopt.problems import losses
from privopt.queries.received import loss_name
from privopt.solve import Loss
from privopt.solve_arguments import posed_problem

Load = Callable[[Context], tuple[Any, Any]]


def client_app(loss: Loss, load: Load) -> ClientApp:
    """A `ClientApp` that answers a `UserStrategy` with the contribution of the one person whose node it is.

    Args:
        loss: the same as the strategy's: a loss of `privopt.problems.losses`, a `Problem`, or a function
            `loss(params, features, target)` of one record.
        load: gives (features (records, columns), targets (records,)) of the person, from the node's context; called
            for each message. No records at all are fine.
    Privacy:
        The answer is a clipped vector without noise: the server sees it and is trusted with it. Nothing else is sent,
        neither how many records there are nor how well the model does on them. Of more records than the public cap
        the same random choice counts in every round of a run; it stays in the node's state.
    """
    app = ClientApp()

    @app.train()
    def contribute(message: Message, context: Context) -> Message:
        asked = read_question(message)
        query = asked.query_with(_loss(loss, asked.settings))
        private_unit = _unit(*load(context), asked, context)
        private_vector = ReferenceEngine(private_unit, at_once=1).clipped_sum(query)
        return answer(message, asked.number, private_vector)

    del contribute
    return app


def _loss(loss: Loss, settings: Settings) -> losses.Loss:
    shapes = dict(settings.start)
    start: Any = {name: np.zeros(shape) for name, shape in shapes.items()}
    with in_float64():
        found = posed_problem(loss, start if len(shapes) != 1 else next(iter(start.values()))).loss
    if loss_name(found) != settings.loss:
        raise ValueError(
            f"the loss here is {loss_name(found)!r}, but {settings.loss!r} was asked for: give both sides the same."
        )
    return found


def _unit(private_features: Any, private_targets: Any, asked: Question, context: Context) -> Units:
    """The person's records as the only privacy unit, made by the public numbers that the server sent."""
    settings = asked.settings
    private_unit = Units.from_arrays(
        private_features,
        private_targets,
        relation=settings.relation,
        row_bound=settings.row_bound,
        n=settings.n,
        groups=np.zeros(np.shape(private_features)[0], np.int64),
        max_records_per_user=settings.max_records_per_user,
        user_weighting=settings.user_weighting,
        typical_records=settings.typical_records,
        classes=settings.classes,
        target_bounds=settings.target_bounds,
        intercept=settings.intercept,
        noise=_Choice(_seed(context)),
    )
    if private_unit.public.d != settings.d:
        raise ValueError(
            f"the features have {private_unit.public.d} columns, the intercept's included, but the strategy was given "
            f"d = {settings.d}."
        )
    for one in asked.maps:
        private_unit = private_unit.mapped(one.matrix, one.row_bound)
    return private_unit


class _Choice:
    """The same secret choice of records whenever it is made."""

    def __init__(self, private_seed: NDArray[np.uint32]) -> None:
        self._private_seed = private_seed

    @property
    def units_generator(self) -> np.random.Generator:
        return np.random.default_rng(self._private_seed)


def _seed(context: Context) -> NDArray[np.uint32]:
    """A secret seed of the operating system's, kept in the node's state as long as the run."""
    if "privopt" not in context.state:
        context.state["privopt"] = ConfigRecord({"seed": secrets.token_bytes(16)})
    kept: Any = context.state["privopt"]
    return np.frombuffer(kept["seed"], np.uint32)


# ------------------------------------------------------------------------------------------------------------
# A grid whose nodes live in this process: to try a federated run out, without network or simulation engine.


_APP_FAILED = 0  # of Flower's error codes, "unknown"


class InProcessGrid(Grid):
    """Calls a `ClientApp` for each message, one after the other.

    Args:
        app: what every node runs.
        nodes: configuration of each node, by its identifier; a client finds it in `context.node_config`.
        tamper: called with (node, its reply) and returns the replies that arrive, for nodes that misbehave.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: dict[int, dict[str, Any]],
        *,
        tamper: Callable[[int, Message], Iterable[Any]] | None = None,
    ) -> None:
        self._app, self._tamper = app, tamper
        self._run = Run.create_empty(run_id=1)
        self._contexts = {
            node: Context(run_id=1, node_id=node, node_config=dict(config), state=RecordDict(), run_config={})
            for node, config in nodes.items()
        }
        self._replies: dict[str, list[Any]] = {}
        self._sent = 0
        # A message asks the process which run and node it belongs to.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run: Run) -> None:
        """The run that this grid is said to be of."""
        self._run = run

    @property
    def run(self) -> Run:
        """See `set_run`."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have each message answered, and keep the answers."""
        numbers: list[str] = []
        for message in messages:
            self._sent += 1
            number = str(self._sent)
            message.metadata.__dict__["_message_id"] = number
            self._replies[number] = list(self._answers(message))
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers to some messages."""
        return [reply for number in message_ids for reply in self._replies.pop(number, [])]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Have each message answered; nobody waits."""
        del timeout
        return self.pull_messages(self.push_messages(messages))

    def _answers(self, message: Message) -> Iterable[Any]:
        node = message.metadata.dst_node_id
        try:
            reply = self._app(message, self._contexts[node])
        except Exception as failure:  # as a node does: the server gets an error in place of an answer
            reply = Message(Error(_APP_FAILED, str(failure)), reply_to=message)
        return [reply] if self._tamper is None else self._tamper(node, reply)
