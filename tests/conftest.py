"""What every test shares: strict JAX promotion, few threads, quick compilation, hypothesis profiles, the shared data.

The environment is set when this file is read, before anything imports JAX, so that doctests and the
documentation's code blocks run under the same rules.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

from tests.support.compilation import kept_programs, quick_compilation

os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["MPLBACKEND"] = "Agg"
# No test pays from the account of whoever runs it.
for _name in ("PRIVOPT_ACCOUNT", "PRIVOPT_REQUIRE_ACCOUNT"):
    os.environ.pop(_name, None)
# Two pytest workers on two cores: the fused kernels keep their two threads, everything else gets one.
os.environ.setdefault("NUMBA_NUM_THREADS", "2")
for _pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_pool, "1")
# The tests compile thousands of programs and run most of them once; `make audit` and `make thorough` compile as for
# users.
if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = quick_compilation()
# A program that one worker has compiled, or has forgotten, is not compiled again, nor by the next run.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = kept_programs()
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

from typing import Any

import hypothesis
import pytest
from hypothesis.database import DirectoryBasedExampleDatabase
from tests.support import evidence as evidence_record
from tests.support.programs import forget_programs
from tests.support.time_limits import TimeLimit
from tests.support.turns import require_cases, waits

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED_DATA = REPOSITORY.parent / "shared" / "data"

hypothesis.settings.register_profile("quick", max_examples=10, deadline=None, derandomize=True, database=None)
# What a long run finds is kept, and tried first by the next one; see CONTRIBUTING.md.
EXAMPLES = REPOSITORY / ".hypothesis" / "examples"
hypothesis.settings.register_profile(
    "thorough",
    max_examples=500,
    deadline=None,
    derandomize=False,  # where the environment says CI, hypothesis would draw the same examples in every run
    database=DirectoryBasedExampleDatabase(EXAMPLES),
    print_blob=True,
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

if os.environ.get("PRIVOPT_TYPECHECK") == "1":
    # Check array shapes at run time. The compiled kernels in engine/ are left out: numba cannot compile a
    # function that has been wrapped by a check.
    from jaxtyping import install_import_hook

    install_import_hook(
        ["privopt.problems", "privopt.queries", "privopt.mechanisms", "privopt.solvers"], "beartype.beartype"
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much the audit tries, and where its record goes."""
    group = parser.getgroup("privopt")
    group.addoption(
        "--evidence", metavar="FOLDER", help="write evidence.json and evidence.md there at the end"
    )
    group.addoption(
        "--neighbours", type=int, default=1_000_000, help="how many the audit tries over all queries"
    )
    group.addoption(
        "--most-seconds",
        type=float,
        help="fail a test of the default run whose call takes more processor time",
    )


def pytest_configure(config: pytest.Config) -> None:
    """See `tests.support.evidence` and `tests.support.time_limits`."""
    evidence_record.attach(config)
    if config.getoption("--most-seconds") is not None:
        config.pluginmanager.register(TimeLimit(config.getoption("--most-seconds")))


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Collector, name: str, obj: object
) -> list[pytest.Item] | None:
    """Of a test of the audit no case is made where none would run: there are thousands."""
    config = collector.config
    if config.getoption("-m") != "not audit" or any("::" in argument for argument in config.args):
        return None
    marks = getattr(obj, "pytestmark", ()) if name.startswith("test_") else ()
    return [] if any(mark.name == "audit" for mark in marks) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Cases named by `@pytest.mark.later`, and those that `@pytest.mark.at_once` leaves out, wait for the audit."""
    if waits(item):
        item.add_marker(pytest.mark.audit)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A worker says what the audit might run of what it collected, before anything is left out."""
    if not any("::" in argument for argument in config.args):
        require_cases(items)
    output: Any = getattr(config, "workeroutput", None)
    if output is not None:
        output["marked"] = evidence_record.marked(items)


@pytest.fixture
def evidence(request: pytest.FixtureRequest) -> Any:
    """Adds a line to the record of evidence: `evidence(area, what, tried=..., of=..., largest=..., bound=...)`."""
    return evidence_record.lines_into(request)


@pytest.fixture(scope="session")
def neighbours(request: pytest.FixtureRequest) -> int:
    """How many neighbours the audit tries over all queries."""
    return request.config.getoption("--neighbours")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public data sets that stands beside the checkout; without it the test is skipped."""
    if not (SHARED_DATA / "schema.json").exists():
        pytest.skip("the shared data sets do not stand beside this checkout")
    return SHARED_DATA


@pytest.fixture(scope="module", autouse=True)
def room_for_programs() -> Iterator[None]:
    """See `forget_programs`."""
    yield
    forget_programs()


def pytest_collection_finish() -> None:
    """Leave what stays until the end, the tests themselves above all, out of every later search for garbage."""
    gc.collect()
    gc.freeze()
