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


def released_marginals(transcript: Transcript, workload: Workload) -> tuple[ReleasedMarginal, ...]:
    """Every marginal that was released, in order; those measured twice stand twice.

    Args:
        transcript: of a synthesizer's run.
        workload: what it was asked for.
    """
    found: list[ReleasedMarginal] = []
    for release in transcript:
        if release.released is None or release.scale is None:
            continue
        kind, _, columns = release.name.rstrip("]").partition("[")
        if kind == "HeldMarginal":
            here = tuple(map(int, columns.split(",")))
            found.append(ReleasedMarginal(here, np.ravel(release.released), float(release.scale[0])))
        elif kind == "MarginalMeans":
            found += _whole(release, workload)
    return tuple(found)


def _whole(release: Release, workload: Workload) -> Iterable[ReleasedMarginal]:
    """The marginals of a workload that was released at once."""
    assert release.released is not None
    assert release.scale is not None
    for columns, shares in workload.marginals(np.ravel(release.released)):
        yield ReleasedMarginal(columns, shares, float(release.scale[0]))


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
