"""Which errors are the user's, and the sentence about them. A sentence never carries a cell of the table."""

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from privopt.errors import PrivoptError

MOST_EPSILON = 1e6
_NO_MEMORY_ON_DEVICE = "RESOURCE_EXHAUSTED:"  # how jax says it


class Mistake(PrivoptError, ValueError):
    """What was typed cannot be done; the message is one sentence that says what to do."""


def sentence_about(error: Exception) -> str | None:
    """The sentence for a user's mistake; None for an error of ours.

    Only a `PrivoptError` is shown: its sentence is ours and quotes arguments only. Whatever a library below says, or
    Python itself from a line of ours, may quote a cell.
    """
    if isinstance(error, PrivoptError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        place = f"{str(error.filename)!r} cannot be used" if error.filename else "the system refused"
        return f"{place}: {error.strerror.lower()}."
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and str(error).startswith(_NO_MEMORY_ON_DEVICE)
    ):
        return "there is not enough memory for this: take fewer or narrower columns, or a machine with more."
    return None


@contextmanager
def public_arguments() -> Generator[None]:
    """Around what sees public arguments only: a `ValueError` or `TypeError` of a line of ours is the user's mistake.

    Raises:
        Mistake: with the sentence of such an error.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        if isinstance(error, PrivoptError) or not _raised_by_privopt(error):
            raise
        raise Mistake(str(error)) from error


def _raised_by_privopt(error: Exception) -> bool:
    """Whether the innermost line of the trace is ours."""
    step = error.__traceback__
    if step is None:
        return False
    while step.tb_next is not None:
        step = step.tb_next
    return str(step.tb_frame.f_globals.get("__name__", "")).split(".")[0] == "privopt"


GIVE_EPSILON = "how much anybody may learn about one unit; 1 is a common choice, smaller is more private"
GIVE_DELTA = (
    "the probability that the epsilon bound may fail, a number well below 1 / n, or 'auto' for 1 / n^2"
)
GIVE_SCHEMA = (
    "a JSON file with the public range or levels of every column to be used; reading them off the table would not be "
    "private"
)
GIVE_N = "under add-or-remove-one the number of units is private, so a public number is needed that no data set exceeds"
GIVE_TABLE = "the CSV or Parquet file that holds the records, a folder, a glob or a URI"


def require_given(needed: Mapping[str, tuple[Any, str]]) -> None:
    """Name everything that is missing at once.

    Args:
        needed: by the name of an option or argument, what was given (None or empty where nothing was) and what it is.
    Raises:
        Mistake: something is missing.
    """
    missing = [
        f"{name}: {meaning}" for name, (given, meaning) in needed.items() if given is None or given == []
    ]
    if missing:
        together = missing[0] if len(missing) == 1 else "; ".join(missing[:-1]) + f"; and {missing[-1]}"
        raise Mistake(f"give {together}.")


def check_epsilon(epsilon: float | None) -> float:
    """The epsilon, positive; infinite for no privacy.

    Raises:
        Mistake: it is missing or not positive.
    """
    if epsilon is None:
        raise Mistake(f"give --epsilon: {GIVE_EPSILON}.")
    if not epsilon > 0:
        raise Mistake(
            f"--epsilon must be positive, got {epsilon:g}: 1 is a common choice, smaller is more private."
        )
    if MOST_EPSILON < epsilon < math.inf:
        raise Mistake(
            f"--epsilon must be at most {MOST_EPSILON:,.0f}, beyond which nothing is hidden, got {epsilon:g}: give inf "
            "to go without privacy."
        )
    return epsilon


def check_delta(delta: str | None, n: int) -> tuple[float, str]:
    """The delta and how it came about.

    Raises:
        Mistake: it is missing, no number, or not a probability above 0.
    """
    if delta is None:
        raise Mistake(f"give --delta: {GIVE_DELTA}.")
    if delta == "auto":
        return 1.0 / float(n) ** 2, "1 / n^2, which declares that n is public"
    try:
        value = float(delta)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise Mistake(
            f"--delta must be 'auto' or a number above 0 and below 1, got {delta!r}: choose it well below 1 / n."
        )
    return value, "given"
