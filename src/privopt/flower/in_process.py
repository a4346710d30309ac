"""A grid whose nodes live in this process: to try a federated run out, without network or simulation engine."""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

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
