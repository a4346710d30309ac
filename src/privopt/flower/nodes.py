"""The people behind the nodes of a Flower grid, as an engine asks them."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from privopt.engine.receiving import Asked
from privopt.flower.messages import Settings, question, read_answer


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
