"""What the steps of a loop feed to a stream: one item a call, each computed on the next of some blocks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.curator.handles import Stream, StreamRequest
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.public import Public
from privopt.queries.base import Query


class Feed:
    """A stream of prefix sums that a loop's steps feed, and the blocks that its items are computed on.

    A step enters an item by `release(query, into=name)`, which answers with the prefix sum up to it; `name` is that of
    the feed in `Curator.iterate(..., feeds={name: Feed(stream, blocks)})`. The first item of the loop is computed on
    the first block, the next on the second, and after the last block the first comes again.

    Args:
        stream: an open stream of `PrefixSum`.
        on: the blocks, curators of units of the curator that opened the stream.
    Raises:
        ValueError: the stream is of another mechanism, or there is no block.
    """

    def __init__(self, stream: Stream, on: Sequence[Any]) -> None:
        mechanism = stream.mechanism
        if not isinstance(mechanism, PrefixSum):
            raise ValueError(
                f"a loop feeds streams of PrefixSum, got {type(mechanism).__name__}: ask other streams in an ordinary "
                "loop."
            )
        if not on:
            raise ValueError("a stream is fed from at least one block of units, got none.")
        self.stream, self.mechanism, self.on = stream, mechanism, tuple(on)

    def source(self, item: int) -> Any:
        """The block that an item of the loop is computed on."""
        return self.on[item % len(self.on)]

    def request(self, query: Query, item: int) -> StreamRequest:
        """What enters an item of the loop."""
        return StreamRequest(
            key=self.stream.key,
            mechanism=self.mechanism,
            name="add",
            query=query,
            source=self.source(item),
            arguments={},
        )

    def turns(self, *, first: int, calls: int, times: int) -> "Turns":
        """The blocks that the call sees which enters items `first`, `first + calls`, ... of a loop of so many steps."""
        seen = (first + calls * np.arange(times)) % len(self.on)
        blocks, at = np.unique(seen, return_inverse=True)
        described = [self.on[int(block)].public for block in blocks]
        publics = tuple(dict.fromkeys(described))
        kinds = np.array([publics.index(public) for public in described])[at]
        return Turns(
            publics=publics,
            blocks=tuple(int(block) for block in blocks),
            at=np.stack([at, kinds], axis=1).astype(np.int32),
        )


class Turns(NamedTuple):
    """The blocks that one call of a step sees, step by step.

    Attributes:
        publics: what is public about the blocks, each different description once.
        blocks: positions of the blocks in the feed that this call ever sees, in order.
        at: for each step, which of `blocks` and which of `publics`, (times, 2).
    """

    publics: tuple[Public, ...]
    blocks: tuple[int, ...]
    at: NDArray[np.int32]
