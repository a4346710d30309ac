"""Where a command writes: looked at before anything is read; and another place where that fails in the end."""

import contextlib
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

from rich.console import Console

from privopt.commands import screen
from privopt.commands.screen import Mistake
from privopt.errors import PrivoptError
from privopt.tables.errors import TableError
from privopt.tables.io import check_written


def table_file(output: Path, *, overwrite: bool) -> Path:
    """The file of a table to be written, in a folder that can be written to.

    Raises:
        Mistake: its name says no format, it is there already, or it cannot be written.
    """
    try:
        check_written(output)
    except TableError as error:
        raise Mistake(f"--output {error}") from None
    if output.is_dir():
        raise Mistake(f"--output {str(output)!r} is a directory: give a file.")
    if output.exists() and not overwrite:
        raise Mistake(f"--output {str(output)!r} is there already: give another name, or --overwrite.")
    with _writing(output, output.parent):
        pass
    return output


@contextlib.contextmanager
def reserved(directory: Path) -> Generator[None]:
    """Write to a directory before anything is read; on failure nothing new is left."""
    new = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        with _writing(directory, directory):
            directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for each in new:
            with contextlib.suppress(OSError):  # not made, or in use by now
                each.rmdir()
        raise


@contextlib.contextmanager
def _writing(output: Path, folder: Path) -> Generator[None]:
    """Around what makes a folder, if anything does; then a file is written there, and removed."""
    try:
        yield
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".privopt-") as file:
            file.write(b"room for a result")
    except OSError as error:
        raise Mistake(f"--output {str(output)!r} cannot be written to: {screen.reason_of(error)}.") from None


def written(terminal: Console, what: str, place: Path, write: Callable[[Path], object]) -> Path:
    """Write what is paid for: where its place fails, another is better than none; the place.

    Args:
        terminal: is told of another place.
        what: is written.
        place: where to.
        write: does it.
    """
    try:
        write(place)
    except PrivoptError as error:
        place = Path(tempfile.mkdtemp(prefix=f"privopt-{what}-")) / place.name
        screen.warn(terminal, f"{error} The {what} is paid for, and is written to {place} instead.")
        write(place)
    return place
