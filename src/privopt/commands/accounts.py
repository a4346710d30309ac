"""`privopt account`: open an account in a file, show what is left of it, export it."""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from privopt.atomic_files import replace_file
from privopt.commands import screen
from privopt.commands.screen import Mistake, public_arguments, require_given
from privopt.json_values import json_value
from privopt.ledger.account import Account
from privopt.ledger.account_file import AccountFile
from privopt.ledger.claims import CounterBeside, CounterFolder
from privopt.ledger.default_account import ACCOUNT, Line, Policy, Statement
from privopt.ledger.ledger import SEEDED
from privopt.printable import printable
from privopt.public import Relation
from privopt.report.words import at_most, number, several

MOST_LINES = 20  # payments shown
BAR, SHORT_BAR = 24, 10  # letters of a full bar
MEANING = {
    Relation.REPLACE_ONE: "replace-one: its data may be replaced by any other",
    Relation.ADD_OR_REMOVE_ONE: "add-or-remove-one: it may be there or not",
}
ADDED_UP = {
    "zcdp": "by zero-concentrated differential privacy (all fits but sampled ones)",
    "gaussian": "by Gaussian differential privacy (fits with Gaussian noise alone)",
    "basic": "by adding epsilons and deltas (every fit)",
}


def create(
    path: Path,
    data_set: str,
    epsilon: float,
    delta: float,
    relation: str,
    unit: Any,
    composition: Any,
    counter: Path | None,
) -> None:
    """Open an account and print it; `counter` is a folder that counts its payments too.

    Raises:
        Mistake, AccountError: it cannot be.
    """
    require_given(
        {
            "FILE": (path, "the file to make, such as budget.sqlite"),
            "--data-set": (data_set, "your name of the data"),
            "--epsilon": (epsilon, "the total epsilon of all fits together"),
            "--delta": (delta, "the total delta of all fits together, well below 1 / n"),
        }
    )
    with public_arguments():
        account = Account.create(
            path,
            epsilon,
            delta,
            data_set=data_set,
            relation=relation,
            unit=unit,
            composition=composition,
            counter=None if counter is None else CounterFolder(counter.resolve()),
        )
    assert account.file is not None
    terminal = screen.console()
    beside = CounterBeside.of(account.file.path).path.name
    rows = [
        *_terms(Statement.of(account.file)),
        ("file", f"{path}; {beside} counts its payments: move and back up both together"),
        ("next", f"privopt fit TABLE --account {path} ..., or {ACCOUNT}={path} for every run"),
    ]
    screen.show_rows(terminal, f"Opened the account of {data_set!r}", rows)


def show(path: Path | None, *, as_of: str | None, everything: bool) -> None:
    """Print what is left and every payment.

    Raises:
        Mistake, AccountError: there is no account, or it must not be spent from; what it holds is printed first.
    """
    file = _file(path)
    statement = Statement.of(file, as_of=as_of)
    terminal = screen.console()
    if statement.seeded:
        screen.warn(terminal, f"{SEEDED}: a fit that this account paid for used a seed.")
    of = "" if as_of is None else f" as of {as_of}"
    screen.show_rows(
        terminal,
        f"The account of {statement.terms.data_set!r}{of}",
        [*_terms(statement), *_left(terminal, statement)],
    )
    if statement.lines:
        _history(terminal, statement, everything=everything)
    trouble = file.trouble()
    if trouble is not None:
        raise Mistake(f"this account pays for nothing: {trouble}")


def export(path: Path | None, *, output: Path | None, as_of: str | None) -> None:
    """Write the account as JSON.

    Raises:
        Mistake, AccountError: there is no account, or the file cannot be written.
    """
    if output is not None and output.suffix.lower() != ".json":
        raise Mistake(f"--output {str(output)!r} must end in .json: an account is exported as JSON.")
    text = json.dumps(document(Statement.of(_file(path), as_of=as_of)), indent=2, allow_nan=False) + "\n"
    if output is None:
        sys.stdout.write(text)
        return
    try:
        replace_file(output, text.encode("utf-8"))
    except OSError as error:
        reason = screen.reason_of(error)
        raise Mistake(f"--output {str(output)!r} cannot be written to: {reason}.") from None


def document(statement: Statement) -> dict[str, Any]:
    """A statement as JSON values: all that is needed to price every payment again."""
    terms = statement.terms
    return json_value(
        {
            "format": "privopt-account",
            "format_version": 1,
            "account": terms.account,
            "data_set": terms.data_set,
            "budget": {"epsilon": terms.budget.epsilon, "delta": terms.budget.delta},
            "relation": terms.relation.value,
            "unit": statement.unit,
            "composition": terms.composition,
            "bad_event_delta": terms.bad_event_delta,
            "opened": terms.opened,
            "terms_hash": terms.hash,
            "used": statement.used,
            "epsilon_left": statement.left,
            "seeded": statement.seeded,
            "payments": [
                _entry(line, left) for line, left in zip(statement.lines, statement.lefts(), strict=True)
            ],
        }
    )


def _entry(line: Line, left: float) -> dict[str, Any]:
    payment = line.payment
    return {
        "number": payment.number,
        "time": payment.time,
        "name": payment.name,
        "event": payment.event.to_dict(),
        "epsilon": payment.epsilon,
        "delta": payment.delta,
        "amount": payment.cost.amount,
        "amount_delta": payment.cost.delta,
        "unit": payment.unit,
        "seeded": payment.seeded,
        "used": line.used,
        "epsilon_left": left,
        "hash": payment.hash,
    }


def _file(path: Path | None) -> AccountFile:
    """The account's file: the one that was named, or the project's."""
    path = Policy.here().account if path is None else path
    if path is None:
        raise Mistake(f"name the account's file, or a default in {ACCOUNT} or the project's file.")
    return AccountFile(path)


def _terms(statement: Statement) -> list[tuple[str, str]]:
    terms = statement.terms
    protected = "every fit protects as the first does" if statement.unit is None else f"one {statement.unit}"
    return [
        ("keeps", f"{terms.budget}, for all fits together"),
        ("protected", f"{protected}; {MEANING[terms.relation]}"),
        ("fits add up", ADDED_UP[terms.composition]),
        *(
            (("set aside", f"delta {number(terms.bad_event_delta, 3)} for bad events and rounding"),)
            if terms.bad_event_delta
            else ()
        ),
        *((("counted in", terms.counter_folder),) if terms.counter_folder else ()),
        ("opened", _short(terms.opened)),
    ]


def _left(terminal: Console, statement: Statement) -> list[tuple[str, str]]:
    delta = at_most(statement.left_delta)
    later = "; what was paid later is not shown" if statement.earlier else ""
    return [
        ("paid for", several(statement.fits, "fit") + later),
        ("budget", f"{_bar(terminal, 1 - statement.used, BAR)} {_percent(1 - statement.used)} is left"),
        ("left", f"one more fit may have up to epsilon {at_most(statement.left)} at delta {delta}"),
    ]


def _history(terminal: Console, statement: Statement, *, everything: bool) -> None:
    """The payments, latest last, each with what it left: the budget burning down."""
    lines = statement.lines if everything else statement.lines[-MOST_LINES:]
    lefts = statement.lefts() if everything else [line.left for line in lines]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="cyan", pad_edge=False)
    table.add_column("  no.", justify="right")
    table.add_column("when (UTC)", no_wrap=True)
    table.add_column("what", overflow="fold")
    table.add_column("epsilon", justify="right")
    table.add_column("left", justify="right")
    table.add_column("budget left", no_wrap=True)
    for line, left in zip(lines, lefts, strict=True):
        payment, share = line.payment, max(0.0, 1 - line.used)
        mark = " (seeded: not private)" if payment.seeded and not line.is_mark else ""
        table.add_row(
            str(payment.number),
            Text(printable(_short(payment.time))),
            Text(printable(payment.name) + mark),
            "" if line.is_mark else number(payment.epsilon, 3),
            at_most(left),
            f"{_bar(terminal, share, SHORT_BAR)} {_percent(share)}",
        )
    terminal.print("Payments, and what each left", style="bold")
    terminal.print(table)
    hidden = len(statement.lines) - len(lines)
    if hidden:
        terminal.print(f"  {several(hidden, 'earlier payment')} not shown: --all shows them.")
    terminal.print()


def _bar(terminal: Console, share: float, length: int) -> str:
    full, empty = ("#", ".") if terminal.options.ascii_only else ("█", "░")
    letters = round(length * max(0.0, min(1.0, share)))
    return full * letters + empty * (length - letters)


def _percent(share: float) -> str:
    return f"{100 * max(0.0, share):.1f} %"


def _short(time: str) -> str:
    return time[:16].replace("T", " ")
