"""What a curator asks before it answers: whoever pays for releases, or refuses them."""

import abc

from privopt.ledger.events import Event
from privopt.public import Relation


class Payer(abc.ABC):
    """Pays for releases before they are made.

    Attributes:
        relation: the neighbouring relation of the prices.
        seeded: whether some randomness of the run came from a seed, which makes it not private.
    """

    relation: Relation
    seeded: bool

    def mark_seeded(self) -> None:
        """Say that something paid here rests on a seed."""
        self.seeded = True

    @abc.abstractmethod
    def charge(self, name: str, event: Event, count: int = 1) -> None:
        """Pay for a release, or refuse it."""

    @abc.abstractmethod
    def affords(self, event: Event, count: int = 1) -> bool:
        """Whether a release would be paid for now."""

    @abc.abstractmethod
    def sub_ledger(
        self, name: str, *, share: float | None = None, rho: float | None = None, plan: Event | None = None
    ) -> "Payer":
        """A payer with a part of this one's means."""

    @abc.abstractmethod
    def parallel(self, k: int, name: str = "blocks") -> "tuple[Payer, ...]":
        """One payer for each of k disjoint blocks of units."""

    @abc.abstractmethod
    def gaussian_filter(self, name: str, event: Event) -> "Payer":
        """A payer whose means are those of one Gaussian release, which is paid for now."""
