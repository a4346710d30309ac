"""`privopt verify`: a second accountant's verdict on a report or a saved model, with a digest and an exit code."""

import json
from pathlib import Path

from privopt.commands import screen
from privopt.printable import printable
from privopt.replays.check import replayed
from privopt.verification.checks import Outcome
from privopt.verification.files import verify
from privopt.verification.verdict import NOT_LOOKED_AT, Finding, Verdict

_MARKS = {Outcome.HOLDS: "holds", Outcome.FAILS: "FAILS", Outcome.UNCHECKED: "not checked"}


def run(path: Path, *, as_json: bool) -> bool:
    """Print the verdict; gives whether every guarantee in the file was verified."""
    verdicts = verify(path, replayed)
    terminal = screen.console()
    if as_json:
        terminal.out(
            json.dumps([verdict.to_dict() for verdict in verdicts], indent=2)
        )  # ASCII: nothing steers a terminal
    else:
        for verdict in verdicts:
            terminal.out("\n".join(lines_of(verdict)))
        terminal.out(NOT_LOOKED_AT)
    return all(verdict.finding is Finding.VERIFIED for verdict in verdicts)


def lines_of(verdict: Verdict) -> list[str]:
    """A verdict as lines of a terminal."""
    return [
        printable(verdict.title),
        f"  claims       {verdict.claim}",
        *(
            f"  {check.subject:<12} {_MARKS[check.outcome]}: {printable(check.sentence)}"
            for check in verdict.checks
        ),
        f"  digest       sha256:{verdict.digest}",
        f"  {verdict.finding.value}",
        "",
    ]
