"""Quick compilation: an option that the compiler does not know is left out, and the arithmetic is that of users."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from tests.support import compilation

# Products that are fused with sums, numbers without a leading 1, overflow, what is no number, and a sum in a loop.
PROGRAM = """
import json, jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
rows, at = rng.normal(size=(300, 7)), rng.normal(size=7)
odd = np.array([5e-324, 4.6e307, 1.7e308, np.inf, np.nan, 1e-160])
values = [
    jax.jit(jax.vmap(lambda row: row * (jnp.exp(row @ at) - 0.5) / jnp.linalg.norm(row)))(rows),
    jax.jit(jax.grad(lambda at: jnp.mean(jnp.log1p(jnp.exp(rows @ at)) + jnp.tanh(at[0]))))(at),
    jax.jit(lambda odd: jnp.stack([1.0 / odd, odd * 0.5 + odd, jnp.sqrt(odd * odd)]))(odd),
    jax.jit(lambda at: jax.lax.fori_loop(0, 6, lambda i, s: s * 0.3 + at[i] * at[i + 1], 0.1))(at),
]
print(json.dumps([np.ravel(one).tolist() for one in values]))
"""


def computed(flags):
    """What programs compute that are compiled with these flags."""
    surroundings = {**os.environ, "XLA_FLAGS": flags, "JAX_NUMPY_RANK_PROMOTION": "allow"}
    surroundings.pop("JAX_COMPILATION_CACHE_DIR", None)
    child = [sys.executable, "-c", PROGRAM]
    said = subprocess.run(child, env=surroundings, check=True, capture_output=True, text=True).stdout
    return [np.array(one) for one in json.loads(said)]


def test_an_option_that_the_compiler_does_not_know_is_left_out(monkeypatch):
    known = "xla_backend_optimization_level"
    monkeypatch.setattr(compilation, "QUICK", {"xla_cpu_no_such_option": "1", known: "1"})
    assert compilation.quick_compilation() == f"--{known}=1"


@pytest.mark.audit
def test_programs_compute_what_they_compute_for_users():
    for quick, usual in zip(computed(compilation.quick_compilation()), computed(""), strict=True):
        np.testing.assert_allclose(quick, usual, rtol=1e-13, atol=0)
