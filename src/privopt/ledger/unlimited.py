"""A payer that refuses nothing: for replays, which hold no data, and for studies that price runs themselves."""

from privopt.ledger.events import Event
from privopt.ledger.payer import Payer
from privopt.public import Relation


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
