"""The threat model names tests that exist, its pages link to one another, and its limits are those of the code."""

import ast
import re
from pathlib import Path

from privopt import untrusted
from privopt.commands import options, screen
from privopt.ledger import account_file, default_account
from privopt.printable import MOST_SHOWN
from privopt.tables import schema, text_stream

ROOT = Path(__file__).parents[1]
MODEL = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", MODEL)


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_the_threat_model_names_exists() -> None:
    assert len(NAMED) > 20
    for path, function in NAMED:
        assert (ROOT / path).is_file(), path
        assert not function or function in functions_of(ROOT / path), (path, function)


def test_every_row_of_attackers_names_a_test() -> None:
    rows = [line for line in MODEL.splitlines() if line.startswith("| ") and line.count(" | ") == 3]
    assert len(rows) > 10
    assert all("`tests/" in row for row in rows[2:])


def test_the_pages_that_speak_of_attacks_lead_to_the_threat_model() -> None:
    for name, link in {
        "README.md": "docs/threat-model.md",
        "SECURITY.md": "docs/threat-model.md",
        "docs/sharp-edges.md": "threat-model.md",
        "docs/verify.md": "threat-model.md",
        "mkdocs.yml": "threat-model.md",
    }.items():
        assert link in (ROOT / name).read_text(encoding="utf-8"), name
    assert "SECURITY.md" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_limits_are_those_of_the_code() -> None:
    stated = {
        "16 MiB; 64 deep": (untrusted.MOST_JSON_BYTES, untrusted.DEEPEST) == (16 * 2**20, 64),
        "whole numbers of 40 digits": untrusted.MOST_DIGITS == 40,
        "safetensors of 2 GiB": untrusted.MOST_ARRAY_BYTES == 2**31,
        "100,000 columns, 2<sup>24</sup> features": (schema.MOST_COLUMNS, schema.MOST_FEATURES)
        == (10**5, 2**24),
        "grow to 1 GiB, or to 100 times": (text_stream.MOST_FREE, text_stream.MOST_GROWTH) == (2**30, 100),
        "16 MiB of CSV header": text_stream.MOST_HEADER == 2**24,
        "a regular file of 1 MiB": default_account.MOST_BYTES == 2**20,
        "a regular file of 64 MiB": account_file.MOST_BYTES == 2**26,
        "up to 10<sup>12</sup>": options.MOST_UNITS == 10**12,
        "epsilon up to 10<sup>6</sup>": screen.MOST_EPSILON == 1e6,
        "10<sup>8</sup> synthetic rows": options.MOST_ROWS == 10**8,
        "at most 1,000 letters": MOST_SHOWN == 1000,
    }
    for words, right in stated.items():
        assert words in MODEL, words
        assert right, words
