"""A query as text and arrays, for those who hold their own records; nothing that is executed is ever sent.

Sent are the name of a class of the library, its fields, and in place of the loss its name: who answers has a loss of
their own, which must be of that name. Numbers arrive to the last bit.
"""

import json
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from privopt.problems import constraints, regularisers
from privopt.problems.losses import GLMLoss, Loss, RecordLoss
from privopt.problems.mapped_ridge import MappedRidge
from privopt.queries.base import MeanQuery
from privopt.queries.received import RECEIVABLE, require_receivable

# Values of the library that a query may hold.
_VALUES: dict[str, Any] = {
    kind.__name__: kind
    for module, base in ((regularisers, regularisers.Regulariser), (constraints, constraints.Constraint))
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, base) and is_dataclass(kind)
} | {MappedRidge.__name__: MappedRidge}


def encoded(query: Any) -> tuple[str, dict[str, NDArray[Any]]]:
    """The query as JSON, and the arrays that it names.

    Args:
        query: one of `received.RECEIVABLE`.
    Raises:
        ValueError: its class is not one that others answer, or a field is of no kind that is sent.
    """
    require_receivable(type(query))
    arrays: dict[str, NDArray[Any]] = {}
    body = {one.name: _encoded(getattr(query, one.name), one.name, arrays) for one in fields(query)}
    return json.dumps({"kind": query.name, "fields": body}), arrays


def decoded(text: str, arrays: dict[str, NDArray[Any]], loss: Loss) -> MeanQuery:
    """The query that was sent.

    Args:
        text: from `encoded`.
        arrays: likewise.
        loss: what stands where the query has a loss.
    Raises:
        ValueError: it is no query of the library, or was asked of another loss.
    """
    sent = json.loads(text)
    kind: Any = RECEIVABLE.get(sent["kind"])
    if kind is None:
        raise ValueError(
            f"{sent['kind']!r} is no query that is answered here: both sides need the same version of privopt."
        )
    return kind(**{name: _decoded(value, arrays, loss) for name, value in sent["fields"].items()})


def loss_name(loss: Loss) -> str:
    """A loss of the library with its numbers; of one's own, its name."""
    return loss.name if isinstance(loss, RecordLoss) else repr(loss)


def _encoded(value: Any, place: str, arrays: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, GLMLoss | RecordLoss):
        return {"loss": loss_name(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        arrays[place] = np.asarray(value)
        return {"array": place}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(part, f"{place}.{i}", arrays) for i, part in enumerate(value)]}
    if type(value) is _VALUES.get(type(value).__name__):
        parts = {
            one.name: _encoded(getattr(value, one.name), f"{place}.{one.name}", arrays)
            for one in fields(value)
        }
        return {"value": type(value).__name__, "fields": parts}
    raise ValueError(
        f"`{place}` is a {type(value).__name__}, which is not sent to others: use the library's own regularisers and "
        "constraint sets."
    )


def _decoded(value: Any, arrays: dict[str, NDArray[Any]], loss: Loss) -> Any:
    if not isinstance(value, dict):
        return value
    if "loss" in value:
        if value["loss"] != loss_name(loss):
            raise ValueError(
                f"the loss here is {loss_name(loss)!r}, but {value['loss']!r} was asked for: give both sides the same."
            )
        return loss
    if "array" in value:
        return arrays[value["array"]]
    if "tuple" in value:
        return tuple(_decoded(part, arrays, loss) for part in value["tuple"])
    kind = _VALUES.get(value["value"])
    if kind is None:
        raise ValueError(f"{value['value']!r} is no regulariser or constraint set of the library.")
    return kind(**{name: _decoded(part, arrays, loss) for name, part in value["fields"].items()})
