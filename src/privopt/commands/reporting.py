"""`privopt report`: a model's privacy report, printed and written anew."""

from pathlib import Path

from privopt.commands import screen
from privopt.commands.limits import limited
from privopt.commands.screen import Mistake
from privopt.errors import PrivoptError
from privopt.report import stored
from privopt.report.report import PrivacyReport
from privopt.verification.signatures import SIGNATURE_FILE, check_key


def run(directory: Path, *, path_only: bool, work: float, sign_key: Path | None = None) -> None:
    """Write `report.html` and `report.json` from the model directory and print the report, or the page's path only.

    Args:
        directory: of the model.
        path_only: whether only the page's path is printed.
        work: the processor seconds that reading and drawing may take.
        sign_key: a private key that signs the model, its report and its releases.
    """
    if sign_key is not None:
        check_key(sign_key)
    with limited(work, f"the report of {str(directory)!r}"):
        report = stored.read(directory) or _put_together(directory)
        if sign_key is not None:
            (directory / SIGNATURE_FILE).unlink(missing_ok=True)
        try:
            page = stored.write(report, directory)
            text = str(report)
        except stored.UNREADABLE as error:  # of numbers that no run has
            if isinstance(error, PrivoptError):
                raise
            raise Mistake(
                f"the report of {str(directory)!r} holds numbers that cannot be drawn: it was altered, or written by "
                "another version of privopt."
            ) from None
    if sign_key is not None:
        stored.sign_folder(directory, sign_key)
    terminal = screen.console()
    if path_only:
        terminal.out(page.resolve())
        return
    terminal.out(text)
    terminal.print()
    terminal.out(f"The whole report: {page}")


def _put_together(directory: Path) -> PrivacyReport:
    """The report of the model that a directory holds, whose encoder names the features."""
    from privopt.estimators import saving  # late: a report that is stored needs no estimator

    return saving.report_of(saving.load(directory))
