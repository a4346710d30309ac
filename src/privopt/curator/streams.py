"""What enters a curator's streams: items of loops, all or none, and of no unit more than it was charged for."""

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privopt.curator import loops
from privopt.curator.handles import Entered, Feed, OpenStream
from privopt.mechanisms.base import StreamMechanism

if TYPE_CHECKING:
    from privopt.curator.base import Curator


@contextlib.contextmanager
def feeding(
    curator: "Curator",
    streams: Mapping[int, OpenStream],
    feeds: Mapping[str, Feed],
    items: Mapping[str, int],
) -> Generator[None]:
    """Enter the items of a loop into its streams, all or none, and keep the streams while the loop runs.

    Privacy:
        The items count as entered before the first is computed. After a loop that was interrupted, when fewer may
        be, its streams answer no more, see `fed` and `OpenStream`; one that never began has entered nothing.
    Raises:
        ValueError: a stream is not of prefix sums, is another curator's or full, or fed under two names; or an item
            would put a unit into more items than it was charged for.
    """
    keys = [feed.stream.key for feed in feeds.values() if feed.stream.is_of(curator)]
    if len(set(keys)) < len(keys):
        raise ValueError(
            "the loop feeds one stream under several names: name it once, a step may feed it several times."
        )
    with contextlib.ExitStack() as turns:
        for key in sorted(keys):
            turns.enter_context(streams[key])
        after: dict[str, Entered] = {}
        for name, feed in feeds.items():
            mechanism = feed.mechanism
            if not feed.stream.is_of(curator):
                raise ValueError(
                    f"the stream {name!r} was opened by another curator than the one that iterates: open it on "
                    "this one."
                )
            entered = streams[feed.stream.key].entered.copy()
            if len(entered) + items[name] > mechanism.items:
                raise ValueError(
                    f"the loop would feed {items[name]} items to a stream of {mechanism.items}, of which "
                    f"{len(entered)} have entered: declare as many as the loop has."
                )
            for item in range(items[name]):
                source = feed.source(item)
                require_entry(curator, entered, mechanism, source)
                entered.add(source.lineage)
            after[name] = entered
        fed_now = {name: streams[feed.stream.key] for name, feed in feeds.items()}
        before = {name: stream.entered for name, stream in fed_now.items()}
        for name, stream in fed_now.items():
            stream.entered = after[name]
        try:
            yield
        except BaseException:
            for name, stream in fed_now.items():
                stream.entered = stream.entered if stream.broken else before[name]
            raise


@contextlib.contextmanager
def fed(streams: Mapping[int, OpenStream], feeds: Mapping[str, Feed]) -> Generator[None]:
    """Where a loop runs whose items count as entered: its streams break off with it, whatever stops it.

    Privacy:
        A step, or a query of somebody's own, may also raise what is a refusal elsewhere. Were its stream asked
        again, units would seem to be in earlier items than they are in, and further apart than they are.
    """
    try:
        yield
    except BaseException:
        for feed in feeds.values():
            streams[feed.stream.key].break_off()
        raise


def scales_of_feeds(
    streams: Mapping[int, OpenStream],
    slots: Sequence[loops.Slot],
    feeds: Mapping[str, Feed],
    sensitivities: list[NDArray[np.float64]],
) -> list[NDArray[np.float64] | None]:
    """Of each release call of a step, the noise scales of its answers; None where it feeds no stream."""
    scales = [
        np.zeros_like(moved) if slot.feed else None for slot, moved in zip(slots, sensitivities, strict=True)
    ]
    for name, feed in feeds.items():
        calls = [k for k, slot in enumerate(slots) if slot.feed == name]
        stated = streams[feed.stream.key].scales
        assert stated is not None
        for t in range(len(sensitivities[calls[0]]) if calls else 0):
            for k in calls:
                found = scales[k]
                assert found is not None
                found[t] = stated.next(float(sensitivities[k][t]))
    return scales


def require_entry(
    curator: "Curator", entered: Entered, mechanism: StreamMechanism, source: "Curator"
) -> None:
    """Refuse an item that would put a unit into more items than the stream was charged for.

    Privacy:
        `Entered` tells which items one unit may be in, from how the parts of the data were cut.
    """
    if (
        source.transcript is not curator.transcript
        or source.lineage[: len(curator.lineage)] != curator.lineage
    ):
        raise ValueError(
            "a stream is fed from the curator that opened it, or from a block of its units: no other curator's "
            "units have paid for it."
        )
    if not mechanism.covers(entered.participants(source.lineage)):
        raise ValueError(
            f"item {len(entered)} of {mechanism!r} would hold units of earlier items, more often or closer "
            "together than the stream was charged for: feed it from disjoint blocks (`blocks`), or declare the "
            "participation."
        )
