"""What server and nodes send each other: a query and public numbers one way, one vector the other.

    server -> node   "query": the arrays of the query and of the row maps
                     "privopt": {"ask": number, "query": JSON, "maps": row bounds, "settings": JSON}
                     "config": whatever was given to `UserStrategy.start` as `train_config`
    node -> server   "contribution": {"vector": float64}
                     "privopt": {"ask": the number it answers}

Nothing is pickled. A reply is read as if a stranger had written it.
"""

import io
import json
import warnings
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from privopt.engine.receiving import Asked, RowMap
from privopt.problems.losses import Loss
from privopt.queries.base import MeanQuery
from privopt.queries.received import decoded, encoded

_HEADER_BYTES = 4096  # of an array in NumPy's format; more than any that NumPy writes for a plain one


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The public numbers by which a node makes a privacy unit of its records, see `Units.from_arrays`.

    Attributes:
        loss: what the strategy minimises, by `wire.loss_name`.
        d: columns of a record's features, the intercept's included.
        start: names and shapes of the parameters of a loss function; empty for a loss of the library.
    """

    loss: str
    n: int
    d: int
    relation: str
    row_bound: float
    max_records_per_user: int
    user_weighting: Any
    typical_records: float
    classes: list[Any] | None
    target_bounds: tuple[float, float] | None
    intercept: float | None
    start: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Question:
    """What a node was asked; see `Asked`."""

    number: int
    query: str
    arrays: dict[str, NDArray[Any]]
    maps: tuple[RowMap, ...]
    settings: Settings

    def query_with(self, loss: Loss) -> MeanQuery:
        """The query, with the node's own loss in it.

        Raises:
            ValueError: it was asked of another loss, or is none that is answered.
        """
        return decoded(self.query, self.arrays, loss)


def question(asked: Asked, settings: Settings, number: int) -> tuple[ArrayRecord, ConfigRecord]:
    """What is sent to every node.

    Raises:
        ValueError: the query is none that others answer.
    """
    text, arrays = encoded(asked.query)
    sent = {f"query.{place}": Array(np.asarray(array)) for place, array in arrays.items()}
    sent |= {f"map.{place}": Array(one.matrix) for place, one in enumerate(asked.maps)}
    config = ConfigRecord(
        {
            "ask": number,
            "query": text,
            "maps": [one.row_bound for one in asked.maps],
            "settings": json.dumps(asdict(settings)),
        }
    )
    return ArrayRecord(sent), config


def read_question(message: Message) -> Question:
    """What the server asks. The server is trusted: a message that is none of ours raises.

    Raises:
        KeyError, TypeError, ValueError: it is no question.
    """
    config: Any = message.content["privopt"]
    arrays: Any = message.content["query"]
    bounds = [float(bound) for bound in config["maps"]]
    settings = json.loads(config["settings"])
    bounds_of_targets = settings["target_bounds"]
    return Question(
        number=int(config["ask"]),
        query=str(config["query"]),
        arrays={
            place.removeprefix("query."): array.numpy()
            for place, array in arrays.items()
            if place.startswith("query.")
        },
        maps=tuple(RowMap(arrays[f"map.{place}"].numpy(), bound) for place, bound in enumerate(bounds)),
        settings=Settings(
            **settings
            | {
                "target_bounds": None if bounds_of_targets is None else tuple(bounds_of_targets),
                "start": [(name, tuple(shape)) for name, shape in settings["start"]],
            }
        ),
    )


def answer(message: Message, number: int, private_vector: NDArray[np.float64]) -> Message:
    """A node's reply."""
    contribution = ArrayRecord({"vector": Array(np.array(private_vector, np.float64, order="C"))})
    content = RecordDict({"contribution": contribution, "privopt": ConfigRecord({"ask": number})})
    return Message(content, reply_to=message)


def read_answer(reply: Any, number: int, shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    """The vector in a reply, of whatever numbers; None if there is none of this shape, or it answers another question.

    Privacy:
        Nothing raises or warns because of a reply, and no more memory is taken than an honest one needs. Metrics,
        numbers of examples and error messages are not read.
    """
    try:
        content = reply.content
        if content["privopt"]["ask"] != number:
            return None
        array = content["contribution"]["vector"]
        return _read(array, shape)
    except Exception:
        return None


def _read(array: Array, shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    size = 8 * int(np.prod(shape, dtype=int))
    if array.stype != "numpy.ndarray" or not size <= len(array.data) <= size + _HEADER_BYTES:
        return None
    stream = io.BytesIO(array.data)
    if np.lib.format.read_magic(stream) != (1, 0):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        header = np.lib.format.read_array_header_1_0(stream)
    if header != (shape, False, np.dtype("<f8")):
        return None
    return np.frombuffer(stream.read(size), "<f8").reshape(shape).astype(np.float64)
