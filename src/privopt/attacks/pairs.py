"""Neighbours that differ as much as they can: records that hit every clip of a fit, wherever it stands.

A default fit releases a second moment of the rows, then clipped gradients in coordinates in which all directions look
alike. The changed record has a row that hardly any other record points at, so that in those coordinates it is long and
its gradient is clipped, and a target that the others pull away from. On the other side it has the row of opposite
features: with a constant column the two rows are orthogonal, so the second moment moves by its whole sensitivity, and
where directions look alike they point against each other, so that the gradients do as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Records:
    """Made-up records.

    Attributes:
        rows: (n, d), entries in [-1, 1].
        targets: (n,).
    """

    rows: Values
    targets: NDArray[Any]

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, count: int) -> "Records":
        """Some of them."""
        return Records(self.rows[:count], self.targets[:count])


@dataclass(frozen=True, kw_only=True)
class Turned:
    """Records of one feature, of which the last one is turned.

    Attributes:
        target: of the last record.
        instead: its target on the other side; default: the same.
        row: its feature on the other side; it is 1 here.
        others: targets of the other records, in turn.
        share: of the others that have a feature, 1 or -1; the rest has 0.
    """

    target: float
    others: tuple[float, ...]
    instead: float | None = None
    row: float = -1.0
    share: float = 0.0

    def left(self, n: int, kind: type) -> Records:
        """The data set with the record."""
        rows = np.zeros((n, 1))
        some = int(self.share * n) // 2
        rows[:some], rows[some : 2 * some], rows[-1] = 1.0, -1.0, 1.0
        targets = np.resize(np.asarray(self.others, np.float64), n)
        targets[-1] = self.target
        return Records(rows, targets.astype(kind))

    def right(self, n: int, kind: type) -> Records:
        """Its neighbour under replace-one; under add-or-remove-one it is `left` without the last record."""
        left = self.left(n, kind)
        rows, targets = left.rows.copy(), left.targets.copy()
        rows[-1] = self.row
        targets[-1] = self.target if self.instead is None else self.instead
        return Records(rows, targets)

    def strangers(self, n: int, kind: type) -> Iterator[Records]:
        """Data sets of as many records that have nothing in common with it: at random, and all zero."""
        generator = np.random.default_rng(1)
        known = np.unique(
            [0.0, self.target, self.target if self.instead is None else self.instead, *self.others]
        )
        yield Records(generator.uniform(-1, 1, (n, 1)), generator.choice(known, n).astype(kind))
        yield Records(np.zeros((n, 1)), np.zeros(n, kind))
