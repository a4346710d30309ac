"""What curators without data have in common: their children share their answers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import Held, HiddenMean, Stream
from privopt.ledger.payer import Payer
from privopt.public import Public
from privopt.queries.base import MeanQuery


class Dataless(Curator):
    """A curator without data: children share its answers."""

    def hold(self, query: MeanQuery, *, groups: int | None = None, sample: Stream | None = None) -> Held:
        """A handle to nothing."""
        del query
        return self._handle(groups, sample)

    def hold_mean(self, query: MeanQuery) -> HiddenMean:
        """A handle to nothing."""
        return self._mean_handle(query)

    def _same_units(self, ledger: Payer) -> Curator:
        return self._child(self.public, ledger)

    def _disjoint_units(
        self, sizes: Sequence[int], ledgers: Sequence[Payer], in_order: bool
    ) -> list[Curator]:
        del in_order
        return [
            self._child(self.public.block(size), ledger) for size, ledger in zip(sizes, ledgers, strict=True)
        ]

    def _mapped_units(self, row_map: NDArray[np.float64], row_bound: float) -> Curator:
        self.public.require_numbers("a linear map of the rows")
        return self._child(self.public.mapped(row_map.shape[1], row_bound), self.ledger)

    def _child(self, public: Public, ledger: Payer) -> Curator:
        raise TypeError(f"{type(self).__name__} holds no data and cannot be divided.")
