"""How far a round has come: told by engines, part after part, to whoever shows it."""

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextvars import ContextVar
from typing import TypeVar

from privopt.public import Public, Relation

Listener = Callable[[str, float], None]  # told what of, and the share of it that is done
ROUND, ROWS = "the round", "the rows"

Item = TypeVar("Item")
_listening: ContextVar[Listener | None] = ContextVar("listening", default=None)


@contextlib.contextmanager
def shown_by(listener: Listener) -> Generator[None]:
    """Have whatever runs inside tell a listener how far it is."""
    token = _listening.set(listener)
    try:
        yield
    finally:
        _listening.reset(token)


def tell(what: str, done: int, of: int, public: Public) -> None:
    """Tell the share of the parts that are done.

    Args:
        what: of what, `ROUND` or `ROWS`.
        done: how many parts are.
        of: how many there are.
        public: what is public about the units.

    Privacy:
        Shares tell the number of parts, which follows from n under replace-one, and is private where units come and go
        or were drawn: nothing is told there. When it is told shows in running time, as the round's end does.
    """
    listener = _listening.get()
    if listener is not None and of > 1 and public.relation is Relation.REPLACE_ONE and not public.drawn:
        listener(what, done / of)


def told(parts: Sequence[Item], public: Public) -> Iterator[Item]:
    """The parts of a round, each told of once the next is asked for."""
    for done, part in enumerate(parts, 1):
        yield part
        tell(ROUND, done, len(parts), public)
