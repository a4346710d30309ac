"""The price of one of several releases, when which one it is depends on earlier releases."""

import math
from collections.abc import Sequence

from privopt.ledger.events import Event, GaussianEvent, NonPrivateEvent, leaf_counts


def dominating(events: Sequence[Event]) -> Event:
    """One event that costs as much as the dearest of several, whichever of them is released.

    Args:
        events: alternatives; which one is released may depend on releases before it.
    Privacy:
        Gaussian releases on everybody compose to exactly one with 1 / z^2 summed, and a smaller sum is dominated by a
        larger one whatever it is composed with. Equal events need no argument, and nothing costs more than a release
        without noise. Nothing else is totally ordered: the maximum of two curves need not bound a choice between them
        that depends on earlier releases.
    Raises:
        ValueError: the alternatives are not ordered.
    """
    if not comparable(events):
        raise ValueError(
            "the price of the refit would depend on which candidate is chosen: it can be bounded beforehand where all "
            "candidates release Gaussian noise on everybody (gradient descent, whitening), or cost exactly the same. "
            "Solvers that sample, or put noise inside the objective, cannot be compared with others: give steps and "
            "sampling rate that are the same for all candidates, or use refit=False."
        )
    if len(set(events)) == 1:
        return events[0]
    counts = [leaf_counts(event)[0] for event in events]
    if any(isinstance(leaf, NonPrivateEvent) for leaves in counts for leaf in leaves):
        return NonPrivateEvent()
    squares = [
        math.fsum(
            count / leaf.noise_multiplier**2
            for leaf, count in leaves.items()
            if isinstance(leaf, GaussianEvent)
        )
        for leaves in counts
    ]
    return GaussianEvent(1.0 / math.sqrt(max(squares)))


def comparable(events: Sequence[Event]) -> bool:
    """Whether the dearest of several events is known to dominate the others."""
    if len(set(events)) == 1:
        return True
    counts = [leaf_counts(event) for event in events]
    if any(isinstance(leaf, NonPrivateEvent) for leaves, _ in counts for leaf in leaves):
        return True
    return all(
        not parallels and all(isinstance(leaf, GaussianEvent) for leaf in leaves)
        for leaves, parallels in counts
    )
