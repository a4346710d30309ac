"""The account that pays for a command: `--account`, or the project's, and what is said of it before and after."""

import contextlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from privopt.commands import screen
from privopt.commands.screen import Mistake
from privopt.curator.base import Observer
from privopt.curator.journals import journals, resumable
from privopt.errors import AccountError, BudgetExceeded, PrivoptError, add_note, notes_of
from privopt.ledger.account import Account
from privopt.ledger.default_account import Policy, Statement, paying_account
from privopt.planning.plan import Plan
from privopt.report.words import at_most, several

_GOES_ON = "a run was begun in this folder: its releases are repeated, and only those that it lacks are made"


def account_for(file: Path | None, data_set: str | None, *, spends: bool = True) -> Account | None:
    """The account that a command pays from; None where none was named and none is required.

    Args:
        file: what `--account` says.
        data_set: what `--data-set` says.
        spends: whether the command will spend; one that only plans needs no account.
    Raises:
        Mistake: a data set was named where there is no account.
        AccountError: the account is not there, is of other data, or is required and missing.
    """
    policy = Policy.here()
    if file is None and data_set is not None:
        file = policy.account
        if file is None:
            raise Mistake("--data-set names the data of an account: name its file with --account.")
    account = policy.open_default() if file is None else Account(path=file, data_set=data_set)
    return paying_account(account) if spends else account


class Paying:
    """One command's payment: announced, then made by the fit, then told.

    Args:
        account: that pays; None for none.
    Attributes:
        fitted: whether the fit was made, to be set once it was.
    """

    def __init__(self, account: Account | None) -> None:
        self.account, self.fitted, self._made = account, False, 0
        self._resumed = False
        self._before = 0 if account is None or account.file is None else len(account.file.payments())

    def announce(self, plan: Plan) -> list[tuple[str, str]]:
        """Lines on the account, and on a run that goes on, for the plan that is printed before any record is read.

        Raises:
            BudgetExceeded: the account cannot pay for the plan.
            NotPriceable: nor could it ever.
            AccountError: its file must not be spent from.
        """
        account, kept = self.account, journals()
        self._resumed = kept is not None and kept.begun() is not None
        if account is None:
            return [("resume", _GOES_ON)] if self._resumed else []
        account.require(relation=plan.public.relation, unit=plan.public.unit)
        if kept is not None and kept.paid(account):
            return [("account", f"{account.name!r} paid for this run before it was stopped: {self._left()}")]
        if not account.affords(plan.event, plan.budget.epsilon, plan.budget.delta):
            raise BudgetExceeded(
                f"the account of {account.name!r} cannot pay for this: {self._left()}. Nothing was read or spent. Ask "
                "for less with --epsilon, or see `privopt account show`."
            )
        return [("account", f"{account.name!r} pays before any record is read: {self._left()}")]

    def outlook(self, plan: Plan) -> list[tuple[str, str]]:
        """Lines on whether the account would pay for a plan."""
        try:
            return self.announce(plan)
        except PrivoptError as error:
            return [("account", f"it would refuse: {error}")]

    def summary(self) -> list[tuple[str, str]]:
        """Lines on the account after the fit."""
        account = self.account
        return [] if account is None else [("account", f"{account.name!r} has paid: {self._left()}")]

    def _left(self) -> str:
        """What is left, in words."""
        assert self.account is not None
        assert self.account.file is not None
        statement = Statement.of(self.account.file)
        return (
            f"{100 * max(0.0, 1 - statement.used):.1f} % of its budget is left, enough for one more fit of epsilon "
            f"{at_most(statement.left)} at delta {at_most(statement.left_delta)}"
        )

    @contextmanager
    def telling(self, terminal: Console, plan: Plan) -> Generator[None]:
        """Around a fit and what is done with its result: whatever stops that, say what was spent.

        One block for both: between two, Ctrl-C would find nobody who knows of the payment.
        """
        try:
            yield
        except BaseException as error:
            self._tell(terminal, error, plan)
            raise

    def observing(self, observer: Observer) -> Observer:
        """An observer that also counts the releases of the fit for the account of what was spent."""

        def observe(name: str, releases: int) -> None:
            self._made += releases
            observer(name, releases)

        return observe

    def _tell(self, terminal: Console, error: BaseException, plan: Plan) -> None:
        """Say what a command that failed has cost, on the terminal and in its exception."""
        refused = isinstance(error, PrivoptError) and self.account is not None  # which knows what was entered
        begun = bool(notes_of(error)) and not refused  # see `curator.transcript`
        if self.fitted or self._made or begun:
            sentence = screen.done(plan) if self.fitted else screen.spent(plan, self._made)
            if journals() is not None:
                sentence += " The same command, started again, goes on from there and is charged no more."
            add_note(error, sentence)
            screen.warn(terminal, sentence)
            return
        sentence = self._nothing() if self.account is None else self._entered()
        if self._resumed:
            add_note(error, sentence)
        screen.warn(terminal, sentence)

    def _nothing(self) -> str:
        """That nothing was spent, by this command."""
        return screen.NOTHING_NOW if self._resumed else screen.NOTHING_SPENT

    def _entered(self) -> str:
        """What stands in the account since the command began, in words."""
        assert self.account is not None
        assert self.account.file is not None
        try:
            new = len(self.account.file.payments()) - self._before
        except AccountError:
            return "No release was made. The account cannot be read: count the fit as paid for."
        if not new:
            return f"{self._nothing()} The account is as it was."
        entered = f"{several(new, 'payment')} {'was' if new == 1 else 'were'} entered"
        return (
            f"No release was made, but since this fit began {entered} in the account; what is paid stays paid. See "
            "`privopt account show`."
        )


# ------------------------------------------------------------------------------------------------------------
# `--resume`: where the releases of a command are kept, so that the same command goes on if it is stopped.


def resumable_in(
    folder: Path | None, seed: int | None, *, output: Path
) -> contextlib.AbstractContextManager[None]:
    """Around a run: where its releases are kept, if they are.

    Args:
        folder: what was typed.
        seed: likewise.
        output: the directory, or the file, that the result is written to.
    Raises:
        Mistake: that cannot be, with what else was typed.
    """
    if folder is None:
        return contextlib.nullcontext()
    if seed is not None:
        raise Mistake(
            "--resume cannot be given with --random-state: the same noise would be drawn again. Leave out one of them."
        )
    if folder.resolve().is_relative_to(output.resolve()):
        raise Mistake(
            f"--resume {str(folder)!r} must not lie in --output {str(output)!r}: it is for whoever runs this, a result "
            "may be given away."
        )
    return resumable(folder)
