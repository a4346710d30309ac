"""The forms of a report: templates, which hold all words, and how each form writes numbers.

The templates escape every value for HTML. Text for a terminal or for JSON is unescaped at the end, so that no value can
pass for a mark of theirs.
"""

import functools
import html
import re
import textwrap
from pathlib import Path
from typing import Any, Literal

from privopt.json_values import number_or_text
from privopt.printable import printable
from privopt.report import words

FOLDERS = (Path(__file__).parent, Path(__file__).parents[1] / "commands")
SENTENCES = "sentences.j2"
Form = Literal["page", "markdown", "terminal"]
_BLANKS = re.compile(r"[ \t\n]+")
_MARKS = re.compile(r"([\\`*_\[\]|~])|^([#>+-])")  # of Markdown


def render(form: Form, template: str, **values: Any) -> str:
    """A template as text."""
    return _environment(form).get_template(template).render(**values)


def sentence(form: Form, name: str, facts: Any) -> str:
    """What a macro of `sentences.j2` says, without marks."""
    return html.unescape(line(_said(form, SENTENCES, name, facts)))


def entries(form: Form, name: str, facts: Any, *, template: str = SENTENCES) -> list[tuple[str, ...]]:
    """The entries that a macro of a template writes, each of one part or several, without marks."""
    return [tuple(map(html.unescape, parts)) for parts in parts_of(_said(form, template, name, facts))]


def rows(template: str, name: str, facts: Any) -> list[tuple[str, str]]:
    """The labelled lines that a macro of a template writes for a terminal."""
    return [(label, text) for label, text in entries("terminal", name, facts, template=template)]


def parts_of(text: Any) -> list[tuple[str, ...]]:
    """What stands behind each `<dt>` of a text, and behind every `<dd>` in it, as texts of the same kind."""
    kind = type(text)
    return [
        tuple(kind(line(part)) for part in str(entry).split("<dd>")) for entry in str(text).split("<dt>")[1:]
    ]


def line(text: Any) -> str:
    """A text in one line."""
    return _BLANKS.sub(" ", str(text)).strip(" ")


def _said(form: Form, template: str, name: str, facts: Any) -> Any:
    return getattr(_environment(form).get_template(template).module, name)(facts)


@functools.cache
def _environment(form: Form) -> Any:
    import jinja2

    environment: Any = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDERS),
        autoescape=True,
        auto_reload=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_in_markdown if form == "markdown" else None,
    )
    number = words.number if form == "terminal" else words.pretty
    filters: dict[str, Any] = {
        "num": lambda value, digits=4: number(number_or_text(value), digits),
        "plain": words.number,
        "pct": words.percent,
        "span": lambda ends: words.span(*map(number_or_text, ends)),
        "quoted": repr,
        "capital": lambda text: text[:1].upper() + text[1:],
        "short": textwrap.shorten,
        "parts": parts_of,
        "line": lambda text: type(text)(line(text)),
        "shown": lambda text: text if hasattr(text, "__html__") else printable(text),
        "cut": lambda text, most: text[:most] + ("…" if len(text) > most else ""),
        **{name: getattr(words, name) for name in words.FILTERS},
    }
    environment.filters.update(filters)
    return environment


def _in_markdown(value: Any) -> Any:
    """A value in Markdown: its letters are no marks there."""
    import markupsafe

    if not isinstance(value, str) or isinstance(value, markupsafe.Markup):
        return value
    return markupsafe.escape(_MARKS.sub(r"\\\g<0>", _BLANKS.sub(" ", value)))
