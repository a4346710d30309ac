"""What the commands print: the plan, bars of releases, warnings. Public and released values only."""

import math
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from privopt.errors import PrivoptError
from privopt.printable import printable

if TYPE_CHECKING:
    from privopt.curator.base import Observer
    from privopt.planning.plan import Plan
    from privopt.report.report import PrivacyReport

NOT_PRIVATE_SEED = (
    "NOT PRIVATE: the noise comes from --random-state {seed}; whoever knows or guesses it can subtract the noise. Use "
    "a seed to test, never for a model that leaves your hands."
)
MOST_TEXT = 10_000  # letters of a line
NOTHING_SPENT = "Nothing was spent: no release was made."
NOTHING_NOW = "Nothing was spent now; what the run in --resume was charged before stays charged."
NOT_PRIVATE_EPSILON = "NOT PRIVATE: epsilon is infinite, so nothing is clipped and no noise is added."


def console() -> Console:
    """The terminal, without colours for every number."""
    return Console(highlight=False)


def show_rows(screen: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """A bold title and labelled lines, wrapped to the terminal."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(f"  {label}", Text(printable(text, MOST_TEXT)))
    screen.print(Text(printable(title), style="bold"))
    screen.print(grid)
    screen.print()


def working(screen: Console, text: str) -> AbstractContextManager[Any]:
    """A sentence about what takes a while, on a terminal, as long as it does."""
    return screen.status(Text(printable(text)))


def warn(screen: Console, text: str) -> None:
    """A sentence that must not be overlooked."""
    screen.print(Text(printable(text), style="bold red"))
    screen.print()


def warnings(plan: "Plan", seed: int | None) -> list[str]:
    """Why a fit by a plan, with noise from a seed if there is one, would not be private."""
    by_seed = [] if seed is None else [NOT_PRIVATE_SEED.format(seed=seed)]
    return by_seed + ([] if plan.budget.is_private else [NOT_PRIVATE_EPSILON])


def show_plan(
    screen: Console, title: str, rows: Sequence[tuple[str, str]], plan: "Plan", seed: int | None
) -> None:
    """A plan as labelled lines, and why a fit by it would not be private."""
    show_rows(screen, title, rows)
    for warning in warnings(plan, seed):
        warn(screen, warning)


def price_row(plan: "Plan", how_delta: str = "") -> str:
    """The guarantee of a plan in words."""
    from privopt.report.words import number  # late: a help page needs no NumPy

    if math.isinf(plan.budget.epsilon):
        return "epsilon is infinite: no privacy"
    remark = f" ({how_delta})" if how_delta else ""
    return f"epsilon {number(plan.epsilon)} at delta {number(plan.budget.delta, 3)}{remark}"


def spent(plan: "Plan", made: int) -> str:
    """What a fit that was stopped has cost."""
    from privopt.report.words import several  # late: a help page needs no NumPy

    return (
        f"Stopped after {made:,} of {several(plan.releases, 'release')}. Fitting had begun: count its whole price as "
        f"spent on these data, {price_row(plan)}."
    )


def done(plan: "Plan") -> str:
    """What a fit has cost whose result was lost afterwards."""
    return f"The fit was made: count its whole price as spent on these data, {price_row(plan)}."


def plan_facts(plan: "Plan", n: int, how_n: str, how_delta: str) -> dict[str, Any]:
    """What `plan.j2` says of a plan.

    Args:
        plan: the plan.
        n: the public number of units.
        how_n: where it comes from, in words.
        how_delta: how delta came about, in words.
    """
    from privopt.planning.plan import own_lines

    return {
        **{name: getattr(plan, name) for name in ("solver", "adaptive", "releases", "passes", "seconds")},
        "memory_bytes": plan.memory_bytes,
        "n": n,
        "how_n": how_n,
        "unit": plan.public.unit,
        "relation": plan.public.relation.value,
        "price": price_row(plan, how_delta),
        "reason": plan.reason.rstrip("."),
        "predicted": plan.excess_sentence,
        "own": own_lines(plan.indicators),
        "bound": None if plan.bound is None else plan.bound.sentence,
        "indicators": plan.indicator_sentences,
        "notices": plan.notices if plan.budget.is_private else (),
    }


def guarantee_rows(report: "PrivacyReport") -> list[tuple[str, str]]:
    """What a run that is done guarantees, and how it ended, as labelled lines."""
    from privopt.report.words import number  # late: a help page needs no NumPy

    guarantee = f"epsilon {number(report.epsilon)} at delta {number(report.delta, 3)}"
    return [
        ("guarantee", guarantee if report.is_private else "none: NOT PRIVATE"),
        ("status", report.status),
    ]


@contextmanager
def row_bar(screen: Console, title: str, rows: int) -> Generator[Callable[[int], None]]:
    """A progress bar over the rows of a table; gives what moves it by a number of rows."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:,.0f} rows"),
        TimeElapsedColumn(),
        console=screen,
        expand=screen.width < 100,
    ) as progress:
        bar = progress.add_task(title, total=rows)
        yield lambda more: progress.advance(bar, more)
    screen.print()


@contextmanager
def release_bar(screen: Console, title: str, releases: int) -> "Generator[Observer]":
    """A progress bar that counts releases; gives the observer that moves it.

    While a stage prepares the next release, (what, 0), the bar runs to and fro and says what is prepared. Of a round
    over parts it says what share of them has been added up.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from privopt.engine.parts import shown_by

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[doing]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, expand=screen.width < 100) as progress:
        bar = progress.add_task(title, total=None, doing="preparing")
        task, made, doing = progress.tasks[0], 0, "preparing"

        def observe(name: str, count: int) -> None:
            nonlocal made, doing
            made += count
            task.total = releases if count else None  # without a total the bar runs to and fro
            doing = f"{made}/{releases} releases" if count else f"preparing: {name}"
            progress.update(bar, completed=made, doing=doing, refresh=count == 0)

        def tell(what: str, share: float) -> None:
            done = f", {share:.0%} of {what}" if share < 1 else ""
            progress.update(bar, doing=f"{doing}{done}")

        with shown_by(tell):
            yield observe
        task.total = made  # a run that adapts may end early
        progress.update(bar, completed=made, doing=f"{made}/{made} releases")


# ------------------------------------------------------------------------------------------------------------
# The commands' help pages and options: plain text on every terminal, and numbers that are what was written.


RENAMED_OPTIONS = {"--seed": "--random-state", "--level": "--quantile"}


def without_markup(page: str) -> str:
    """A help page without the backslashes that typer writes before brackets for another renderer."""
    return re.sub(r"\\(?=\[)", "", page)


class PlainCommand(TyperCommand):
    """A command whose help page is plain text."""

    def get_help(self, ctx: Any) -> str:
        """The help page."""
        return without_markup(super().get_help(ctx))


class AskingCommand(PlainCommand):
    """A command that names everything that is missing at once, by `require_given`: arguments may be left out for it."""

    _required: Sequence[Any] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed; an argument that is missing is None."""
        self._required = [parameter for parameter in self.params if parameter.required]
        with self._asking(required=False):
            return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """The help page, which says what is required; it is asked for while the arguments are read."""
        with self._asking(required=True):
            return super().get_help(ctx)

    @contextmanager
    def _asking(self, *, required: bool) -> Generator[None]:
        """Around a use of the parameters that are required, as such or as others."""
        try:
            for parameter in self._required:
                parameter.required = required
            yield
        finally:
            for parameter in self._required:
                parameter.required = not required


class PlainGroup(TyperGroup):
    """A group of commands whose help page is plain text."""

    def get_help(self, ctx: Any) -> str:
        """The help page."""
        return without_markup(super().get_help(ctx))


def clearer(message: str) -> str:
    """The sentence of the argument parser, with the new name of an option, or with what is wrong with a number."""
    number = re.search(r"Invalid value for '(--[a-z-]+)': '(\d{1,3}(?:[,_ ]\d{3})+)'", message)
    if number is not None:
        option, written = number.groups()
        return f"{option} {written!r} has thousands separators: write {re.sub('[,_ ]', '', written)}"
    found = re.match(r"No such option:? '?(--[a-z-]+)", message)
    new = None if found is None else RENAMED_OPTIONS.get(found.group(1))
    return message if new is None or found is None else f"{found.group(1)} is called {new}"


def typed_number(text: Any) -> float:
    """A number as it was typed; "inf" only where that is written.

    Raises:
        BadParameter: it is no number, or beyond all that a computer holds.
    """
    written = str(text).strip()
    try:
        number = float(written)
    except ValueError:
        hint = " Write a decimal point, and no thousands separators." if "," in written else ""
        raise typer.BadParameter(f"{written!r} is not a number.{hint}") from None
    if math.isinf(number) and written.lstrip("+-").lower() not in ("inf", "infinity"):
        raise typer.BadParameter(f"{written!r} is larger than any number that can be computed with.")
    if number == 0 and re.search(r"[1-9]", re.split("[eE]", written)[0]):
        raise typer.BadParameter(f"{written!r} is smaller than any number that can be computed with.")
    return number


# ------------------------------------------------------------------------------------------------------------
# Which errors are the user's, and the sentence about them. A sentence never carries a cell of the table.


MOST_EPSILON = 1e6
_NO_MEMORY_ON_DEVICE = "RESOURCE_EXHAUSTED:"  # how jax says it


class Mistake(PrivoptError, ValueError):
    """What was typed cannot be done; the message is one sentence that says what to do."""


def reason_of(error: OSError) -> str:
    """Why the system refused, in a few words."""
    return (error.strerror or "the system refused").lower()


def sentence_about(error: Exception) -> str | None:
    """The sentence for a user's mistake; None for an error of ours.

    Only a `PrivoptError` is shown: its sentence is ours and quotes arguments only. Whatever a library below says, or
    Python itself from a line of ours, may quote a cell.
    """
    if isinstance(error, PrivoptError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        place = f"{str(error.filename)!r} cannot be used" if error.filename else "the system refused"
        return f"{place}: {reason_of(error)}."
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


def check_epsilon(epsilon: float) -> float:
    """The epsilon, positive; infinite for no privacy.

    Raises:
        Mistake: it is not positive.
    """
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
        Mistake: it is no number, or not a probability above 0.
    """
    if delta == "auto":
        return 1.0 / float(n) ** 2, "1 / n^2, which declares that n is public"
    try:
        value = float(delta or "nan")
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise Mistake(
            f"--delta must be 'auto' or a number above 0 and below 1, got {delta!r}: choose it well below 1 / n."
        )
    return value, "given"
