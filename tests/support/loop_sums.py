"""The sum that a compiled loop computes in one of its steps."""

from functools import partial

import jax
import numpy as np

from privopt.engine import compiled_loops
from privopt.engine.drawn_rows import in_place


@partial(jax.jit, static_argnames=("public", "room", "block"))
def _summed(query, public, rows, share, room, block):
    del block  # what is compiled depends on it
    return compiled_loops.traced_sum(query, public, rows, share, room)


def loop_sum(engine, query, draw=None, *, spare=0):
    """Over the units at some positions, or all, with so many rows of nobody behind them."""
    draw = np.arange(engine.private_count) if draw is None else np.asarray(draw, np.int64)
    room = len(draw) + spare
    share = np.array([0, len(draw)], np.int32)
    rows = in_place(engine.rows(draw, room))
    return np.asarray(_summed(query, engine.public, rows, share, room, compiled_loops.BLOCK_ROWS))
