"""What it takes the driver to draw who takes part in a step, and in which block, of more units than it could list.

    python -m benchmarks.scale_draws [--units 1e8 1e9] [--batch 1e6] [--blocks 8]

JSON lines: seconds, and `peak_mb`, the most memory of arrays at a time. `what` is `fixed size` and `poisson` (a step);
`cut` (who is in which block, of records, of users, and of records that come and go); and `find`, the places of one
block among the 2^19 positions of a part, as a worker looks for them.
"""

import argparse
import json
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.results import rounded
from privopt.data.blocks import block_assignment
from privopt.data.participants import drawn_positions
from privopt.data.places import DEALT, Places
from privopt.ledger.events import FixedSize, Poisson
from privopt.mechanisms.noise import NoiseSource
from privopt.public import Public, Relation


def measured(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Seconds, and the peak of memory in a second turn, which tracing slows down; and what was made."""
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    tracemalloc.start()
    made = work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"seconds": seconds, "peak_mb": peak / 1e6}, made


def found_in_part(places: Places, part: int) -> int:
    """How many places a worker finds in a part, from what it is sent."""
    start, stop = part * DEALT, (part + 1) * DEALT
    return len(places.near(start, stop).within(start, stop))


def print_draws(n: int, batch: int, blocks: int) -> None:
    """One line for each kind of draw."""
    generator = NoiseSource().units_generator

    def shown(what: str, work: Callable[[], Any], **about: Any) -> Any:
        found, made = measured(work)
        print(json.dumps(rounded({"what": what, "units": n, **about, **found})), flush=True)
        return made

    for name, sampling in (("fixed size", FixedSize(batch, n)), ("poisson", Poisson(batch / n))):
        shown(name, lambda sampling=sampling: drawn_positions(sampling, generator, n=n, private_count=n))
    for unit, relation in (
        ("record", Relation.REPLACE_ONE),
        ("user", Relation.REPLACE_ONE),
        ("record", Relation.ADD_OR_REMOVE_ONE),
    ):
        public = Public(n=n, d=2, unit=unit, relation=relation)
        cut = shown(
            "cut",
            lambda public=public: block_assignment(public, blocks, generator, private_count=n),
            unit=unit,
            relation=relation.value,
            blocks=blocks,
        )
        if n > DEALT:
            shown("find", partial(found_in_part, cut[0][0], n // DEALT // 2), unit=unit)


def main() -> None:
    """Print a line for each number of units and kind of draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--units", type=float, nargs="+", default=[1e8, 1e9])
    parser.add_argument("--batch", type=float, default=1e6)
    parser.add_argument("--blocks", type=int, default=8)
    given = parser.parse_args()
    for n in given.units:
        print_draws(int(n), int(given.batch), given.blocks)


if __name__ == "__main__":
    main()
