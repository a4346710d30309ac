"""What hypothesis finds in a long run is kept for the next one; the default run draws the same examples everywhere."""

from pathlib import Path

import hypothesis
from hypothesis.database import DirectoryBasedExampleDatabase

ROOT = Path(__file__).resolve().parent.parent


def test_long_runs_keep_their_examples_and_the_default_run_keeps_none():
    thorough, quick = (hypothesis.settings.get_profile(name) for name in ("thorough", "quick"))
    assert thorough.database == DirectoryBasedExampleDatabase(ROOT / ".hypothesis" / "examples")
    assert not thorough.derandomize
    assert quick.derandomize
    assert quick.database is None


def test_the_examples_survive_a_cleaning_and_are_not_committed():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert ".hypothesis" not in makefile.split("\nclean:")[1]
    assert makefile.count("--hypothesis-profile thorough") == 2
    assert ".hypothesis/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
