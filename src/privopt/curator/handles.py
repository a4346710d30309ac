"""What a solver holds of secret state: handles that name it and contain nothing."""

from dataclasses import dataclass
from typing import Any, Protocol

from privopt.queries.base import Query


class KeepsStreams(Protocol):
    """The part of a curator that a stream's handle needs."""

    def ask_stream(
        self,
        key: int,
        mechanism: Any,
        method: str,
        query: Query | None,
        source: Any,
        public_arguments: dict[str, Any],
    ) -> Any:
        """Feed or draw from an open stream."""
        ...


class Held:
    """Per-unit vectors that the curator keeps. A handle: it can be named in a query, and holds nothing."""

    def __init__(self, key: int) -> None:
        self.key = key

    def __repr__(self) -> str:
        return "<private>"


@dataclass(frozen=True)
class Stream:
    """A mechanism with hidden state that the curator keeps, charged once when it was opened."""

    _curator: KeepsStreams
    _mechanism: Any
    _key: int

    def __repr__(self) -> str:
        return "<private>"

    def ask(
        self,
        method: str,
        query: Query | None = None,
        *,
        on: KeepsStreams | None = None,
        **public_arguments: Any,
    ) -> Any:
        """Feed a query to the hidden state, or draw from it.

        Args:
            method: the mechanism's own word for it (`add`, `draw`, `answer`).
            query: what is computed on the data and fed in; None if nothing is.
            on: the block of units that the query is computed on; default: all units of the curator that opened the
                stream.
            public_arguments: anything public that the mechanism wants to know.
        Returns:
            What the mechanism releases, or None where it only remembers.
        Raises:
            ValueError: a unit would be in more items than the stream was charged for.
        """
        return self._curator.ask_stream(
            self._key, self._mechanism, method, query, self._curator if on is None else on, public_arguments
        )
