"""The documentation tells the truth: its Python runs, its links lead somewhere, its pages are listed.

All ```python blocks of a file run in order, in one namespace, in an empty folder. A block that only
illustrates is preceded by the comment `<!-- skip -->` (or `<!-- skip: reason -->`) on the line above its fence. A
line `--8<-- "path"` or `--8<-- "path:section"` stands for that file, as on the site.
"""

import re
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[\w+-]*).*$")
SKIP = re.compile(r"^\s*<!-- skip(:.*)? -->\s*$")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
SNIPPET = re.compile(r'^--8<-- "(?P<path>[^":]+)(?::(?P<section>\w+))?"$', re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(?P<title>.*)$")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, the number of lines above its text, whether it runs."""

    language: str
    text: str
    line: int
    skipped: bool


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks_of(markdown: str) -> Iterator[Block]:
    lines = markdown.splitlines()
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if opening is None:
            number += 1
            continue
        above = next((line for line in reversed(lines[:number]) if line.strip()), "")
        indent, start = len(opening["indent"]), number + 1
        number = start
        while number < len(lines) and lines[number].strip() != opening["fence"]:
            number += 1
        assert number < len(lines), f"the block that opens on line {start} never closes"
        text = SNIPPET.sub(snippet, "\n".join(line[indent:] for line in lines[start:number]))
        yield Block(opening["language"], text, start, SKIP.match(above) is not None)
        number += 1


def snippet(line: re.Match[str]) -> str:
    """The file that a line of a page stands for, or the section of it between its markers."""
    text = (ROOT / line["path"]).read_text(encoding="utf-8")
    if line["section"] is None:
        return text
    start, end = (rf"^ *# --8<-- \[{edge}:{line['section']}\]\n" for edge in ("start", "end"))
    sections = re.findall(f"{start}(.*?){end}", text, re.MULTILINE | re.DOTALL)
    assert len(sections) == 1, f"{line['path']} has {len(sections)} sections named {line['section']!r}"
    return textwrap.dedent(sections[0])


def prose_of(markdown: str) -> str:
    """The text without fenced blocks and without inline code."""
    kept: list[str] = []
    inside = ""
    for line in markdown.splitlines():
        fence = FENCE.match(line)
        if inside:
            inside = "" if line.strip() == inside else inside
        elif fence:
            inside = fence["fence"]
        else:
            kept.append(re.sub(r"`[^`]*`", "", line))
    return "\n".join(kept)


def anchors_of(markdown: str) -> set[str]:
    titles = (HEADING.match(line) for line in markdown.splitlines())
    return {
        re.sub(r"[^\w\- ]", "", title["title"].lower()).strip().replace(" ", "-") for title in titles if title
    }


def test_the_reader_of_blocks_finds_languages_skips_and_lines() -> None:
    markdown = "a\n```python\nx = 1\n```\n<!-- skip: shell -->\n```bash\nls\n```\n    ```python\n    y = 2\n    ```\n"
    found = list(blocks_of(markdown))
    assert [block.language for block in found] == ["python", "bash", "python"]
    assert [block.skipped for block in found] == [False, True, False]
    assert [block.line for block in found] == [2, 6, 9]
    assert found[2].text == "y = 2"


def test_a_block_may_show_a_file_or_a_section_of_it() -> None:
    page = '```python\n--8<-- "examples/{}"\n```\n'
    whole, part = (
        next(blocks_of(page.format(name))).text for name in ("sampled_descent.py", "sampled_descent.py:step")
    )
    assert whole == (ROOT / "examples" / "sampled_descent.py").read_text(encoding="utf-8")
    assert part.startswith("@dataclass")
    assert part in whole
    with pytest.raises(AssertionError, match="has 0 sections named 'nothing'"):
        list(blocks_of(page.format("sampled_descent.py:nothing")))


@pytest.mark.later(
    "README.md",
    "docs/algorithms/accelerated-mirror-descent.md",
    "docs/algorithms/adaptive-gradient-descent.md",
    "docs/algorithms/anytime-mirror-descent.md",
    "docs/algorithms/bias-reduced-mirror-descent.md",
    "docs/algorithms/boosted-saddle.md",
    "docs/algorithms/dp-spider.md",
    "docs/algorithms/kl-spider.md",
    "docs/algorithms/newton.md",
    "docs/algorithms/noisy-extragradient.md",
    "docs/algorithms/o2nc.md",
    "docs/algorithms/phased-accelerated-erm.md",
    "docs/algorithms/phased-group-sgd.md",
    "docs/algorithms/posterior-descent.md",
    "docs/algorithms/private-means.md",
    "docs/algorithms/randomized-smoothing.md",
    "docs/algorithms/saddle-mirror-descent.md",
    "docs/algorithms/user-federated-averaging.md",
    "docs/algorithms/whitening.md",
    "docs/algorithms/worst-group-two-stage.md",
    "docs/attacks.md",
    "docs/black-box.md",
    "docs/certificates.md",
    "docs/federated.md",
    "docs/games.md",
    "docs/how-to-choose.md",
    "docs/index.md",
    "docs/own-loss.md",
    "docs/penalties-and-scales.md",
    "docs/scale-tables.md",
    "docs/worst-groups.md",
)
@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_the_python_of_a_page_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [
        block
        for block in blocks_of(document.read_text(encoding="utf-8"))
        if block.language == "python" and not block.skipped
    ]
    if not blocks:
        return
    # A real module, so that dataclasses and pickles made in a block find the names of the page.
    page = types.ModuleType("documentation_page")
    monkeypatch.setitem(sys.modules, page.__name__, page)
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        # The empty lines make a traceback name the line of the page.
        program = compile("\n" * block.line + block.text, str(document), "exec")
        exec(program, page.__dict__)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(document: Path) -> None:
    dead: list[str] = []
    for link in LINK.finditer(prose_of(document.read_text(encoding="utf-8"))):
        target, _, anchor = link["target"].partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        page = (document.parent / target).resolve() if target else document
        if not page.exists() or (anchor and anchor not in anchors_of(page.read_text(encoding="utf-8"))):
            dead.append(link["target"])
    assert not dead


def test_every_page_stands_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert not [
        page for page in pages if not re.search(rf"[ :]{re.escape(page)}\s*$", navigation, re.MULTILINE)
    ]


def test_every_algorithm_page_keeps_to_the_outline() -> None:
    outline = [
        "Problem",
        "Guarantee",
        "Algorithm",
        "Where we differ from the paper",
        "When to use it",
        "When not",
    ]
    missing = [
        f"{path.name}: {title}"
        for path in sorted((ROOT / "docs" / "algorithms").glob("*.md"))
        for title in outline
        if f"\n## {title}\n" not in path.read_text(encoding="utf-8")
    ]
    assert not missing
