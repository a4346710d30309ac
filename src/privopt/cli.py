"""The `privopt` command: arguments in, one sentence out when they are wrong."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from privopt.commands.mistakes import sentence_about

DEBUG = "PRIVOPT_DEBUG"
# The root of the errors of the command-line parser, wherever this version of typer keeps it.
_ParserError: type[Exception] = typer.BadParameter.__mro__[2]  # pyright: ignore[reportAssignmentType]


class Commands(TyperGroup):
    """The commands, with every error as one sentence on stderr: exit code 2 for a user's mistake, 1 for ours."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run a command and leave."""
        options["standalone_mode"] = False
        try:
            code = super().main(args, *rest, **options)
        except KeyboardInterrupt:
            code = _complain("stopped.", 130)
        except typer.Abort:
            code = _complain("stopped.", 130)
        except _ParserError as error:
            code = _complain(f"{error.format_message()} See `privopt --help`.", 2)  # pyright: ignore
        except Exception as error:
            code = _explain(error)
        sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Exception) -> int:
    """Say what went wrong; the traceback only for those who asked for it."""
    if os.environ.get(DEBUG) == "1":
        traceback.print_exc()
    sentence = sentence_about(error)
    if sentence is not None:
        return _complain(sentence, 2)
    return _complain(
        f"an internal error ({type(error).__name__}); nothing you typed explains it. Run again with {DEBUG}=1 to see "
        "where, and note that such a trace may quote private data.",
        1,
    )


def _complain(sentence: str, code: int) -> int:
    sys.stderr.write(f"privopt: {' '.join(sentence.split())}\n")
    return code
