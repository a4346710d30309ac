"""The counts of `make size`."""

import pytest
from benchmarks.size import code_lines, counted, fit

TEXT = '''"""What it is.

Two lines."""

import math
from os import (
    path,
)


def area(radius: float) -> float:
    """Of a disc."""
    # a comment
    words = """no
    docstring"""
    return math.pi * radius**2  # counted
'''


def test_docstrings_comments_blank_lines_and_imports_are_no_code():
    assert code_lines(TEXT) == 4


@pytest.mark.audit
def test_all_of_the_source_is_counted():
    found = dict(counted(quick=True))
    assert found["lines of code"] < found["lines in src"]
    assert 0 < found["classes"] < found["functions"]


@pytest.mark.audit
def test_a_default_fit_builds_few_solvers():
    """It has two that are open, twice, six steps to the configured ones, and one in other coordinates."""
    assert fit()["programs"] <= 13
