"""`privopt report`: a model's privacy report, printed and written anew."""

from pathlib import Path

from privopt.commands import screen
from privopt.commands.model_directory import SavedModel


def run(directory: Path, *, path_only: bool) -> None:
    """Write `report.html` and `report.json` from the model directory and print the report, or the page's path only."""
    saved = SavedModel.read(directory)
    page = saved.write_report(directory)
    terminal = screen.console()
    if path_only:
        terminal.out(page.resolve())
        return
    terminal.out(str(saved.report))
    terminal.print()
    terminal.out(f"The whole report: {page}")
