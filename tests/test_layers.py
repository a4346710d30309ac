"""The house of the design, read from the sources: who may import whom, and where private names may stand."""

import ast
import functools
import graphlib
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "privopt"
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST_FILE = 600

FRONT_ENDS = {
    "attacks",
    "certify",
    "cli",
    "commands",
    "demo",
    "estimators",
    "flower",
    "solve_games",
    "plans",
    "replays",
    "report",
    "solve",
    "solve_arguments",
    "solve_runs",
    "tables",
    "testing",
    "verification",
}
PRIVATE_STAGES = {"curator", "data", "engine"}
# Rooms of programs over a curator.
PROGRAMS = {"solvers", "games", "synthesis", "papers"}
# A stage, and the parts of the package that it must know nothing of.
FORBIDDEN_IMPORTS = {
    "problems": PRIVATE_STAGES
    | FRONT_ENDS
    | {"ledger", "mechanisms", "planning", "queries", "result", "zoo"}
    | PROGRAMS,
    "queries": PRIVATE_STAGES | FRONT_ENDS | {"planning", "result", "zoo"} | PROGRAMS,
    "engine": FRONT_ENDS | {"curator", "mechanisms", "planning", "result", "zoo"} | PROGRAMS,
    "mechanisms": PRIVATE_STAGES | FRONT_ENDS | {"planning", "queries", "result", "zoo"} | PROGRAMS,
    "ledger": PRIVATE_STAGES
    | FRONT_ENDS
    | {"mechanisms", "planning", "problems", "queries", "result", "zoo"}
    | PROGRAMS,
    "data": FRONT_ENDS | {"curator", "engine", "planning", "queries", "result", "zoo"} | PROGRAMS,
    "curator": FRONT_ENDS | {"planning", "result", "zoo"} | PROGRAMS,
    "zoo": PRIVATE_STAGES | FRONT_ENDS | {"ledger", "mechanisms", "planning", "queries", "result", "solvers"},
    "planning": PRIVATE_STAGES | FRONT_ENDS | {"queries", "result", "zoo"} | PROGRAMS,
    "solvers": FRONT_ENDS | {"data", "engine", "games", "synthesis", "zoo"},
    "games": FRONT_ENDS | {"data", "engine", "synthesis", "zoo"},
    "synthesis": FRONT_ENDS | {"data", "engine", "games", "zoo"},
    "papers": FRONT_ENDS | {"data", "engine", "zoo"},
    "result": {"data", "engine"} | {"zoo"} | PROGRAMS,
    "report": {"data", "engine"} | {"result", "zoo"} | PROGRAMS,
}
# Of the curator's files a solver sees the curator itself, and loops for the type of a step.
OUT_OF_A_SOLVERS_SIGHT = {"local", "replay", "audit", "dry_run"}
OF_MANY_FILES = ("engine/on_ray/", "engine/streamed/")  # engines with a folder of their own
NAMELESS = {"common", "helpers", "misc", "util", "utils"}


def stage_of(path: Path) -> str:
    """The first part of a module's name below `privopt`."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@functools.cache
def imports_of(tree: ast.AST) -> tuple[str, ...]:
    """Every module that a source imports when it runs, and `module.name` for each imported name; deferred ones too."""
    found: list[str] = []
    for node in running(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in ("deferred", "later.deferred"):
            names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            found += [str(names[0]), ".".join(map(str, names))]
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(found)


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements of a source but for what is for types alone."""
    left = [tree]
    while left:
        for node in ast.iter_child_nodes(left.pop()):
            if not isinstance(node, ast.expr) and not (
                isinstance(node, ast.If) and dotted(node.test) == "TYPE_CHECKING"
            ):
                yield node
                left.append(node)


def names_in(tree: ast.AST) -> Iterator[str]:
    """Every name that a source binds, reads or passes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg) or (isinstance(node, ast.keyword) and node.arg):
            yield str(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def dotted(node: ast.AST) -> str:
    """`jax.config.update` as text; an empty string for anything but names and attributes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@pytest.fixture(scope="module", autouse=True)
def parsed() -> None:
    """All sources are parsed before any test looks at them."""
    for path in FILES:
        parse(path)


def test_there_are_sources_to_read() -> None:
    assert {"errors.py", "public.py"} <= {name_of(path) for path in FILES}


@pytest.mark.at_once("games", "report", "result", "zoo")
@pytest.mark.parametrize("stage", FORBIDDEN_IMPORTS)
def test_a_stage_imports_only_what_it_may_know(stage: str) -> None:
    forbidden = {f"privopt.{name}" for name in FORBIDDEN_IMPORTS[stage]}
    offences = [
        f"{name_of(path)} imports {module}"
        for path in FILES
        if stage_of(path) == stage
        for module in imports_of(parse(path))
        if ".".join(module.split(".")[:2]) in forbidden
    ]
    assert not offences


def test_no_file_imports_itself_in_a_circle() -> None:
    """Not late either. For types alone it may: nothing runs in a circle then."""
    modules = {module_of(path): parse(path) for path in FILES}
    graph = {name: set(imports_of(tree)) & set(modules) - {name} for name, tree in modules.items()}
    del graph["privopt"]  # it lists what users type, and loads a name when it is asked for
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_solver_sees_no_curator_that_holds_data() -> None:
    hidden = {f"privopt.curator.{name}" for name in OUT_OF_A_SOLVERS_SIGHT}
    offences = [
        f"{name_of(path)} imports {module}"
        for path in FILES
        if stage_of(path) in PROGRAMS
        for module in imports_of(parse(path))
        if module in hidden
    ]
    assert not offences


def test_solvers_name_nothing_private_and_evaluate_nothing() -> None:
    offences = [
        f"{name_of(path)} names {name}"
        for path in FILES
        if stage_of(path) in PROGRAMS
        for name in names_in(parse(path))
        if name.startswith("private_") or name == "evaluate"
    ]
    assert not offences
    # Nor does a module or a docstring: whoever searches the text for it finds nothing to look at.
    assert not [
        name_of(path) for path in FILES if stage_of(path) in PROGRAMS and "private_" in path.read_text()
    ]


def test_only_the_accounting_adapter_talks_to_dp_accounting() -> None:
    importers = {
        name_of(path)
        for path in FILES
        for module in imports_of(parse(path))
        if module.split(".")[0] == "dp_accounting"
    }
    assert importers <= {"ledger/accounting.py"}


def test_the_second_accountant_shares_nothing_with_the_ledger() -> None:
    """A mistake in a room of the package cannot vouch for itself."""
    offences = [
        f"{name_of(path)} imports {module}"
        for path in FILES
        if stage_of(path) == "verification"
        for module in imports_of(parse(path))
        if module.startswith("privopt.") and module.split(".")[1] not in {"verification", "untrusted"}
    ]
    assert not offences


def test_a_curator_knows_of_engines_what_the_protocol_says_and_one_place_makes_them() -> None:
    known = {"choose", "compiled_loops", "drawn_rows", "protocol", "rounding"}
    makers = {
        "engine",
        "flower",
        "testing",
    }  # a respondent computes for itself; a contract needs its reference
    offences = [
        f"{name_of(path)} imports {module}"
        for path in FILES
        if stage_of(path) not in makers
        for module in imports_of(parse(path))
        if module.startswith("privopt.engine.")
        and (
            module.split(".")[2] in {"in_process", "reference", "receiving"}
            or (stage_of(path) == "curator" and module.split(".")[2] not in known)
        )
    ]
    assert not offences


def test_ledgers_are_opened_by_the_ledger_and_by_one_run() -> None:
    openers = {
        name_of(path)
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and dotted(node.func) == "Ledger"
    }
    assert {name for name in openers if not name.startswith("ledger/")} == {"curator/run.py"}


def test_every_query_lives_with_the_queries() -> None:
    homes = {
        stage_of(path)
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
        and "query"
        in [dotted(mark.func if isinstance(mark, ast.Call) else mark) for mark in node.decorator_list]
    }
    assert homes == {"queries"}


def test_noise_never_comes_from_a_jax_key() -> None:
    offences = [
        f"{name_of(path)} uses jax.random"
        for path in FILES
        if stage_of(path) in PRIVATE_STAGES | {"mechanisms", "queries"} and name_of(path) != "queries/lots.py"
        for name in [*imports_of(parse(path)), *(dotted(node) for node in ast.walk(parse(path)))]
        if name.startswith("jax.random")
    ]
    assert not offences


def test_no_source_changes_global_jax_settings() -> None:
    offences: list[str] = []
    for path in FILES:
        for node in ast.walk(parse(path)):
            changed: list[ast.expr] = []
            if isinstance(node, ast.Call):
                changed = [node.func]
            elif isinstance(node, ast.Assign):
                changed = node.targets
            text = [dotted(target) for target in changed]
            assigned = isinstance(node, ast.Assign) and any(name.startswith("jax.config.") for name in text)
            if assigned or any(name.endswith("config.update") for name in text):
                offences.append(f"{name_of(path)}:{node.lineno} changes {text}")
    assert not offences


def test_every_file_is_short_and_says_what_it_is() -> None:
    too_long = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not {name: lines for name, lines in too_long.items() if lines > LONGEST_FILE}
    silent = [name_of(path) for path in FILES if path.stat().st_size and not ast.get_docstring(parse(path))]
    assert not silent


def test_every_folder_is_a_package() -> None:
    folders = {path.parent for path in FILES}
    assert not [name_of(folder) for folder in folders if not (folder / "__init__.py").exists()]


def test_files_are_named_for_what_they_do_and_lie_at_most_two_levels_deep() -> None:
    assert not [name_of(path) for path in FILES if path.stem in NAMELESS]
    deeper = [name_of(path) for path in FILES if len(path.relative_to(SOURCE).parts) > 2]
    assert not [name for name in deeper if not name.startswith(OF_MANY_FILES)]


def test_everything_that_users_type_resolves() -> None:
    privopt = importlib.import_module("privopt")
    assert len(privopt.__all__) == len(set(privopt.__all__))
    assert not [name for name in privopt.__all__ if not hasattr(privopt, name)]


def test_importing_the_package_changes_no_jax_setting_and_loads_nothing_that_a_fit_does_not_need() -> None:
    program = """
import sys, jax
before = dict(jax.config.values)
import privopt
assert dict(jax.config.values) == before
assert not jax.config.jax_enable_x64
privopt.LogisticRegression, privopt.minimize
assert dict(jax.config.values) == before
unneeded = {"fsspec", "matplotlib.pyplot", "pyarrow.dataset", "ray", "sklearn.metrics"}
assert not unneeded & set(sys.modules)
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
