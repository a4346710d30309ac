"""The commands' help pages and options: plain text on every terminal, and numbers that are what was written."""

import math
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

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
