"""The record of evidence: what a run of `make audit` tried, how often, the largest ratio found, and what it left out.

A test adds a line by the fixture `evidence`; lines travel with the reports of tests, so that workers need no common
file. `pytest --evidence FOLDER` writes `evidence.json` and the page made from it, `evidence.md`. The page alone is made
anew by `python -m tests.support.evidence`.
"""

import json
import platform
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.support.evidence_page import page

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "docs"
PROPERTY = "evidence"  # under which a line travels with the report of its test
MARKED = re.compile(r"pytest\.mark\.(audit|later|at_once|evidence)|\b(in_turn|but_later)\(|_IN_TURN\b")
PACKAGES = ("privopt", "numpy", "jax", "scipy", "numba", "dp-accounting", "hypothesis")
FEATURES = ("sse4_2", "avx", "avx2", "fma", "avx512f", "aes", "asimd", "sve")


def lines_into(request: pytest.FixtureRequest) -> Callable[..., None]:
    """What a test calls to add a line to the record, once for each thing that it tried."""

    def record(
        area: str,
        what: str,
        *,
        tried: int,
        of: str,
        largest: float | None = None,
        bound: float | None = None,
        again: str = "",
        note: str = "",
    ) -> None:
        """Add a line.

        Args:
            area: the heading that it stands under, one of `evidence_page.AREAS`.
            what: what was tried.
            tried: how often.
            of: what is counted: neighbours, runs, kills, mutants.
            largest: the largest number found, such as a ratio or a lower bound on epsilon.
            bound: what it must not exceed.
            again: the call that shows the largest again.
            note: what a reader of the count has to know; it stands below the table.
        """
        line = {"area": area, "what": what, "tried": int(tried), "of": of, "again": again}
        line |= {"note": note} if note else {}
        line["largest"] = None if largest is None else float(largest)
        line["bound"] = None if bound is None else float(bound)
        request.node.user_properties.append((PROPERTY, line))

    return record


@dataclass(eq=False)  # a plugin is looked up by its hash
class Record:
    """Collects reports, and writes the record when all tests are done; a plugin of the process that asks for them."""

    folder: Path
    arguments: list[str]
    began: float = field(default_factory=time.time)
    commit: str = field(default_factory=lambda: commit())
    lines: list[dict[str, Any]] = field(default_factory=list)
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    skipped: list[dict[str, str]] = field(default_factory=list)
    marked: dict[str, int] = field(default_factory=dict)
    workers: int = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the outcome; keep the lines of a test that passed."""
        file = report.nodeid.split("::")[0]
        counts = self.outcomes.setdefault(file, Counter())
        if report.when == "call" or report.outcome != "passed":
            counts[report.outcome] += 1
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            self.skipped.append({"test": report.nodeid, "why": report.longrepr[2].removeprefix("Skipped: ")})
        if report.when == "call" and report.outcome == "passed":
            self.lines += [line for name, line in report.user_properties if name == PROPERTY]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Without workers: what might be run of what was collected."""
        self.marked.update(marked(items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: object) -> None:
        """With workers: one more of them, also where Ctrl-C ends the run before it does."""
        del node
        self.workers += 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """With workers: what each of them collected, which is the same."""
        del error
        self.marked.update(getattr(node, "workeroutput", {}).get("marked", {}))

    def pytest_sessionfinish(self) -> None:
        """Write both files; a run without a test leaves those of the last one."""
        if not self.outcomes:
            return
        found = self.contents()
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        (self.folder / "evidence.json").write_text(text, encoding="utf-8")
        (self.folder / "evidence.md").write_text(page(found), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The lines, as they stand in the record."""
        terminalreporter.section("evidence")
        for line in self.ordered():
            largest = "" if line["largest"] is None else f", largest {line['largest']:.9g}"
            bound = "" if line["bound"] is None else f" of at most {line['bound']:.9g}"
            terminalreporter.line(
                f"{line['area']}: {line['what']}: {line['tried']:,} {line['of']}{largest}{bound}"
            )

    def ordered(self) -> list[dict[str, Any]]:
        """The lines by area and name."""
        return sorted(self.lines, key=lambda line: (line["area"], line["what"]))

    def contents(self) -> dict[str, Any]:
        """The whole record."""
        tests = [
            {"file": file, **{outcome: counts[outcome] for outcome in ("passed", "failed", "skipped")}}
            for file, counts in sorted(self.outcomes.items())
        ]
        ran = {test["file"]: test["passed"] + test["failed"] + test["skipped"] for test in tests}
        left_out = [
            {"file": file, "tests": count - ran.get(file, 0)}
            for file, count in sorted(self.marked.items())
            if count > ran.get(file, 0)
        ]
        left_out += [
            {"file": file, "tests": None} for file in with_marks() if file not in {**self.marked, **ran}
        ]
        return {
            "run": {**self.run(), **machine()},
            "tests": tests,
            "skipped": sorted(self.skipped, key=lambda one: one["test"]),
            "left_out": left_out,
            "lines": self.ordered(),
        }

    def run(self) -> dict[str, Any]:
        """When, of what and how long."""
        return {
            "date": datetime.fromtimestamp(self.began, UTC).strftime("%Y-%m-%d"),
            "commit": self.commit,
            "minutes": round((time.time() - self.began) / 60.0, 1),
            "workers": max(1, self.workers),
            "narrowed": " ".join(self.arguments),
        }


def attach(config: pytest.Config) -> None:
    """Have the process that collects all reports keep the record, where one is asked for.

    Raises:
        UsageError: the tests that were chosen are not those of the audit.
    """
    folder = config.getoption("--evidence")
    if not folder or hasattr(config, "workerinput"):
        return
    if "audit" not in config.getoption("-m").replace("not audit", ""):
        raise pytest.UsageError("--evidence records an audit: give it with -m audit, as `make audit` does.")
    config.pluginmanager.register(Record(Path(folder), narrowing(config.invocation_params.args)))


def marked(items: list[pytest.Item]) -> dict[str, int]:
    """How many of the tests of each file the audit would run."""
    chosen = [
        item for item in items if item.get_closest_marker("audit") or item.get_closest_marker("evidence")
    ]
    return dict(Counter(item.nodeid.split("::")[0] for item in chosen))


def with_marks() -> list[str]:
    """The files with tests of the audit, from their texts."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [
        file.relative_to(ROOT).as_posix() for file in files if MARKED.search(file.read_text(encoding="utf-8"))
    ]


def commit() -> str:
    """The commit that was run, and whether files differed from it; empty outside of a checkout."""
    asked = ["git", "-C", str(ROOT)]
    try:
        name = subprocess.run(
            [*asked, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            [*asked, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return name.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def machine() -> dict[str, Any]:
    """What computed: versions, and what the processor has of that which changes the rounding of sums."""
    flags: set[str] = set()
    about = Path("/proc/cpuinfo")
    if about.exists():
        found = re.search(
            r"^(?:flags|Features)\s*:(.*)$", about.read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        flags = set(found.group(1).split()) if found else set()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": [name for name in FEATURES if name in flags],
        "versions": {name: version(name) for name in PACKAGES},
    }


def narrowing(arguments: tuple[str, ...]) -> list[str]:
    """The arguments that say which tests: files, and what follows `-k` or `--neighbours`."""
    kept: list[str] = []
    for before, argument in zip(("", *arguments), arguments, strict=False):
        chooses = argument.startswith(("tests/", "src/", "-k", "--neighbours"))
        if chooses or before in ("-k", "--neighbours"):
            kept.append(argument)
    return kept


if __name__ == "__main__":
    record_file = FOLDER / "evidence.json"
    (FOLDER / "evidence.md").write_text(
        page(json.loads(record_file.read_text(encoding="utf-8"))), encoding="utf-8"
    )
