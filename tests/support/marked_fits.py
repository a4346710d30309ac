"""A child process that fits marked data with every compiler told to write down what it does."""

import logging
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from tests.support.markers import NUMBER

from privopt import Budget, LinearRegression, SyntheticData, Units, minimize

ROWS = 64
FEATURES = np.random.default_rng(0).random((ROWS, 3))
FEATURES[:, 2] = NUMBER
TARGETS = np.where(FEATURES[:, 0] > 0.5, NUMBER, 0.5)


@jax.jit
def leaking(values: jax.Array) -> jax.Array:
    """What must be found, or the search finds nothing."""
    return values + jnp.asarray(FEATURES, values.dtype)


def main(folder: Path) -> None:
    """Fit."""
    logging.basicConfig(level=logging.DEBUG, filename=folder / "log")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    leaking(jnp.zeros((ROWS, 3)))
    with jax.enable_x64(True):
        leaking(jnp.zeros((ROWS, 3)))
    for solver in ("auto", "gradient-descent", "stochastic-gradient-descent"):
        for groups in (None, np.arange(ROWS) // 2):
            if groups is None or solver == "auto":
                LinearRegression(
                    epsilon=1, delta=1e-6, bounds=(-1, 1), target_bounds=(-1, 1), solver=solver
                ).fit(FEATURES, TARGETS, groups=groups)
    minimize(
        lambda params, features, target: jnp.log1p((features @ params - target) ** 2),
        Units.from_arrays(FEATURES, TARGETS, row_bound=2.0),
        budget=Budget(1.0, 1e-6),
        start=jnp.zeros(3),
    )
    columns = {name: {"kind": "num", "low": 0, "high": 1} for name in ("a", "b")}
    table = pd.DataFrame({"a": FEATURES[:, 2], "b": TARGETS})
    SyntheticData({"columns": columns}, epsilon=1, delta=1e-6).fit(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
