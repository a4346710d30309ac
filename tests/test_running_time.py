"""Loops inside releases run public numbers of steps; those that do not are known, with the reason, and documented."""

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "privopt"
ROOMS = ("curator", "data", "engine", "mechanisms", "proofs", "queries")
OPEN_ENDED = {"while_loop", "count", "repeat", "cycle"}  # of jax.lax and itertools

# Every function behind the door with a loop without a number of steps, and what that depends on. One that depends on
# data stands in docs/sharp-edges.md, "Running time".
KNOWN = {
    "curator/journal.py": {"_read add": "the journal's own lines, which hold what was released"},
    "data/blocks.py": {"successes": "noise only, half of what is undecided is decided in a step"},
    "data/participants.py": {
        "_settled fixed_positions": "noise only",
        "poisson_positions": "noise, and how many units are there, see the documentation",
    },
    "engine/kernels.py": {"_dense_add": "the number of rows, which is public, and where a matrix ends"},
    "engine/on_ray/fleet.py": {
        "_answers ready": "when workers answer, and which of them are lost",
        "_sent forget": "the steps of a run that a worker does not know, or that nobody needs",
        "total": "the number of workers, which is public",
    },
    "engine/on_ray/user_shard.py": {"_ask run": "the number of ranges of records, and when workers answer"},
    "engine/streamed/disk.py": {
        "_look watch": "how many files are mapped",
        "read write": "how many bytes a call to the system takes at once",
    },
    "engine/streamed/spool.py": {"_gather": "how many pieces of the file were given back"},
    "mechanisms/exact_noise.py": {
        "_draw _fill _settled fill_gumbel gumbel settled_gumbel": "noise only",
        "_table": "the number of entries of a public table",
    },
    "mechanisms/tests.py": {"threshold_for": "the number of tests and a probability, which are public"},
    "proofs/huberised_objective.py": {"_model_descent certified_minimiser": "data, see the documentation"},
    "proofs/huberised_sum.py": {"_pairwise": "the number of parts, which is public"},
}


def open_ended(tree: ast.AST, inside: str = "") -> list[str]:
    """The functions around each `while` and each call that loops until something is seen, "" for none."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.While) or _calls_a_loop(node):
            found.append(inside)
        found += open_ended(node, node.name if isinstance(node, ast.FunctionDef) else inside)
    return found


def _calls_a_loop(node: ast.AST) -> bool:
    if not (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OPEN_ENDED
    ):
        return False
    owner = node.func.value
    return (isinstance(owner, ast.Name) and owner.id in ("itertools", "lax")) or (
        isinstance(owner, ast.Attribute) and owner.attr == "lax"
    )


def test_every_loop_behind_the_door_that_has_no_number_of_steps_is_known() -> None:
    looping: dict[str, set[str]] = {}
    for room in ROOMS:
        files = sorted((SOURCE / room).rglob("*.py"))
        assert len(files) > 5, room
        for path in files:
            if found := set(open_ended(ast.parse(path.read_text(encoding="utf-8")))):
                looping[path.relative_to(SOURCE).as_posix()] = found
    assert looping == {
        path: {name for names in each for name in names.split()} for path, each in KNOWN.items()
    }


def test_the_scan_sees_what_it_looks_for() -> None:
    for text in (
        "while x:\n    pass",
        "for k in itertools.count():\n    pass",
        "jax.lax.while_loop(a, b, c)",
    ):
        assert open_ended(ast.parse(text)) == [""]
    nested = "def outer():\n    def inner():\n        while x:\n            pass\n    lax.while_loop(a, b, c)"
    assert open_ended(ast.parse(nested)) == ["inner", "outer"]
    assert open_ended(ast.parse("for k in range(3):\n    'a'.count('b')")) == []
