"""Loops inside releases run public numbers of steps; those that do not are known, with the reason, and documented."""

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "privopt"
ROOMS = ("curator", "data", "engine", "mechanisms", "proofs", "queries")
OPEN_ENDED = {"while_loop", "count", "repeat", "cycle"}  # of jax.lax and itertools

# Every loop behind the door without a number of steps, and what it depends on. One that depends on data stands in
# docs/sharp-edges.md, "Running time".
KNOWN = {
    "curator/journal.py": {"_read, add: the journal's own lines, which hold what was released"},
    "data/blocks.py": {"successes: noise only, half of what is undecided is decided in a step"},
    "data/participants.py": {
        "_settled: noise only; poisson_positions: noise, and how many units are there, see the documentation"
    },
    "engine/kernels.py": {"_dense_add: the number of rows, which is public, and where a matrix ends"},
    "mechanisms/tests.py": {"threshold: the number of tests and a probability, which are public"},
    "mechanisms/exact_noise.py": {"all of them: noise only"},
    "proofs/huberised_objective.py": {"certified_minimiser, _model_descent: data, see the documentation"},
    "proofs/huberised_sum.py": {"_pairwise: the number of parts, which is public"},
}


def open_ended(tree: ast.AST) -> list[int]:
    """The lines of `while` and of calls that loop until something is seen."""
    found = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.While)]
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in OPEN_ENDED
        ):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id in ("itertools", "lax"):
                found.append(node.lineno)
            if isinstance(owner, ast.Attribute) and owner.attr == "lax":
                found.append(node.lineno)
    return found


def test_every_loop_behind_the_door_that_has_no_number_of_steps_is_known() -> None:
    files = [path for room in ROOMS for path in sorted((SOURCE / room).glob("*.py"))]
    looping = {
        path.relative_to(SOURCE).as_posix()
        for path in files
        if open_ended(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert len(files) > 60
    assert looping == set(KNOWN)


def test_the_scan_sees_what_it_looks_for() -> None:
    for text in (
        "while x:\n    pass",
        "for k in itertools.count():\n    pass",
        "jax.lax.while_loop(a, b, c)",
    ):
        assert open_ended(ast.parse(text)) == [1]
    assert open_ended(ast.parse("for k in range(3):\n    'a'.count('b')")) == []
