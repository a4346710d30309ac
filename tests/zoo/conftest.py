"""The public mathematics runs in float64, as the curator does."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield
