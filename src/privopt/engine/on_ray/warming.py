"""Compiles the kernel of the usual queries while a worker reads its rows."""

import contextlib
import dataclasses
from typing import Any

import numpy as np
from scipy import sparse

from privopt.data.record_source import Description
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Relation
from privopt.queries.gradient import ClippedGradient


def warm(width: int, is_sparse: bool, by_user: bool, description: Description) -> None:
    """Sum over two made-up records of the format of the real ones, so that whoever asks next waits for no compiler.

    One kernel serves the gradients of all losses that have a formula. Whatever fails here fails where it is asked for.

    Args:
        width: columns.
        is_sparse: whether rows are sparse.
        by_user: whether a unit is a user.
        description: what is public about the units.
    """
    keys = np.arange(2) if by_user else None
    made_up = dataclasses.replace(description, relation=Relation.REPLACE_ONE, n=2)
    with contextlib.suppress(Exception), double_precision(), np.errstate(all="ignore"):
        rows = np.zeros((2, width))
        units = Units.from_arrays(
            sparse.csr_array(rows) if is_sparse else rows, np.zeros(2), groups=keys, **made_up.arguments()
        )
        at: Any = np.zeros(units.public.d)  # no array of JAX, which would start a backend of its own
        InProcessEngine(units, threads=1).clipped_sum(ClippedGradient(loss=losses.logistic, at=at, clip=1.0))
