"""`privopt audit-map`: the files and lines that a solver's guarantee rests on, found by watching a run of it.

A run on made-up records is priced, made and accounted for under a profiler; every function of the trusted core that was
entered counts with all its lines, and so do the fields of its class and the constants of its file. A profiler does not
see into compiled kernels: each one that is named by a function that ran counts, with all that it names. What a solver
computes from releases is post-processing and does not count: whoever audits the guarantee need not read it.
"""

import ast
import dataclasses
import functools
import io
import json
import sys
import threading
import tokenize
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import privopt
from privopt.curator.run import Run
from privopt.data.units import Units
from privopt.engine.protocol import EngineName
from privopt.later import jax
from privopt.ledger.amounts import Budget
from privopt.ledger.default_account import nothing_private
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.precision import in_float64
from privopt.problems import losses
from privopt.problems.black_box import BlackBox
from privopt.problems.constraints import L1Ball
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.solvers.base import Solver
from privopt.solvers.o2nc import O2NC
from privopt.solvers.registry import NAMES, SOLVERS, named
from privopt.solvers.warm_start import with_warm_start

CORE = ("data", "queries", "engine", "mechanisms", "ledger", "curator", "proofs")
RANK = {room: place for place, room in enumerate((*CORE, "problems"))}  # in the order in which data travel
# Of `problems`: read where a statement of `proofs` is about them.
FORMULAS = ("glm.py", "losses.py", "bounded_losses.py")
CALLS = "black_box.py"  # also of `problems/`: what keeps calls of a black box for one record apart from the others
SOURCE = Path(privopt.__file__).parent
RECORDS, WIDTH, RECORDS_OF_A_USER = 400, 3, 2
PROBLEMS = (
    Problem(losses.logistic, Ridge(0.05)),
    Problem(losses.logistic, constraint=L1Ball(2.0)),
    Problem(losses.quantile(0.5), growth=KL(gamma=1.0, kappa=2.0, gap=1.0)),
    Problem(losses.logistic, Ridge(0.05), growth=KL(gamma=2.0, kappa=2.0, gap=0.7)),
    Problem(GroupedLoss(losses.logistic, 2, (0.5, 0.5))),
    Problem(GroupedLoss(losses.logistic, 2, (0.5, 0.5)), constraint=L1Ball(2.0)),
)
BUDGET = Budget(2.0, 1e-6)


def _length(params: Any, features: Any, target: Any) -> float:
    """A loss that is known by its values."""
    del target
    return float(np.abs(params - features).sum())


BY_VALUES = Problem.of_values(
    BlackBox(_length, value_range=(0.0, 10.0), scale=1.0, warm_start=16), np.zeros(WIDTH)
)
# With so few records these would run gradient descent instead, or take long.
SMALL: Mapping[str, Mapping[str, Any]] = {
    "svrg": {"fall_back": False},
    "svrg-plus-plus": {"fall_back": False},
    "private-clip": {"inner": O2NC(steps=5)},
}
FOR_USERS = frozenset(
    {
        "user-whitening",
        "user-gradient-descent",
        "user-federated-averaging",
        "group-privacy",
        "phased-group-sgd",
        "phased-accelerated-erm",
    }
)


@dataclass(frozen=True)
class Reading:
    """What there is to read in one file.

    Attributes:
        file: its path below the package.
        functions: the functions that ran, methods with their class.
        lines: of code, theirs and those of their classes' fields and the file's constants; no comments, no docstrings.
    """

    file: str
    functions: tuple[str, ...]
    lines: int


@dataclass(frozen=True)
class AuditMap:
    """What a solver's guarantee rests on.

    Attributes:
        solver: its name.
        engine: which engine it ran on.
        readings: one for each file, by room in the order in which data travel.
    """

    solver: str
    engine: EngineName
    readings: tuple[Reading, ...]

    @property
    def lines(self) -> int:
        """Lines of code in all."""
        return sum(reading.lines for reading in self.readings)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return {"solver": self.solver, "engine": self.engine, "lines": self.lines} | {
            "files": [dataclasses.asdict(reading) for reading in self.readings]
        }


def audit_map(name: str, *, engine: EngineName) -> AuditMap:
    """Run a solver on made-up records and say what of the trusted core ran.

    Args:
        name: of the solver.
        engine: "fast" or "reference".
    Raises:
        ValueError: there is no such solver.
    """
    if name not in NAMES:
        raise ValueError(f"the solver must be one of {', '.join(NAMES)}, got {name!r}.")
    units = _units(by_user=name in FOR_USERS)
    solver = named(name).with_(**SMALL.get(name, {}))
    # The default for a black box also runs on one, behind a warm start.
    problems = [_posed(solver, units), *([BY_VALUES] if name == "private-clip" else [])]
    with in_float64(), nothing_private():
        jax.clear_caches()  # what is compiled already is not traced again
        with _watched() as seen:
            for problem in problems:
                _run(with_warm_start(solver, problem.loss), problem, units, engine)
    return AuditMap(name, engine, tuple(_readings(seen)))


def _posed(solver: Solver, units: Units) -> Problem:
    for problem in PROBLEMS:
        if solver.obstacle(problem, units.public) is None:
            return problem
    raise AssertionError(f"no problem for {solver.name}")


def _units(*, by_user: bool) -> Units:
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1.0, 1.0, (RECORDS, WIDTH)) / np.sqrt(WIDTH)
    groups = np.arange(RECORDS) // RECORDS_OF_A_USER if by_user else None
    return Units.from_arrays(
        rows, np.sign(rows[:, 0]).astype(int), classes=[-1, 1], row_bound=1.0, groups=groups
    )


def _run(solver: Solver, problem: Problem, units: Units, engine: EngineName) -> None:
    configured = solver.configure(Instance(problem, units.public, BUDGET))
    event = configured.event(units.public)
    run = Run(solver.name, event, BUDGET, units.public, noise=NoiseSource(), engine=engine)
    configured.solve(run.curator(units), problem)
    run.ledger.epsilon()


@contextmanager
def _watched() -> Generator[set[tuple[str, int]]]:
    """The (file, first line) of every function of the package that is entered, on any thread."""
    seen: set[tuple[str, int]] = set()
    prefix = f"{SOURCE}/"

    def note(frame: FrameType, event: str, argument: Any) -> None:
        del argument
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            seen.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]


def _readings(seen: set[tuple[str, int]]) -> Iterator[Reading]:
    by_file: dict[Path, set[int]] = {}
    for file, line in seen | _kernels_of(seen):
        by_file.setdefault(Path(file), set()).add(line)
    proved = any(path.parent.name == "proofs" for path in by_file)
    for path in sorted(by_file, key=lambda path: (RANK.get(path.parent.name, -1), path.name)):
        room = path.parent.name
        named = path.name == CALLS or (proved and path.name in FORMULAS)
        if room in CORE or (room == "problems" and named):
            reading = _reading(path, by_file[path])
            if reading.functions:
                yield reading


def _kernels_of(seen: set[tuple[str, int]]) -> set[tuple[str, int]]:
    """The compiled kernels that the functions that ran name, and those that these name."""
    functions = [
        (path, node)
        for room in ("engine", "mechanisms")
        for path in sorted((SOURCE / room).glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    kernels = {node.name: (path, node) for path, node in functions if _is_compiled(node)}
    pending = [
        node
        for path, node in functions
        if not _span(node).isdisjoint(line for file, line in seen if file == str(path))
    ]
    found: set[tuple[str, int]] = set()
    while pending:
        named = {name for part in ast.walk(pending.pop()) for name in _kernel_names(part)}
        for path, node in [kernels[name] for name in sorted(named & kernels.keys())]:
            if (str(path), node.lineno) not in found:
                found.add((str(path), node.lineno))
                pending.append(node)
    return found


def _kernel_names(part: ast.AST) -> list[str]:
    """What `name` and `kernels.name` may refer to; any other attribute is something else's."""
    if isinstance(part, ast.Name):
        return [part.id]
    if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "kernels":
        return [part.attr]
    return []


def _is_compiled(function: ast.FunctionDef) -> bool:
    """Whether it is decorated by `engine.kernels.compiled`, or by that of `mechanisms.exact_noise`."""
    return any("compiled" in ast.unparse(decorator) for decorator in function.decorator_list)


def _reading(path: Path, starts: set[int]) -> Reading:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    kept: set[int] = set()
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            if _entered(node, starts):
                names.append(node.name)
                kept |= _span(node)
        elif isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            ran = [method for method in methods if _entered(method, starts)]
            if ran:
                names += [f"{node.name}.{method.name}" for method in ran]
                kept |= _span(node).difference(*(_span(method) for method in methods if method not in ran))
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            kept |= _span(node)
    file = path.relative_to(SOURCE).as_posix()
    return Reading(file, tuple(names), len(kept & lines_of_code(source, tree)))


def _entered(function: ast.FunctionDef, starts: set[int]) -> bool:
    """Whether the function, or one inside it, ran; a decorated one starts at its first decorator."""
    return not starts.isdisjoint(_span(function))


def _span(node: ast.stmt) -> set[int]:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return set(range(first, (node.end_lineno or node.lineno) + 1))


def lines_of_code(source: str, tree: ast.Module) -> set[int]:
    """The numbers of the lines that hold code: no comments, empty lines or docstrings."""
    silent = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in silent:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            lines -= _span(node.body[0])
    return lines


SECONDS_OF_A_SOLVER = 12  # measured on two cores


def run(name: str | None, *, engine: EngineName, as_json: bool, as_markdown: bool) -> None:
    """Print the map of a solver, or of all of them, each as soon as it is there."""
    maps: list[AuditMap] = []
    for found in (audit_map(name, engine=engine),) if name is not None else _every_map(engine):
        maps.append(found)
        if not (as_json or as_markdown):
            sys.stdout.write(("\n" if len(maps) > 1 else "") + _text(found) + "\n")
            sys.stdout.flush()
    if as_json:
        sys.stdout.write(json.dumps([found.to_dict() for found in maps], indent=2) + "\n")
    elif as_markdown:
        sys.stdout.write(markdown(maps))


def _every_map(engine: EngineName) -> Iterator[AuditMap]:
    """The maps of all solvers, in their order; how far it is, and how long it may take, is told on stderr."""
    _tell(
        f"running {len(SOLVERS)} solvers, each in a process of its own, about {SECONDS_OF_A_SOLVER} seconds per "
        "solver; name one solver to have its map alone."
    )
    # A process each: what one run left in a cache, the next would not enter.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        found = pool.map(functools.partial(audit_map, engine=engine), SOLVERS)
        for place, (name, one) in enumerate(zip(SOLVERS, found, strict=True), 1):
            _tell(f"{place} of {len(SOLVERS)} solvers: {name}")
            yield one


def _tell(sentence: str) -> None:
    sys.stderr.write(f"privopt: {sentence}\n")
    sys.stderr.flush()


def _text(found: AuditMap) -> str:
    head = f"{found.solver} on the {found.engine} engine: {found.lines:,} lines of code in {len(found.readings)} files"
    width = max(len(reading.file) for reading in found.readings)
    return "\n".join(
        [head, *(f"  {reading.file:<{width}}  {reading.lines:>5,}" for reading in found.readings)]
    )


def markdown(maps: Sequence[AuditMap]) -> str:
    """One row a solver, and which of the core's files each of them needs."""
    files = sorted({reading.file for found in maps for reading in found.readings}, key=_in_order)
    lines = ["| solver | lines of code | files |", "| --- | --- | --- |"]
    lines += [f"| `{found.solver}` | {found.lines:,} | {len(found.readings)} |" for found in maps]
    lines += ["", "| file | lines of code, at most | read for |", "| --- | --- | --- |"]
    for file in files:
        needed = {
            found.solver: reading.lines
            for found in maps
            for reading in found.readings
            if reading.file == file
        }
        who = "every solver" if len(needed) == len(maps) else ", ".join(f"`{solver}`" for solver in needed)
        lines.append(f"| `{file}` | {max(needed.values())} | {who} |")
    return "\n".join(lines) + "\n"


def _in_order(file: str) -> tuple[int, str]:
    return RANK[file.split("/")[0]], file
