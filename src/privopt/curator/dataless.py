"""What curators without data have in common: their children share their answers, and nothing is refused."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import Held
from privopt.ledger.events import Event
from privopt.ledger.ledger import Ledger
from privopt.public import Public
from privopt.queries.base import MeanQuery


class Unlimited(Ledger):
    """A ledger that refuses nothing: for curators that hold no data."""

    def __init__(self) -> None:
        """There is nothing to open."""

    def charge(self, name: str, event: Event, count: int = 1) -> None:
        del name, event, count

    def affords(self, event: Event, count: int = 1) -> bool:
        del event, count
        return True

    def sub_ledger(
        self, name: str, *, share: float | None = None, rho: float | None = None, plan: Event | None = None
    ) -> "Unlimited":
        del name, share, rho, plan
        return self

    def gaussian_filter(self, name: str, event: Event) -> "Unlimited":
        del name, event
        return self

    def parallel(self, k: int, name: str = "blocks") -> "tuple[Ledger, ...]":
        del name
        return (self,) * k


class Dataless(Curator):
    """A curator without data: children share its answers."""

    def hold(self, query: MeanQuery) -> Held:
        """A handle to nothing."""
        del query
        return Held(0)

    def _same_units(self, ledger: Ledger) -> Curator:
        return self._child(self.public, ledger)

    def _some_units(self, private_positions: NDArray[np.int64], size: int, ledger: Ledger) -> Curator:
        del private_positions  # of nobody: only the public sizes are known here
        return self._child(replace(self.public, n=size), ledger)

    def _mapped_units(self, row_map: NDArray[np.float64], row_bound: float) -> Curator:
        public = replace(self.public, d=row_map.shape[1], row_bound=row_bound, sparse=False)
        return self._child(public, self.ledger)

    def _unit_generator(self) -> np.random.Generator:
        return np.random.default_rng(0)

    def _child(self, public: Public, ledger: Ledger) -> Curator:
        raise TypeError(f"{type(self).__name__} has no children.")
