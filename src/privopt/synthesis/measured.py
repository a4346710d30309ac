"""What a transcript says of marginals: the released ones, with the noise that was added to each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privopt.curator.transcript import Release, Transcript
from privopt.problems.workload import Workload, cells_of, codes_of, strides_of
from privopt.synthesis.totals import total_weight


@dataclass(frozen=True, eq=False)
class ReleasedMarginal:
    """A marginal with Gaussian noise.

    Attributes:
        columns: which, the first one running fastest.
        shares: of the public n in each cell, with the noise.
        stddev: of the noise on a cell.
    """

    columns: tuple[int, ...]
    shares: NDArray[np.float64]
    stddev: float

    def onto(self, levels: Sequence[int], columns: Sequence[int]) -> "ReleasedMarginal":
        """The marginal of some of its columns: cells are added up, and so is their noise."""
        codes = codes_of(levels, self.columns)
        places = [self.columns.index(column) for column in columns]
        index = codes[:, places] @ np.array(strides_of(levels, columns), np.int64)
        size = cells_of(levels, columns)
        shares = np.bincount(index, weights=self.shares, minlength=size)
        return ReleasedMarginal(
            tuple(columns), shares.astype(np.float64), self.stddev * (len(self.shares) / size) ** 0.5
        )


def released_marginals(transcript: Transcript, levels: Sequence[int]) -> tuple[ReleasedMarginal, ...]:
    """Every marginal that was released, in order; those measured twice stand twice.

    Args:
        transcript: of a synthesizer's run.
        levels: cells of each column of the table.
    """
    return tuple(marginal for release in transcript for marginal in _marginals(release, levels))


def _marginals(release: Release, levels: Sequence[int]) -> Iterable[ReleasedMarginal]:
    """The marginals of one line: of the workload that was asked for, which need not be the one of the run.

    An answer of another kind, or whose values were not kept, or that has no noise of one scale, has none.
    """
    asked = release.about
    if not isinstance(asked, Workload) or asked.levels != tuple(levels) or not asked.sets:
        return
    if release.released is None or release.scale is None:
        return
    for released, scale in zip(release.released, release.scale, strict=True):
        shares = np.ravel(released)
        if shares.size != asked.size:  # of a query of the user's own that is derived from one of these
            continue
        for columns, part in asked.marginals(shares):
            yield ReleasedMarginal(columns, part, float(scale))


def released_total(measured: Sequence[ReleasedMarginal]) -> float:
    """The total weight of the units over n, as the released marginals have it."""
    return total_weight([one.shares for one in measured], [one.stddev for one in measured])


def estimated(
    measured: Iterable[ReleasedMarginal], levels: Sequence[int], columns: Sequence[int]
) -> ReleasedMarginal | None:
    """The best estimate of a marginal from those released that hold its columns; None where none does.

    Weighted by precision; without noise the first one.
    """
    holding = [one.onto(levels, columns) for one in measured if set(columns) <= set(one.columns)]
    if not holding:
        return None
    exact = [one for one in holding if one.stddev == 0]
    if exact:
        return exact[0]
    precisions = np.array([one.stddev**-2.0 for one in holding])
    shares = (
        sum(weight * one.shares for weight, one in zip(precisions, holding, strict=True)) / precisions.sum()
    )
    return ReleasedMarginal(tuple(columns), np.asarray(shares), float(precisions.sum() ** -0.5))
