"""Our own exceptions.

    PrivoptError
    ├── ArgumentError       an argument has a value that cannot be used; also a ValueError
    ├── ArgumentTypeError   an argument has a type that cannot be used; also a TypeError
    ├── BudgetTooSmall      too few users for the budget: all would be noise; nothing was read
    ├── BudgetExceeded      a release would cost more than is left; nothing was read
    ├── AccountError        the file of an account cannot pay, or must not; nothing was read
    ├── PlanMismatch        a release that the declared plan does not hold; nothing was read
    ├── NotPriceable        no accountant can price this event under this relation
    ├── DataUnavailable     records cannot be read any more; what the run was charged stays charged
    └── ReplayMismatch      a replayed solver asked for something that was not recorded

Each is a sentence that we wrote: it carries no data value and no private count, and may be shown to anybody. Whatever
else is raised once data are there may quote a cell, and the command line does not show it. An argument that is checked
before any data are there may also raise a plain `ValueError` or `TypeError`.
"""

import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

if TYPE_CHECKING:
    from privopt.ledger.account import Account
    from privopt.ledger.amounts import Budget


class PrivoptError(Exception):
    """The root of privopt's own exceptions."""


class ArgumentError(PrivoptError, ValueError):
    """An argument, or the public shape of what was given, cannot be used."""


class ArgumentTypeError(PrivoptError, TypeError):
    """An argument is of a type that cannot be used."""


class BudgetTooSmall(PrivoptError, ValueError):
    """With so few users, this budget would buy nothing but noise. No data has been read."""


class BudgetExceeded(PrivoptError):
    """A release was refused because it would overspend the budget. No data has been read for it."""


class AccountError(PrivoptError):
    """An account's file cannot be used, or must not: it is missing, damaged, older than its counter, of other data."""


class PlanMismatch(PrivoptError):
    """A release was refused because the plan that was priced beforehand does not hold it."""


class NotPriceable(PrivoptError, ValueError):
    """No accountant can price this event under this neighbouring relation."""


STAYS_CHARGED = "What the run was charged stays charged."  # of what was charged, if anything was


class DataUnavailable(PrivoptError):
    """Records cannot be read any more: a file has changed or is gone, or workers were lost once too often.

    What the run was charged stays charged.
    """


class ReplayMismatch(PrivoptError):
    """A replayed solver asked for a release other than the recorded one: it is not post-processing."""


NOTE = "privopt: "  # how what the library adds to another's exception begins


def add_note(error: BaseException, sentence: str) -> None:
    """Say something in an exception that passes by, as a line below its message, whatever its class says."""
    line = f"{NOTE}{sentence}"
    try:
        error.add_note(line)
    except Exception:  # another's class may refuse attributes, or have notes that are no list
        kept = getattr(error, "__notes__", [])
        BaseException.__setattr__(error, "__notes__", [*(kept if isinstance(kept, list) else []), line])


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, if there is one, and those that it came from."""
    met: set[int] = set()
    while error is not None and id(error) not in met:  # `raise error from error` comes from itself
        met.add(id(error))
        yield error
        error = error.__context__ if error.__cause__ is None else error.__cause__


def notes_of(error: BaseException) -> list[str]:
    """What was said in an exception, and in those that it came from."""
    found: list[str] = []
    for step in chain_of(error):
        notes: list[str] = getattr(step, "__notes__", [])
        found += [note.removeprefix(NOTE) for note in notes if note.startswith(NOTE)]
    return list(dict.fromkeys(found))


# ---- What a call had spent by the time that something stopped it: every run in it, whole -------------------

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

    def __init__(self, name: str, budget: "Budget", account: "Account | None") -> None:
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


def begun(name: str, budget: "Budget", account: "Account | None") -> Outlay:
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
