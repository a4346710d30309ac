"""Makes golden runs in child processes, keeps their lines in files, and compares."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.golden import environment
from tests.golden.comparing import Line, differences

KEPT = Path(__file__).parent / "lines"
VERSIONS = KEPT / "made_with.json"
PARTS = ("solvers", "games", "synthesizers", "fits", "model_plans", "solver_plans", "commands")
# What a child process makes: parts, and of a part that is shared every so manieth run from one on. Longest first.
Parts = tuple[tuple[str, int, int], ...]
SHARES: Mapping[str, Parts] = {
    "solvers, one half": (("solvers", 0, 2),),
    "solvers, the other half": (("solvers", 1, 2),),
    "fits": (("fits", 0, 1),),
    "plans, one half": (("model_plans", 0, 2), ("solver_plans", 0, 2)),
    "plans, the other half": (("model_plans", 1, 2), ("solver_plans", 1, 2)),
    "games and synthesizers": (("games", 0, 1), ("synthesizers", 0, 1)),
    "commands": (("commands", 0, 1),),
}
# What the tests make by default: in steps of an odd number, relations and layouts take turns.
EVERY_SEVENTH: Parts = tuple((part, 0, 7) for part in PARTS)
AT_A_TIME = 2

Lines = dict[
    str, dict[str, Line]
]  # by part, then by the name of the run; of a problem with many plans, by both


class Made(NamedTuple):
    """What child processes made.

    Attributes:
        lines: of the runs that were made.
        runs: their names, by part.
        others: the names of the other runs of the same parts.
    """

    lines: Lines
    runs: dict[str, list[str]]
    others: dict[str, list[str]]


def make(parts: Parts, names: Sequence[str] = (), *, whole: bool = False, **changes: str) -> Made:
    """Run parts in a child process.

    Args:
        parts: a value of `SHARES`.
        names: parts, or beginnings of the names of runs; none for all.
        whole: whether long texts stay as they are.
        changes: of the environment.
    Raises:
        RuntimeError: a run failed; it shows why.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = {"parts": parts, "names": list(names), "whole": whole, "file": f"{folder}/lines.json"}
        child = subprocess.run(
            [sys.executable, "-m", "tests.golden.child", json.dumps(asked)],
            env=environment.pinned() | changes,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if child.returncode != 0:
            raise RuntimeError(f"golden runs failed:\n{child.stdout[-6000:]}")
        return Made(*json.loads(Path(asked["file"]).read_text(encoding="utf-8")))


def make_all(names: Sequence[str] = (), *, whole: bool = False) -> Made:
    """Run every share, two at a time; a few runs in one process."""
    if names:
        return make(tuple((part, 0, 1) for part in PARTS), names, whole=whole)
    lines: Lines = {}
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for made in pool.map(make, SHARES.values()):
            for part, some in made.lines.items():
                lines.setdefault(part, {}).update(some)
    return Made(lines, {}, {})


def kept(part: str) -> dict[str, Line]:
    """The lines of a part that are kept."""
    path = KEPT / f"{part}.jsonl"
    lines = (
        [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    )
    return {line.pop("run"): line for line in lines}


def keep(part: str, lines: Mapping[str, Line]) -> None:
    """Keep the lines of a part, in the order of their names."""
    texts = [json.dumps({"run": name, **lines[name]}, ensure_ascii=False) for name in sorted(lines)]
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{part}.jsonl").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def is_of(name: str, runs: Iterable[str]) -> bool:
    """Whether a line is one of these runs, or one of the several plans of one."""
    return any(name == run or name.startswith(f"{run}: ") for run in runs)


def versions_that_differ() -> list[str]:
    """Libraries that compute whose versions are others than those that the lines were made with."""
    before = json.loads(VERSIONS.read_text(encoding="utf-8")) if VERSIONS.exists() else {}
    here = environment.made_with()
    return [
        f"{name} {before.get(name)}, here {here[name]}" for name in here if before.get(name) != here[name]
    ]


class Verdict(NamedTuple):
    """What differs, and why values may differ in their last bits here, None where they may not."""

    found: list[str]
    reason: str | None


def compared(made: Mapping[str, Mapping[str, Line]], old: Mapping[str, Mapping[str, Line]]) -> Verdict:
    """Compare lines with those that are kept.

    Where the processor cannot give the last bit, or where other versions of libraries compute, values that differ are
    no failure: then the words and the prices count alone.
    """

    def found(exact: bool) -> list[str]:
        return [
            f"{part}, {text}" for part in made for text in differences(old[part], made[part], exact=exact)
        ]

    others, reason = versions_that_differ(), environment.obstacle()
    strict = found(True)
    if reason is None and others:
        reason = f"the lines were made with {'; '.join(others)}"
    return Verdict(strict if reason is None or not strict else found(False), reason if strict else None)
