"""The two forms a report is written in: a page for people, JSON for programs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

FORMAT = "privopt-report"
FORMAT_VERSION = 2
READ_VERSIONS = (1, 2)
MOST = {
    "pictures": 24,
    "releases": 10_000,
    "findings": 500,
    "summary": 100,
    "declared": 1000,
}  # of each, in a report
MOST_POINTS = 1000  # of a line in a picture


def form_of(path: Path) -> Literal["html", "json"]:
    """The form that a file name asks for.

    Raises:
        ValueError: the suffix is neither .html nor .json.
    """
    suffix = path.suffix.lower()
    if suffix in (".html", ".htm"):
        return "html"
    if suffix == ".json":
        return "json"
    raise ValueError(
        f"a report is written as .html or .json, got the file name {path.name!r}: end it in one of the two."
    )


def json_text(document: Mapping[str, Any]) -> str:
    """A document of JSON values as text."""
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)


def require_format(document: Mapping[str, Any]) -> None:
    """Refuse what is not the document of one report.

    Raises:
        ValueError: the document is something else, or of a newer format.
    """
    if document.get("format") != FORMAT or document.get("format_version") not in READ_VERSIONS:
        found = f"{document.get('format')!r}, version {document.get('format_version')!r}"
        raise ValueError(f"expected a {FORMAT} document of version 1 to {FORMAT_VERSION}, got {found}.")
    for name, most in MOST.items():
        if len(document.get(name) or ()) > most:
            raise ValueError(f"a report has at most {most:,} {name}.")
    for picture in document.get("pictures") or ():
        lengths = [len(line[part]) for line in picture["series"] for part in ("xs", "ys", "errors")]
        if max(*lengths, len(picture["categories"]), 0) > MOST_POINTS:
            raise ValueError(f"a picture has at most {MOST_POINTS:,} points.")
    if any(len(group["schedule"]) > MOST_POINTS for group in document["releases"]):
        raise ValueError(f"a schedule has at most {MOST_POINTS:,} points.")
