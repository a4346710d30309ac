"""One priced run: the ledger, the transcript and the noise that every release of it goes through.

A run that was stopped goes on from its journal: see `Resumption`.
"""

import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from privopt.curator.base import Curator, Observer
from privopt.curator.cuts import Assigned, Cuts
from privopt.curator.dry_run import Trial
from privopt.curator.journal import Journal, digest
from privopt.curator.journals import (
    DATA,
    account_named,
    asked,
    journals,
    require_named,
    require_same,
    versions,
)
from privopt.curator.local import LocalCurator
from privopt.curator.resumed import Rehearsal, ResumedCurator, refusal
from privopt.curator.transcript import Transcript
from privopt.data.blocks import Block, block_assignment
from privopt.data.places import Places
from privopt.data.units import Units
from privopt.engine.protocol import Engine, EngineName
from privopt.errors import AccountError, ArgumentError, PrivoptError, begun
from privopt.json_values import json_value
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.composition import dominating
from privopt.ledger.default_account import Statement, paying_account
from privopt.ledger.events import Event
from privopt.ledger.ledger import Ledger
from privopt.ledger.payer import Payer
from privopt.mechanisms.drawable import require_drawable
from privopt.mechanisms.noise import NoiseSource
from privopt.public import Public

ResultOf = TypeVar("ResultOf")


class Run:
    """A run whose whole price is fixed, and paid where there is an account, before its first release.

    Args:
        name: what the account calls it.
        event: everything that will be released.
        budget: what that may cost.
        public: what is public about the units.
        noise: secret randomness.
        account: pays for everything now; default: the account of the project, if it names one.
        observer: called with (name, count) after releases.
        seeded: whether something besides the noise came from a seed, such as the choice of users' records.
        engine: what computes on units, see `LocalCurator`.
        of: what is solved and how, by name, for a run that may go on from a journal, see `journals.resumable`: the
            one that was stopped must have been of the same. None for one that may not, since it holds points.
        origin: what the records are read from, where that is known before the run, see `Units.origin`.
    Raises:
        ArgumentError: a folder for resumption was named, and this run cannot be resumed, or is not the one in it.
        ValueError: the plan has noise that cannot be drawn exactly; nothing was paid, and no data has been read.
        BudgetExceeded: the account, or the budget, cannot pay; no data has been read.
        AccountError: the file of the account cannot pay, or an account is required and there is none.
    """

    def __init__(
        self,
        name: str,
        event: Event,
        budget: Budget,
        public: Public,
        *,
        noise: NoiseSource,
        account: Account | None = None,
        observer: Observer | None = None,
        seeded: bool = False,
        engine: EngineName = "fast",
        of: Mapping[str, Any] | None = None,
        origin: str = "",
    ) -> None:
        if noise.exact:
            require_drawable(event)
        self.budget, self.noise = budget, noise
        self.seeded = seeded or noise.seeded
        self._account = paying_account(account)
        self._resumption = Resumption.here(
            name,
            event,
            budget,
            public,
            self._account,
            of=of,
            seeded=self.seeded,
            exact=noise.exact,
            origin=origin,
        )
        self.ledger = Ledger(budget, public.relation, plan=event, seeded=self.seeded)
        self.transcript = Transcript(public.relation, seeded=self.seeded)
        self._observer = observer
        self._engine: EngineName = engine
        outlay = begun(name, budget, self._account)
        paid = None if self._resumption is None else self._resumption.payment
        if paid is not None:
            outlay.number, outlay.state = paid, "paid"
        elif self._account is not None:
            try:
                outlay.number = self._account.spend(
                    name,
                    event,
                    budget.epsilon,
                    budget.delta,
                    relation=public.relation,
                    unit=public.unit,
                    seeded=self.seeded,
                    key="" if self._resumption is None else self._resumption.key,
                )
            except (PrivoptError, ValueError):  # one that was entered nevertheless says so itself
                outlay.state = "refused"
                raise
            outlay.state = "paid"
        if self._account is not None and self._account.file is not None:
            self.transcript.paid_by = Statement.of(self._account.file, last=outlay.number)
        if self._resumption is not None:
            self._resumption.note_payment(outlay.number)

    def curator(self, data: Units | Engine, ledger: Payer | None = None) -> LocalCurator:
        """A curator of some units, on this run's ledger or a part of it.

        Args:
            data: the units, or an engine that computes on them wherever they are.
            ledger: a part of the run's; default: the whole.
        Privacy:
            Units whose records were chosen from a seed mark the whole run and the account that paid for it.
        """
        if data.seeded and not self.seeded:
            self.seeded = True
            self.ledger.mark_seeded()
            if self._account is not None:
                self._account.mark_seeded()
        make = LocalCurator if self._resumption is None else self._resumption.curator(data)
        return make(
            data,
            self.ledger if ledger is None else ledger,
            noise=self.noise,
            transcript=self.transcript,
            observer=self._observer,
            engine=self._engine,
        )

    def part(self, name: str, event: Event) -> Payer:
        """A piece of the declared plan, for a stage of the run."""
        return self.ledger.sub_ledger(name, plan=event)

    def one_of(self, name: str, events: Sequence[Event], index: int) -> Ledger:
        """A ledger for one of several alternatives, chosen from what was released before.

        Privacy:
            The run pays for the release that dominates all of them.
        """
        self.ledger.charge(name, dominating(events))
        return Ledger(self.budget, self.ledger.relation, plan=events[index], seeded=self.seeded)

    def end(self) -> None:
        """Everything was released: what a run that is to be resumed kept for the rest is deleted."""
        if self._resumption is not None:
            self._resumption.end()

    def split(self, name: str, units: Units | Engine, sizes: Sequence[int]) -> list["Part"]:
        """Cut the units once into disjoint parts, without looking at them; the dearest part is what is charged.

        Args:
            name: what the ledger calls the cut.
            units: all of them, stored in any way.
            sizes: the public size of each part.
        """
        ledgers = self.ledger.parallel(len(sizes), name)
        if self._resumption is not None:
            cut = self._resumption.cut(units, sizes)
        else:
            cut = block_assignment(
                units.public, sizes, self.noise.units_generator, private_count=units.private_count
            )
        number = self.transcript.next_cut()
        return [
            Part(self, ledger, private_places, size, Block(number, index, len(cut)), _placed(units.public))
            for index, (ledger, (private_places, size)) in enumerate(zip(ledgers, cut, strict=True))
        ]


def rehearsed(
    solve: Callable[[Curator], object], public: Public, data: Units | Engine, budget: Budget, event: Event
) -> None:
    """Run once without data what is to be resumed, and refuse what then would be, before anything is paid.

    Args:
        solve: the program.
        public: what is public about the units that it will see.
        data: the units; what says where they stand is asked.
        budget: what the run may cost.
        event: everything that the program will release.
    Raises:
        ArgumentError: it keeps secrets that are lost with the process. Of a program whose course follows from what it
            releases this is seen on the course that zeros take; whatever it opens beyond that is refused when it does.
    """
    if (kept := journals()) is not None:
        standing = kept.standing(data.origin, data.laid_out)
        solve(Rehearsal(public, standing, Ledger(budget, public.relation, plan=event)))


def tried(solve: Callable[[Curator], ResultOf], public: Public, budget: Budget, event: Event) -> ResultOf:
    """What a program of the user's own ends with on a `Trial`, before anything is paid.

    Raises:
        Exception: the program raised it, or asked for what it did not plan; a note says when.
    """
    try:
        return solve(Trial(public, ledger=Ledger(budget, public.relation, plan=event)))
    except Exception as error:
        error.add_note(
            "This was a trial before the run: nothing was read or paid. A program of your own is first run without "
            "data, where means are answered by noise alone and all else by zeros."
        )
        raise


@dataclass(frozen=True, eq=False, repr=False)
class Part:
    """One of the disjoint parts of a run's units: the same units for every way of storing them."""

    run: Run
    ledger: Payer
    private_places: Places
    size: int
    block: Block
    placed: tuple[Any, ...]

    def curator(self, units: Units | Engine, stage: tuple[str, Event] | None = None) -> LocalCurator:
        """A curator of this part of `units`.

        Args:
            units: all units of the run, as some stage stores them.
            stage: name and event of a stage that uses a piece of the part's ledger; None for all of it.
        Privacy:
            A part is a set of places, and its price supposes that a unit has the same place in all stages. How many
            parts users are laid out in, and so where they stand, follows from n and the cap on their records
            (`user_parts.part_count`): units that differ there are refused.
        Raises:
            ArgumentError: they are other units than those that were split.
        """
        if _placed(units.public) != self.placed:
            raise ArgumentError(
                "the stages of a run must have the same n, relation, unit and max_records_per_user as the units that "
                "were split: with others a unit may stand in another part of the split. Give them as they were."
            )
        ledger = self.ledger if stage is None else self.ledger.sub_ledger(stage[0], plan=stage[1])
        curator = self.run.curator(units.subset(self.private_places, self.size), ledger)
        curator.lineage = (self.block,)
        return curator


def _placed(public: Public) -> tuple[Any, ...]:
    """What is public about units and decides where they stand."""
    return public.n, public.relation, public.unit, public.records_per_unit


# ---- How a run goes on from its journal: whether it may, whether it is the same, what was paid for it ------
_NOTHING = np.zeros(0)


class Resumption:
    """One run's journal.

    Attributes:
        key: random letters that name the run to the account, on disk before it pays: whatever the run is stopped in,
            it is paid for once.
        payment: the number of the payment that was made for the run, before it was stopped; None for none.
    """

    def __init__(self, journal: Journal, account: Account | None) -> None:
        self._journal, self._account = journal, account
        self._cuts = Cuts(journal)
        self.key = ""
        self.payment: int | None = None

    @classmethod
    def here(
        cls,
        name: str,
        event: Event,
        budget: Budget,
        public: Public,
        account: Account | None,
        *,
        of: Mapping[str, Any] | None,
        seeded: bool,
        exact: bool,
        origin: str,
    ) -> "Resumption | None":
        """The resumption of a run in this context; None where nobody asked for one. Nothing is paid or read.

        Args:
            name: what the account calls the run.
            event: everything that it will release.
            budget: what that may cost.
            public: what is public about the units.
            account: that pays; None for none.
            of: what it solves and how, by name: public values, compared by their digests; None for a run that cannot
                be resumed.
            seeded: whether its randomness comes from a seed.
            exact: whether its noise is exact.
            origin: what its records are read from, if that is known yet; empty for arrays.
        Raises:
            ArgumentError: it cannot be resumed, or the journal is that of another run.
            AccountError: the account has counted lines of this run that are not in the journal.
        """
        kept = journals()
        if kept is None:
            return None
        if of is None:
            raise refusal("holds points of units")
        if seeded:
            raise ArgumentError(
                "a run from a seed cannot be resumed: the same noise would be drawn again. Leave out random_state."
            )
        require_named(kept, account, origin)
        solved = {what: digest(value) for what, value in of.items()}
        terms = {
            **versions(),
            "account": account_named(account),
            DATA: kept.data,
            "epsilon": float(budget.epsilon),
            "delta": float(budget.delta),
            "kind of noise": "exact" if exact else "float",
            **{one.name: repr(getattr(public, one.name)) for one in dataclasses.fields(public)},
        }
        released = {"run": name, "event": json_value(event.to_dict())}
        resumption = cls(kept.next(), account)
        resumption._begin(terms, solved, released)
        line = resumption._journal.next()
        if line is not None:
            resumption.payment = resumption._checked(line.header)
            require_named(kept, account, origin, resumption.key)
        if account is not None:
            resumption._journal.follow(account.claim(resumption.key), paid=account.has_paid(resumption.key))
        return resumption

    def note_payment(self, number: int | None) -> None:
        """Write down that the run is paid for; without an account in a file there is nothing to find again."""
        if len(self._journal.lines) > 1:
            return
        mark = None if number is None else self._hash_of(number)
        self._journal.add({"paid": number, "hash": mark}, _NOTHING)

    def curator(self, data: Units | Engine) -> Callable[..., LocalCurator]:
        """What makes curators of this run.

        Raises:
            ArgumentError: the units were chosen from a seed, or were read from other files than before.
        """
        if data.seeded:
            raise ArgumentError(
                "units whose records were chosen from a seed cannot be used in a resumed run."
            )
        told = {"files, or what is read of them": data.origin}
        line = self._journal.next()
        if line is None:
            self._journal.add(told, _NOTHING)
        else:
            require_same(self._journal.path, told, line.header)
        return partial(_made, self._journal, self._cuts)

    def cut(self, data: Units | Engine, sizes: Sequence[int]) -> Assigned:
        """The units in disjoint parts, at random, see `Cuts.assigned`."""
        return self._cuts.assigned(
            data.public,
            sizes,
            origin=data.origin,
            laid_out=data.laid_out,
            in_order=False,
            private_count=data.private_count,
        )

    def end(self) -> None:
        """All was released: what was kept for what was still to come is deleted, and the journal is closed."""
        self._cuts.forget()
        self._journal.close()

    def _begin(self, terms: dict[str, Any], solved: dict[str, str], released: dict[str, Any]) -> None:
        """Compare the first line with what is asked for, naming the cause before what follows from it; or write it."""
        line = self._journal.next()
        if line is None:
            self.key = secrets.token_hex(16)
            stated = {"id": self.key, **terms, "arguments": dict(asked()), "solved": solved, **released}
            self._journal.add(stated, _NOTHING)
            return
        path, stated = self._journal.path, line.header
        self.key = stated.get("id", "")
        require_same(path, terms, stated)
        require_same(path, asked(), stated["arguments"])
        require_same(path, solved, stated["solved"])
        require_same(path, released, stated)

    def _checked(self, header: Any) -> int | None:
        """The number of the payment, which must stand in the account still."""
        number = header.get("paid")
        if number is not None and self._hash_of(number) != header.get("hash"):
            raise AccountError(
                f"payment {number} of the account is not the one that was made for this run: the account's file was "
                "restored, or is another one. Nothing was read."
            )
        return number

    def _hash_of(self, number: int) -> str | None:
        """The hash of a payment's row."""
        if self._account is None or self._account.file is None:
            return None
        payments = self._account.file.payments()
        return payments[number - 1].hash if 0 < number <= len(payments) else None


def _made(journal: Journal, cuts: Cuts, *arguments: Any, **named: Any) -> LocalCurator:
    curator = ResumedCurator(*arguments, **named)
    curator.journal, curator.cuts = journal, cuts
    return curator
