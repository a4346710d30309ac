"""The audit compiles many programs a test: they are forgotten between tests, not only between files."""

from collections.abc import Iterator

import pytest
from tests.support.programs import forget_programs


@pytest.fixture(autouse=True)
def room_for_programs_of_a_test() -> Iterator[None]:
    """See `forget_programs`."""
    yield
    forget_programs()
