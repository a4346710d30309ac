"""How large the house is: what is not counted grows.

    python -m benchmarks.size [--quick]      # `make size`; --quick leaves out what must run something

Lines are those of every file below src/ of any suffix but pictures; code is the lines of its Python files less
docstrings, blank lines, comments and imports. A fit is `LogisticRegression` at its defaults on 2,000 x 5 numbers, in a
fresh process: the larger of its first and second call, by the files of the package that it enters and the programs
(solvers, solvers of games, synthesizers) that it creates. The audit map is that of gradient descent on the reference
engine.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from benchmarks.processes import ROOT, lines_of
from privopt.commands.audit_map import audit_map, lines_of_code

SOURCE = ROOT / "src"
PICTURES = {".png", ".svg", ".ico", ".jpg"}
ANY_SOLVER = re.compile(r"\bsolver: Any\b")
FIT = "fit"  # the argument with which this file is the fresh process


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each number."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    for what, number in counted(quick=parser.parse_args(arguments).quick):
        print(f"{number:>9,}  {what}", flush=True)


def counted(*, quick: bool = False) -> Iterator[tuple[str, int]]:
    """What is counted, and how much of it there is."""
    files = sorted(
        path
        for path in SOURCE.rglob("*")
        if path.is_file()
        and path.suffix not in PICTURES
        and not {"__pycache__"} & set(path.parts)
        and not any(part.endswith(".egg-info") for part in path.parts)
    )
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    programs = {path: text for path, text in texts.items() if path.suffix == ".py"}
    trees = [ast.parse(text) for text in programs.values()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    yield "lines in src", sum(len(text.splitlines()) for text in texts.values())
    yield "lines of code", sum(code_lines(text) for text in programs.values())
    yield "files", len(files)
    yield "classes", sum(isinstance(node, ast.ClassDef) for node in nodes)
    yield "functions", sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)
    yield "solver: Any", sum(len(ANY_SOLVER.findall(text)) for text in programs.values())
    if quick:
        return
    for line in lines_of(["-m", "benchmarks.size", FIT]):
        yield "files that a default fit runs through", line["files"]
        yield "solver objects built by a default fit", line["programs"]
    read = audit_map("gradient-descent", engine="reference").readings
    yield "files on the audit map of gradient descent", len(read)
    yield "tests that `make test` collects", collected()


def code_lines(text: str) -> int:
    """The lines that are neither blank nor only comment, docstring or import."""
    tree = ast.parse(text)
    found = lines_of_code(text, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(found)


def collected() -> int:
    """The tests of a run without marks."""
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    shown = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sum("::" in line for line in shown.splitlines())


def fit() -> dict[str, int]:
    """Of the larger of two default fits: the files that were entered and the programs that were created."""
    import numpy as np

    from privopt import LogisticRegression
    from privopt.games.base import GameSolver
    from privopt.solvers.base import Solver
    from privopt.synthesis.base import Synthesizer

    rows = np.random.default_rng(0).uniform(-1.0, 1.0, (2_000, 5))
    labels = (rows[:, 0] > 0).astype(int)
    largest = {"files": 0, "programs": 0}
    for _ in range(2):
        files: set[str] = set()
        programs: set[int] = set()
        kept: list[Any] = []  # so that no two programs have the same identity

        def note(frame: FrameType, event: str, argument: Any) -> None:
            del argument
            if event != "call" or _imports(frame):
                return
            files.add(frame.f_code.co_filename)  # noqa: B023
            this = frame.f_locals.get("self")
            if isinstance(this, Solver | GameSolver | Synthesizer) and id(this) not in programs:  # noqa: B023
                programs.add(id(this))  # noqa: B023
                kept.append(this)  # noqa: B023

        model = LogisticRegression(classes=[0, 1], bounds=(-1.0, 1.0), epsilon=1.0, delta=1e-6)
        sys.setprofile(note)
        try:
            model.fit(rows, labels)
        finally:
            sys.setprofile(None)
        ours = str(SOURCE)
        found = {"files": sum(name.startswith(ours) for name in files), "programs": len(programs)}
        largest = {key: max(largest[key], found[key]) for key in largest}
    return largest


def _imports(frame: FrameType | None) -> bool:
    """Whether a frame belongs to the import of a module, which a first fit may begin with."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    if sys.argv[1:] == [FIT]:
        print(json.dumps(fit()))
    else:
        main()
