"""How slow this machine is just now: limits in processor seconds are multiplied by it."""

import functools
import time

USUAL = 0.12  # processor seconds that the loop takes on the machine for which limits are stated


@functools.cache
def slowness(usual: float = USUAL) -> float:
    """At least 1: the time of a plain loop over a usual one, the best of three."""
    return max(1.0, min(_loop() for _ in range(3)) / usual)


def _loop() -> float:
    begun, total = time.process_time(), 0
    for number in range(2_000_000):
        total += number
    return time.process_time() - begun
