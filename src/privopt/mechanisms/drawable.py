"""Which planned noise can be drawn as integers: asked of a whole plan, before anything is paid for it."""

import math
from collections.abc import Callable

from privopt.errors import BudgetTooSmall
from privopt.ledger.events import (
    BoundedRangeEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    SampledEvent,
    leaf_counts,
)
from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.mechanisms.prefix_sum import PrefixSum

MOST_ENTRIES = 2**32  # of a released vector: 32 GiB
MOST_COUNTS = 2**16  # of a value with Laplace noise
_FITS_ANY = 2.0**10  # multiplier times sqrt(entries) for which any strategy that is likely has room


def require_drawable(event: Event) -> None:
    """Refuse a plan whose noise may turn out to be beyond the integers of exact noise. Needs no data.

    How many numbers a release has is known when it is made, and looked at again before it is charged there; here they
    are taken to be more than any has, so that what is paid for in advance can be drawn.

    Args:
        event: everything that will be released.
    Raises:
        BudgetTooSmall: a noise multiplier is too large.
    """
    leaves, parallels = leaf_counts(event)
    for leaf in leaves:
        priced = leaf.event if isinstance(leaf, SampledEvent) else leaf
        if isinstance(priced, GaussianEvent):
            _require_room(Gaussian(priced.noise_multiplier), MOST_ENTRIES)
        elif isinstance(priced, LaplaceEvent):
            _require_room(Laplace(priced.noise_multiplier), MOST_COUNTS)
        elif isinstance(priced, BoundedRangeEvent):
            _require_room(ExponentialMechanism(priced.epsilon), MOST_ENTRIES)
        elif priced is not leaf:
            require_drawable(priced)
    for parallel, _ in parallels:
        for branch in parallel.events:
            require_drawable(branch)


def require_drawable_sums(noise_multiplier: float, entries: int, stream: Callable[[], PrefixSum]) -> None:
    """Refuse a plan of prefix sums whose correlated noise is beyond the integers that it is drawn as.

    Args:
        noise_multiplier: of the stream.
        entries: of an item.
        stream: makes it; called only where it is in doubt.
    Raises:
        BudgetTooSmall: there is no room for it.
    """
    if noise_multiplier * math.sqrt(entries) > _FITS_ANY:
        _require_room(stream(), entries)


def _require_room(mechanism: Gaussian | Laplace | PrefixSum | ExponentialMechanism, entries: int) -> None:
    try:
        mechanism.require_room(entries)
    except ValueError:
        choice = isinstance(mechanism, ExponentialMechanism)
        multiplier = 1.0 / mechanism.epsilon if choice else mechanism.noise_multiplier
        raise BudgetTooSmall(
            f"this budget asks for noise of {multiplier:.3g} times the sensitivity, which is more than "
            "can be drawn exactly, and leaves nothing of the data: nothing was read or spent. Take a larger epsilon, "
            "fewer releases, or noise='float' to compare with."
        ) from None
