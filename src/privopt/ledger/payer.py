"""What a curator asks before it answers: whoever pays for releases, or refuses them."""

import abc
import threading
from typing import Any, Never, Self

from privopt.errors import BudgetExceeded
from privopt.ledger.events import Event
from privopt.process import this_process
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


# ------------------------------------------------------------------------------------------------------------
# A payer that refuses nothing: for replays, which hold no data, and for studies that price runs themselves.


class Unlimited(Payer):
    """Pays for everything and keeps no account: nothing that is released through it has a guarantee from it."""

    def __init__(self, relation: Relation | str) -> None:
        self.relation, self.seeded = Relation.parse(relation), False

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

    def parallel(self, k: int, name: str = "blocks") -> "tuple[Unlimited, ...]":
        del name
        return (self,) * k

    def gaussian_filter(self, name: str, event: Event) -> "Unlimited":
        del name, event
        return self


# ------------------------------------------------------------------------------------------------------------
# What a budget is paid from: one thread at a time, in the process that opened it, and never from a copy.


class SpendLock:
    """A lock around check and payment that a forked child cannot open: a copied budget would be spent twice."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process = this_process()

    def __enter__(self) -> Self:
        if this_process() != self._process:
            raise BudgetExceeded(
                "this budget was opened in another process, where a forked child's payments do not show: open a "
                "budget in the process that spends it."
            )
        self._lock.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


class NotCopyable:
    """Neither pickled nor copied."""

    def __reduce_ex__(self, protocol: Any) -> Never:
        raise TypeError(
            "a ledger cannot be pickled or copied: the copy could spend its budget again. Pass the ledger itself on, "
            "or store ledger.to_dict() for the record."
        )
