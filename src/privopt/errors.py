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

from collections.abc import Iterator


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
