"""What loads what: an import is light, and a fit to few records needs neither JAX nor numba."""

import os
import subprocess
import sys
from textwrap import dedent

HEAVY = {"jax", "jaxlib", "numba", "llvmlite", "dp_accounting"}
MOST_MODULES = 100  # of our own, after the import of an estimator

FITS = """
    import numpy as np, privopt
    draw = np.random.default_rng(0)
    features = draw.uniform(-1, 1, (500, 4))
    score = features[:, 0] + 0.3 * draw.normal(size=500)
    given = {"epsilon": 1.0, "delta": 1e-6, "bounds": (-1.0, 1.0)}
    for model, target in (
        (privopt.LogisticRegression(classes=[0, 1], **given), (score > 0).astype(int)),
        (privopt.LogisticRegression(classes=[0, 1, 2], **given), np.digitize(score, [-0.3, 0.3])),
        (privopt.Ridge(target_bounds=(-2, 2), **given), score),
        (privopt.LinearRegression(target_bounds=(-2, 2), **given), score),
        (privopt.PoissonRegressor(target_bounds=(0, 9), **given), np.minimum(draw.poisson(np.exp(score)), 9)),
    ):
        model.fit(features, target)
        model.predict(features), str(model.privacy_), model.plan_.to_dict()
"""


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh process has loaded after it ran this."""
    tail = "\nimport sys; print('\\n'.join(sys.modules))"
    kept = {name: value for name, value in os.environ.items() if name != "PRIVOPT_TYPECHECK"}
    run = subprocess.run(
        [sys.executable, "-c", dedent(code) + tail], capture_output=True, text=True, env=kept, check=False
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_importing_an_estimator_loads_little() -> None:
    loaded = loaded_by("from privopt import LogisticRegression")
    assert not loaded & HEAVY
    assert sum(name.partition(".")[0] == "privopt" for name in loaded) <= MOST_MODULES


def test_a_help_page_loads_no_numpy() -> None:
    assert "numpy" not in loaded_by("import privopt.cli")


def test_fits_to_few_records_load_no_compiler() -> None:
    assert not loaded_by(FITS) & HEAVY


def test_no_public_name_loads_a_compiler() -> None:
    assert not loaded_by("import privopt\nfor name in privopt.__all__: getattr(privopt, name)") & HEAVY


def test_what_is_registered_with_jax_is_registered_when_somebody_else_loads_it() -> None:
    code = """
        from privopt.problems.regularisers import MappedRidge
        import jax, numpy as np
        from privopt.precision import double_precision
        assert float(jax.jit(lambda each: each.strengths.sum())(MappedRidge(np.eye(2), np.ones(2)))) == 2.0
        with double_precision():
            ridge = MappedRidge(np.eye(2), np.ones(2))
            assert len(jax.tree.leaves(ridge)) == 2
            assert jax.numpy.ones(1).dtype == "float64"
        assert jax.numpy.ones(1).dtype == "float32"
    """
    assert "jax" in loaded_by(code)


def test_jax_that_is_loaded_within_a_context_is_in_double_precision() -> None:
    code = """
        import sys, threading
        from privopt.later import jnp
        from privopt.precision import in_float64, is_double
        entered, loaded, seen = threading.Event(), threading.Event(), []
        def other():
            with in_float64():
                entered.set()
                loaded.wait()
                seen.append(str(jnp.ones(1).dtype))
            seen.append(str(jnp.ones(1).dtype))
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait()
        assert not is_double()
        with in_float64():
            assert is_double() and "jax" not in sys.modules
            assert jnp.ones(1).dtype == "float64"
        assert jnp.ones(1).dtype == "float32"
        loaded.set()
        thread.join()
        assert seen == ["float64", "float32"], seen
    """
    assert "jax" in loaded_by(code)
