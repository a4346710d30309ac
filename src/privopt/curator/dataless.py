"""What curators without data have in common: their children share their answers."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import Held
from privopt.ledger.payer import Payer
from privopt.public import Public
from privopt.queries.base import MeanQuery


class Dataless(Curator):
    """A curator without data: children share its answers."""

    def hold(self, query: MeanQuery) -> Held:
        """A handle to nothing."""
        del query
        return Held(0)

    def _same_units(self, ledger: Payer) -> Curator:
        return self._child(self.public, ledger)

    def _some_units(self, private_positions: NDArray[np.int64], size: int, ledger: Payer) -> Curator:
        del private_positions  # of nobody: only the public sizes are known here
        return self._child(replace(self.public, n=size), ledger)

    def _mapped_units(self, row_map: NDArray[np.float64], row_bound: float) -> Curator:
        public = replace(self.public, d=row_map.shape[1], row_bound=row_bound, sparse=False)
        return self._child(public, self.ledger)

    def _unit_generator(self) -> np.random.Generator:
        return np.random.default_rng(0)

    def _child(self, public: Public, ledger: Payer) -> Curator:
        raise TypeError(f"{type(self).__name__} has no children.")
