"""Which columns of the given features were seen by the releases of a fit."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from privopt.estimators.setup import Setup
from privopt.planning.plan import IMPROVEMENT_ENDS, IMPROVEMENT_SHARE
from privopt.planning.seen_columns import NUMBER, SourceColumn, finding, unseen
from privopt.queries.second_moment import SecondMoment, unpack
from privopt.result import Result


def told_of_columns(result: Result, setup: Setup, names: Sequence[str] | None) -> Result:
    """A result with the notice on columns in which nothing was seen; then nothing is said of its quality."""
    columns, constant = _columns(setup, names), setup.problem.constant
    released = next((one for one in result.transcript if one.name == SecondMoment.__name__), None)
    if not columns or constant is None or released is None:
        return result
    if released.released is None or released.scale is None:
        return result
    moment = np.asarray(unpack(np.asarray(released.released)[0], setup.public.d))
    found = finding(unseen(moment, float(np.ravel(released.scale)[0]), columns, constant))
    if not found:
        return result
    silent = (IMPROVEMENT_SHARE, *IMPROVEMENT_ENDS)
    kept = {name: one for name, one in result.findings.items() if name not in silent}
    return result._replace(findings={**found, **kept})


def _columns(setup: Setup, names: Sequence[str] | None) -> list[SourceColumn]:
    """The columns in the units of the rows: those of a table, or plain features whose midpoint is no usual value.

    Plain features with bounds around 0 are left out: where most are 0, such as indicators of rare levels, so is what a
    missing one becomes.
    """
    features, given = setup.features, setup.shape.columns
    if setup.loose is not None or setup.specification.missing == "zero" or setup.shape.is_sparse:
        return []
    if given is not None:
        return [
            replace(
                column,
                missing=float((column.missing - features.center[column.start]) * scale),
                spread=column.spread * float(scale) ** 2,
            )
            for column in given
            for scale in (features.inverse_spread[column.start],)
        ]
    telling: NDArray[np.int64] = np.flatnonzero((features.midpoint != 0.0) & (features.inverse_spread > 0.0))
    return [
        SourceColumn(
            name=f"feature {place}" if names is None else names[place],
            start=place,
            stop=place + 1,
            missing=0.0,
            spread=NUMBER,
        )
        for place in map(int, telling)
    ]
