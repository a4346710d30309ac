"""The reference has every public name, leads nowhere else, and can be searched in pages that are opened as files."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import privopt
import privopt.papers
from privopt.mechanisms.base import Mechanism, StreamMechanism
from privopt.queries.base import Query

ROOT = Path(__file__).resolve().parent.parent
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")}
NAMED = [name for page in PAGES.values() for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]


def found(name: str) -> Any:
    """What a dotted name means."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            thing = getattr(thing, part)
        return thing
    raise LookupError(name)


def test_every_public_name_is_on_a_page() -> None:
    missing = [name for name in privopt.__all__ if f"privopt.{name}" not in NAMED]
    assert missing == ["__version__", "papers", "solvers"]
    for room in (privopt.solvers, privopt.papers):
        assert not [name for name in room.__all__ if f"{room.__name__}.{name}" not in NAMED]
    assert "`privopt.__version__`" in PAGES["index.md"]


@pytest.mark.parametrize(
    ("folder", "kinds"), [("queries", (Query,)), ("mechanisms", (Mechanism, StreamMechanism))]
)
def test_every_query_and_mechanism_is_on_the_page_of_the_interface(
    folder: str, kinds: tuple[type, ...]
) -> None:
    files = (ROOT / "src" / "privopt" / folder).glob("[!_]*.py")
    modules = [found(f"privopt.{folder}.{path.stem}") for path in sorted(files)]
    defining = [
        module.__name__
        for module in modules
        if any(
            isinstance(thing, type) and issubclass(thing, kinds) and thing.__module__ == module.__name__
            for thing in vars(module).values()
        )
    ]
    assert len(defining) > 5
    assert not [name for name in defining if f"::: {name}\n" not in PAGES["interface.md"] + "\n"]


def test_a_name_stands_once_and_is_documented() -> None:
    assert len(NAMED) == len(set(NAMED))
    assert not [name for name in NAMED if not found(name).__doc__]


def test_the_search_of_the_site_asks_nobody_else() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.search(r"^  - offline$", settings, re.MULTILINE)
    (scripts,) = re.findall(r"^  polyfills: \[(.*)\]$", settings, re.MULTILINE)
    # A name with this in it keeps the theme from loading its own from elsewhere.
    assert "iframe-worker" in scripts
    assert (ROOT / "docs" / scripts).is_file()


@pytest.mark.audit
def test_the_site_builds_strictly_and_is_searched_without_a_server(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    made = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index")
    loaded = re.findall(
        r"<(?:script|link)[^>]+(?:src|href)=\"(https?:[^\"]*)", (tmp_path / "index.html").read_text()
    )
    assert loaded == []
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser to search with")
    page = f"file://{tmp_path}/index.html?q=whitening"
    alone = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom", page]
    shown = subprocess.run([browser, *alone], capture_output=True, text=True, check=False, timeout=120)
    assert re.search(r"\d+ matching documents", shown.stdout)
