"""`privopt verify`: a second accountant's verdict on a report or a saved model, with a digest and an exit code."""

import json
from collections.abc import Sequence
from pathlib import Path

from privopt.commands import screen
from privopt.printable import printable
from privopt.replays.check import within
from privopt.verification.checks import Outcome
from privopt.verification.files import verify
from privopt.verification.verdict import NOT_LOOKED_AT, Finding, Verdict

MOST_OF_TITLE = 100  # letters
_MARKS = {Outcome.HOLDS: "holds", Outcome.FAILS: "FAILS", Outcome.UNCHECKED: "not checked"}


def run(
    path: Path,
    *,
    as_json: bool,
    work: float,
    require_replay: bool = False,
    releases: Path | None = None,
    trusted_keys: Sequence[Path] = (),
) -> bool:
    """Print the verdict; gives whether every guarantee in the file is confirmed.

    Args:
        path: a report or a model directory.
        as_json: whether everything is printed as JSON.
        work: the processor seconds that a replay may take.
        require_replay: whether a guarantee that was priced alone does not count.
        releases: the file of the released values; default: the one beside the report.
        trusted_keys: files of public keys, one of which must have signed.
    """
    verdicts = verify(path, within(work), releases, trusted_keys)
    terminal = screen.console()
    if as_json:
        terminal.out(
            json.dumps([verdict.to_dict() for verdict in verdicts], indent=2)
        )  # ASCII: nothing steers a terminal
    else:
        for verdict in verdicts:
            terminal.out("\n".join(lines_of(verdict)))
        terminal.out(NOT_LOOKED_AT)
    enough = {Finding.VERIFIED} if require_replay else {Finding.VERIFIED, Finding.PRICED}
    return all(verdict.finding in enough for verdict in verdicts)


def lines_of(verdict: Verdict) -> list[str]:
    """A verdict as lines of a terminal."""
    return [
        f'"{printable(" ".join(printable(verdict.title).split()), MOST_OF_TITLE)}"',  # its own words, not ours
        f"  claims       {verdict.claim}",
        *(
            f"  {check.subject:<12} {_MARKS[check.outcome]}: {printable(check.sentence)}"
            for check in verdict.checks
        ),
        *(f"  declared     not checked: {printable(one)}" for one in verdict.declared),
        f"  digest       sha256:{verdict.digest}",
        f"  {verdict.finding.value}",
        "",
    ]
