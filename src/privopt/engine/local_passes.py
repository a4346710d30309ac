"""Local passes of users by the compiled kernel, over fixed lanes: on any number of threads with the same result."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data.rows import MappedRows
from privopt.data.units import Units
from privopt.engine.fast_path import in_order, kernel_rows, lane_ends, run_lanes, shrunk
from privopt.engine.formulas import FORMULAS
from privopt.engine.local_pass_kernel import local_moves
from privopt.problems.constraints import L2Ball, Unconstrained
from privopt.problems.glm import GLMLoss, KernelCode
from privopt.problems.regularisers import SeparableRegulariser
from privopt.queries.base import MeanQuery
from privopt.queries.local_pass import LocalPass, visiting_order


def supports(units: Units, query: MeanQuery) -> bool:
    """Whether the kernel computes this query of users: no subclass, which may compute something else."""
    return units.private_offsets is not None and supports_groups(units, query)


def supports_groups(units: Units, query: MeanQuery) -> bool:
    """Whether the kernel computes this query of groups of these units."""
    return (
        type(query) is LocalPass
        and isinstance(query.loss, GLMLoss)
        and query.loss.kernel_code in {*FORMULAS, int(KernelCode.SOFTMAX)}
        and isinstance(query.regulariser, SeparableRegulariser)
        and isinstance(query.constraint, Unconstrained | L2Ball)
        and not isinstance(units.private_features, MappedRows)
    )


def pass_sum(
    units: Units, query: LocalPass, private_positions: NDArray[np.int64] | None, threads: int
) -> NDArray[np.float64]:
    """The sum of clipped moves of a query that `supports` accepts, of the query's shape.

    Args:
        units: the data.
        query: what to compute.
        private_positions: which users take part; None for all.
        threads: how many threads share the lanes; the result does not depend on it.
    """
    count = units.private_count if private_positions is None else len(private_positions)
    index = np.empty(0, np.int64) if private_positions is None else private_positions
    totals = _run(units, query, index, count, threads, np.empty((0, 1, 1)))
    return in_order(totals).T.reshape(np.shape(query.at))


def pass_moves(units: Units, query: LocalPass, threads: int) -> NDArray[np.float64]:
    """Every user's clipped move as a flat vector, one a user who is there."""
    count = units.private_count
    at = _columns(units, query)
    private_moves = np.zeros((count, at.shape[1], at.shape[0]))
    _run(units, query, np.empty(0, np.int64), count, threads, private_moves)
    return private_moves.reshape(count, at.size)


def _columns(units: Units, query: LocalPass) -> NDArray[np.float64]:
    """The point that passes start at, one row an output."""
    points = np.reshape(np.asarray(query.at, np.float64), (units.public.d, query.loss.outputs))
    return np.array(points.T, order="C")  # a copy: what JAX hands out is read-only


def _run(
    units: Units,
    query: LocalPass,
    index: NDArray[np.int64],
    count: int,
    threads: int,
    private_moves: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Fill the moves, if there is room for them; the lanes' sums (lanes, K, d)."""
    public, loss, at = units.public, query.loss, _columns(units, query)
    assert isinstance(loss, GLMLoss)
    assert loss.kernel_code is not None
    assert isinstance(query.regulariser, SeparableRegulariser)
    step_size, records = float(query.step_size), public.records_per_unit
    l1, l2, weights = query.regulariser.terms
    ones = np.ones(public.d) if weights is None else np.asarray(weights, np.float64)
    radius = query.constraint.radius if isinstance(query.constraint, L2Ball) else math.inf
    reach = math.inf if query.reach is None else shrunk(query.reach)
    order = (
        np.arange(records) if query.shuffle is None else np.asarray(visiting_order(query.shuffle, records))
    )
    first, second = map(float, loss.kernel_parameters)
    work: tuple[Any, ...] = (
        kernel_rows(units.private_features),
        units.private_targets,
        units.private_offsets,
        index,
        order.astype(np.int64),
        at,
        (int(loss.kernel_code), first, second),
        (step_size, query.returns == "average"),
        (l1 * ones, l2 * ones),
        (l1 > 0.0 or l2 > 0.0, float(radius), float(reach)),
        shrunk(query.clip),
    )
    # Public sizes only: a nominal 64 stored entries a CSR row, and as many rows a user as there may be.
    entries = loss.outputs * records * (64 if public.sparse else public.d)
    lanes = lane_ends(count, at.size, entries)
    totals = np.empty((len(lanes) - 1, *at.shape))

    def run(first_lane: int, last_lane: int) -> None:
        local_moves(*work, lanes, first_lane, last_lane, totals, private_moves)

    run_lanes(run, len(lanes) - 1, threads)
    return totals
