"""Which planned noise can be drawn as integers: asked of a whole plan, before anything is paid for it."""

from privopt.ledger.events import Event, GaussianEvent, LaplaceEvent, SampledEvent, leaf_counts
from privopt.mechanisms.additive import Gaussian, Laplace

MOST_ENTRIES = 2**32  # of a released vector: 32 GiB
MOST_COUNTS = 2**16  # of a value with Laplace noise


def require_drawable(event: Event) -> None:
    """Refuse a plan whose noise may turn out to be beyond the integers of exact noise. Needs no data.

    How many numbers a release has is known when it is made, and looked at again before it is charged there; here they
    are taken to be more than any has, so that what is paid for in advance can be drawn.

    Args:
        event: everything that will be released.
    Raises:
        ValueError: a noise multiplier is too large.
    """
    leaves, parallels = leaf_counts(event)
    for leaf in leaves:
        priced = leaf.event if isinstance(leaf, SampledEvent) else leaf
        if isinstance(priced, GaussianEvent):
            _require_room(Gaussian(priced.noise_multiplier), MOST_ENTRIES)
        elif isinstance(priced, LaplaceEvent):
            _require_room(Laplace(priced.noise_multiplier), MOST_COUNTS)
        elif priced is not leaf:
            require_drawable(priced)
    for parallel, _ in parallels:
        for branch in parallel.events:
            require_drawable(branch)


def _require_room(mechanism: Gaussian | Laplace, entries: int) -> None:
    try:
        mechanism.require_room(entries)
    except ValueError:
        raise ValueError(
            f"this budget asks for noise of {mechanism.noise_multiplier:.3g} times the sensitivity, which is more than "
            "can be drawn exactly, and leaves nothing of the data: nothing was read or spent. Take a larger epsilon, "
            "fewer releases, or noise='float' to compare with."
        ) from None
