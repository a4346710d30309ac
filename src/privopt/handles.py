"""What a solver holds of secret state: handles that name it and contain nothing."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privopt.queries.base import Query

if TYPE_CHECKING:
    from privopt.door import Door


class Held:
    """Per-unit vectors behind the door. A handle: it can be named in a query, and holds nothing."""

    def __init__(self, key: int) -> None:
        self.key = key

    def __repr__(self) -> str:
        return "<private>"


@dataclass(frozen=True)
class Stream:
    """A mechanism with hidden state behind the door, charged once when it was opened."""

    _door: "Door"
    _mechanism: Any
    _key: int

    def __repr__(self) -> str:
        return "<private>"

    def ask(
        self, method: str, query: Query | None = None, *, on: "Door | None" = None, **public_arguments: Any
    ) -> Any:
        """Feed a query to the hidden state, or draw from it.

        Args:
            method: the mechanism's own word for it (`add`, `draw`, `answer`).
            query: what is computed on the data and fed in; None if nothing is.
            on: the block of units that the query is computed on; default: all units of the door that opened the
                stream.
            public_arguments: anything public that the mechanism wants to know.
        Returns:
            What the mechanism releases, or None where it only remembers.
        Raises:
            ValueError: a unit would be in more items than the stream was charged for.
        """
        return self._door.ask_stream(
            self._key, self._mechanism, method, query, self._door if on is None else on, public_arguments
        )
