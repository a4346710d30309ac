"""What the commands print: the plan, bars of releases, warnings. Public and released values only."""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from privopt.curator.base import Observer
from privopt.engine.progress import shown_by
from privopt.planning.plan import Plan, own_lines
from privopt.printable import printable
from privopt.report.words import duration, number, several, several_or, size

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


def price_row(plan: Plan, how_delta: str = "") -> str:
    """The guarantee of a plan in words."""
    if math.isinf(plan.budget.epsilon):
        return "epsilon is infinite: no privacy"
    remark = f" ({how_delta})" if how_delta else ""
    return f"epsilon {number(plan.epsilon)} at delta {number(plan.budget.delta, 3)}{remark}"


def spent(plan: Plan, made: int) -> str:
    """What a fit that was stopped has cost."""
    return (
        f"Stopped after {made:,} of {several(plan.releases, 'release')}. Fitting had begun: count its whole price as "
        f"spent on these data, {price_row(plan)}."
    )


def done(plan: Plan) -> str:
    """What a fit has cost whose result was lost afterwards."""
    return f"The fit was made: count its whole price as spent on these data, {price_row(plan)}."


def passes_row(plan: Plan) -> str:
    """Releases and passes."""
    most = "at most " if plan.adaptive else ""
    return f"{most}{several(plan.releases, 'release')}, {several_or(plan.passes, 'pass')} over the data"


def effort_row(plan: Plan) -> str:
    """Releases, passes, time and memory, of data in the memory of this process."""
    memory = f"about {size(plan.memory_bytes)} of memory"
    return f"{passes_row(plan)}; {duration(plan.seconds)} of computing and {memory}, compilation left out"


def excess_row(plan: Plan) -> str:
    """The predicted error in words."""
    if plan.predicted_excess is None:
        return plan.excess_sentence
    meaning = f" ({plan.prediction})" if plan.prediction else ""
    amount = plan.predicted_amount(partial(number, digits=2))
    return f"training objective {amount} above its non-private optimum{meaning}"


def promises(plan: Plan) -> list[tuple[str, str]]:
    """What is known of the result beforehand, as labelled lines."""
    return [
        ("predicted", excess_row(plan)),
        *own_lines(plan.indicators),
        ("bound", "no bound" if plan.bound is None else plan.bound.sentence),
        *(("indicator", sentence) for sentence in plan.indicator_sentences),
    ]


@contextmanager
def row_bar(screen: Console, title: str, rows: int) -> Generator[Callable[[int], None]]:
    """A progress bar over the rows of a table; gives what moves it by a number of rows."""
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
def release_bar(screen: Console, title: str, releases: int) -> Generator[Observer]:
    """A progress bar that counts releases; gives the observer that moves it.

    While a stage prepares the next release, (what, 0), the bar runs to and fro and says what is prepared. Of a round
    over parts it says what share of them has been added up.
    """
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
