"""What a call had spent by the time that something stopped it, said in the exception: every run in it, whole."""

import functools
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Literal, ParamSpec, TypeVar

from privopt.errors import add_note
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget

P = ParamSpec("P")
R = TypeVar("R")


class Outlay:
    """What one run spends, and how far its payment is.

    Args:
        name: what the account calls the run.
        budget: what it may spend.
        account: that pays; None for none.
    Attributes:
        state: "begun" from before the payment until it is known how that ended, then "paid" or "refused".
        number: of the payment in the account's file, once it is known.
    """

    def __init__(self, name: str, budget: Budget, account: Account | None) -> None:
        self.name, self.budget, self.account = name, budget, account
        self.state: Literal["begun", "paid", "refused"] = "begun"
        self.number: int | None = None

    @property
    def sentence(self) -> str:
        """What to count as spent."""
        whole = f"count its whole price as spent on these data, {self.budget}"
        if self.account is None:
            return f"the run {self.name!r} had begun: {whole}."
        payer = "the account" if self.account.name is None else f"the account of {self.account.name!r}"
        if self.state == "begun":
            return (
                f"{payer} was paying for the run {self.name!r} when it was stopped: no data was read for it, but a "
                f"payment that was entered stays, {self.budget}."
            )
        entered = "" if self.number is None else f" (payment {self.number})"
        return f"{payer} has paid for the run {self.name!r}{entered} and nothing is given back: {whole}."


_OUTLAYS: ContextVar[list[Outlay] | None] = ContextVar("privopt_outlays", default=None)


def begun(name: str, budget: Budget, account: Account | None) -> Outlay:
    """The outlay of a run that is about to be paid for, told by the call around it if that fails."""
    outlay = Outlay(name, budget, account)
    outlays = _OUTLAYS.get()
    if outlays is not None:
        outlays.append(outlay)
    return outlay


def tells_what_was_spent(call: Callable[P, R]) -> Callable[P, R]:
    """A function that notes in every exception it raises what its runs have spent; of nested ones the outermost does.

    Privacy:
        What is said is public: names, budgets, and that the run was stopped, which whoever catches the exception sees.
    """

    @functools.wraps(call)
    def told(*arguments: P.args, **named: P.kwargs) -> R:
        if _OUTLAYS.get() is not None:
            return call(*arguments, **named)
        outlays: list[Outlay] = []

        def noted() -> R:
            _OUTLAYS.set(outlays)
            return call(*arguments, **named)

        try:
            return copy_context().run(noted)  # which ends with it, wherever an interruption strikes
        except BaseException as error:
            for outlay in outlays:
                if outlay.state != "refused":
                    add_note(error, outlay.sentence)
            raise

    return told
