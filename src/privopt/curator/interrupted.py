"""What is kept of a release that was paid for and whose answer never arrived."""

import contextlib
from collections.abc import Callable, Generator, Sequence

import numpy as np

from privopt.curator.transcript import FilterMark, Release, Transcript
from privopt.data.blocks import Lineage
from privopt.errors import add_note
from privopt.ledger.events import Event, NoEvent
from privopt.ledger.sampling import Sampling


def unanswered(
    name: str,
    mechanism: object,
    event: Event,
    sampling: Sampling,
    count: int,
    *,
    lineage: Lineage,
    under: FilterMark | None,
) -> Release:
    """A line for releases that were paid for, without values: sensitivities and scales are not a number."""
    return Release(
        name=name,
        event=event,
        count=count,
        sensitivity=np.full(count, np.nan),
        noise=repr(mechanism),
        scale=None,
        sampling=sampling,
        released=None,
        lineage=lineage,
        under=under,
    )


@contextlib.contextmanager
def answering(transcript: Transcript, lines: Callable[[], Sequence[Release]]) -> Generator[None]:
    """Write these lines if what is paid for is interrupted, by whatever exception, and say in it what was paid.

    Privacy:
        Whoever catches the exception and goes on may have seen the data's effect: how far it came, how long it took. So
        the transcript counts all that was paid for, as the ledger does. The note is made from public facts alone.
    """
    try:
        yield
    except BaseException as error:
        lost = lines()
        for line in lost:
            transcript.append(line)
        paid = [
            f"{line.count} x {line.name} ({line.event.describe()})"
            for line in lost
            if line.event != NoEvent()
        ]
        if paid:
            add_note(
                error,
                f"paid for before this, and not given back, since it may have been seen: {', '.join(paid)}.",
            )
        raise
