"""Every test here runs in double precision, entered once around the whole test."""

import pytest

from privopt.precision import double_precision


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield
