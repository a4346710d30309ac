"""Which engine computes on some units: the fast one, or the plain one that it is checked against."""

from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.protocol import Engine, EngineName
from privopt.engine.reference import ReferenceEngine


def engine_on(units: Units, name: EngineName) -> Engine:
    """An engine by its name.

    Args:
        units: the data.
        name: "fast" (compiled kernels where there are any) or "reference" (every query by one plain path).
    Raises:
        ValueError: another name.
    """
    if name == "fast":
        return InProcessEngine(units)
    if name == "reference":
        return ReferenceEngine(units)
    raise ValueError(f"engine must be 'fast' or 'reference', got {name!r}.")
