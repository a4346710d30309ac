"""What stands beside the pass of an eager step: no operation of JAX outside the solver's compiled step."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.events import EveryUnit, NonPrivateEvent, Repeated
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.precision import as_released, double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient, GradientNorm

COMPILED = "/jax/core/compile/backend_compile_duration"
ROWS, COLUMNS = 61, 37  # a shape that no other test has compiled for


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Names of the programs compiled during a test; an operation outside `jit` is a program of its own."""
    names: list[str] = []

    def listen(event: str, _: float, **details: object) -> None:
        if event == COMPILED:
            names.append(str(details.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def curator() -> LocalCurator:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(ROWS, COLUMNS))
    units = Units.from_arrays(features, generator.integers(0, 2, ROWS), row_bound=1.0, classes=[0, 1])
    plan = Repeated(NonPrivateEvent(), 8)
    return LocalCurator(units, Ledger(Budget(np.inf, 1e-6), units.public.relation, plan=plan))


def gradient(at, kind=ClippedGradient):
    return kind(loss=losses.logistic, at=at, clip=0.5)


def test_a_release_of_a_mean_runs_no_operation_of_jax_on_its_own(curator, compiled):
    with double_precision():
        at = as_released(np.linspace(-1.0, 1.0, COLUMNS))
        compiled.clear()
        released = curator.release(gradient(at), Gaussian(0.0))
    assert compiled == []
    assert isinstance(released, jax.Array)


@pytest.mark.parametrize("kind", [ClippedGradient, GradientNorm])
def test_the_mean_is_the_one_that_a_compiled_program_divides(curator, kind):
    with double_precision():
        query = gradient(jnp.linspace(-1.0, 1.0, COLUMNS), kind)
        private_sum = curator.private_engine.clipped_sum(query)
        divided = query.finish(jax.jit(lambda total: total / float(ROWS))(private_sum))
        assert np.array_equal(curator.private_value(query, EveryUnit(), None), divided)


@pytest.mark.parametrize("value", [np.arange(3.0), np.array(2.5), np.arange(4), np.int64(3), 3, 0.5])
def test_the_quick_conversion_gives_the_array_that_jax_would_make(value):
    with double_precision():
        quick, plain = as_released(value), jnp.asarray(value)
        assert (quick.dtype, quick.weak_type) == (plain.dtype, plain.weak_type)
        assert np.array_equal(quick, plain)
