"""A number and a text planted in private data, and the keys of the noise, are searched in whatever comes out."""

import copy
import io
import json
import logging
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.counted_fits import COUNTS, KINDS
from tests.support.markers import NUMBER, TEXT, forms_of_bytes, found_in, said_by
from typer.testing import CliRunner

import privopt
from privopt import (
    Account,
    Budget,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    SyntheticData,
    Units,
    losses,
    minimize,
)
from privopt.cli import app
from privopt.engine.in_process import InProcessEngine
from privopt.engine.reference import ReferenceEngine
from privopt.mechanisms.noise import NoiseSource, RepeatedChoice
from privopt.solvers import GradientDescent

ROWS = 60
RNG = np.random.default_rng(0)
X = RNG.random((ROWS, 3))
X[5, 1] = NUMBER
Y = (X[:, 0] > 0.5).astype(float)
MARKED = np.where(np.arange(ROWS) == 5, NUMBER, Y)
NAMED = np.where(np.arange(ROWS) == 5, TEXT, np.where(Y > 0, "a", "b")).astype(object)
GIVEN: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "bounds": (0, 1)}
SCHEMA = {"columns": {"a": {"kind": "num", "low": 0, "high": 1}, "s": {"kind": "cat", "levels": ["u", "v"]}}}
FRAME = pd.DataFrame({"a": X[:, 1], "s": [TEXT] * ROWS})


def classifier(**more: Any) -> LogisticRegression:
    return LogisticRegression(**{**GIVEN, "classes": [0, 1], **more})


def synthesizer() -> SyntheticData:
    return SyntheticData(SCHEMA, "2-way", epsilon=1.0, delta=1e-6)


def units() -> Units:
    return Units.from_arrays(X, MARKED, row_bound=2.0)


def raising(params: Any, features: Any, target: Any) -> Any:
    raise ValueError(f"a loss of the user's saw {features} and {target}")


def calling_back(params: Any, features: Any, target: Any) -> Any:
    shape = jax.ShapeDtypeStruct((), features.dtype)
    return jnp.sum(params) * jax.pure_callback(lambda one: one, shape, target, vmap_method="sequential")


def own_loss(loss: Any) -> Callable[[], Any]:
    return lambda: minimize(loss, units(), budget=Budget(1.0, 1e-6), start=jnp.zeros(3))


# What is asked of the package with marked data; most of it is wrong.
ASKED: dict[str, Callable[[], Any]] = {
    "a label that is no class": lambda: classifier().fit(X, MARKED),
    "texts for classes of numbers": lambda: classifier().fit(X, NAMED),
    "features of text": lambda: classifier().fit(np.where(X == NUMBER, TEXT, X.astype(str)), Y),
    "features of objects": lambda: classifier().fit(np.where(X == NUMBER, TEXT, X.astype(object)), Y),
    "lists of features": lambda: classifier().fit(
        [[TEXT if v == NUMBER else v for v in row] for row in X], Y
    ),
    "ragged lists": lambda: classifier().fit([[TEXT], *map(list, X[1:])], Y),
    "a frame of objects": lambda: classifier().fit(pd.DataFrame(X).astype(object).mask(X == NUMBER, TEXT), Y),
    "one dimension": lambda: classifier().fit(X[:, 1], Y),
    "fewer targets": lambda: classifier().fit(X, MARKED[:10]),
    "targets in a table": lambda: classifier().fit(X, np.c_[MARKED, MARKED]),
    "a dictionary of targets": lambda: classifier().fit(X, {TEXT: NUMBER}),
    "features in a text": lambda: classifier().fit(TEXT, Y),
    "one number": lambda: classifier().fit(NUMBER, NUMBER),
    "a private strength without labels": lambda: classifier(classes="from_y").fit(X, MARKED),
    "labels of several types": lambda: classifier(classes="from_y").fit(X, [TEXT, 1.0] * (ROWS // 2)),
    "user keys of text": lambda: classifier().fit(X, Y, groups=[TEXT if i == 5 else i for i in range(ROWS)]),
    "nested user keys": lambda: classifier().fit(X, Y, groups=[[TEXT]] * ROWS),
    "too few user keys": lambda: classifier().fit(X, Y, groups=[TEXT]),
    "more than n users": lambda: classifier(relation="add-or-remove-one", n=7).fit(X, MARKED),
    "an account that is too small": lambda: classifier(account=Account(0.1, 1e-7)).fit(X, MARKED),
    "targets of text": lambda: LinearRegression(**GIVEN, target_bounds=(0, 1)).fit(X, NAMED),
    "units of text": lambda: Units.from_arrays(np.array([[TEXT, NUMBER]], object), [NUMBER], row_bound=1.0),
    "units without targets": lambda: Units.from_arrays(X, MARKED[:4], row_bound=1.0),
    "a loss that raises": own_loss(raising),
    "a loss that calls back": own_loss(calling_back),
    "a table of lists": lambda: synthesizer().fit({"a": [[NUMBER]] * ROWS, "s": [{TEXT: 1}] * ROWS}),
    "a table of several lengths": lambda: synthesizer().fit({"a": [NUMBER], "s": [TEXT, TEXT]}),
    "no table": lambda: synthesizer().fit([TEXT, NUMBER]),
    "a table without a column": lambda: synthesizer().fit(FRAME[["a"]]),
    "a mean of one user": lambda: privopt.user_mean(
        X, groups=[TEXT] * ROWS, epsilon=1, delta=1e-6, bound=1.0
    ),
}


@contextmanager
def overheard() -> Generator[io.StringIO]:
    """Everything that is logged or warned of meanwhile."""
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield heard
        heard.writelines(str(each.message) for each in warned)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


@pytest.mark.later(
    "a label that is no class",
    "a loss that raises",
    "a table of lists",
    "an account that is too small",
    "lists of features",
    "ragged lists",
    "targets of text",
    "texts for classes of numbers",
    "user keys of text",
)
@pytest.mark.parametrize("what", ASKED)
def test_nothing_that_goes_wrong_says_what_stands_in_the_data(
    what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    with overheard() as heard:
        try:
            said.append(repr(ASKED[what]()))
        except Exception as error:
            said += said_by(error)
    said += [heard.getvalue(), *capfd.readouterr()]
    assert not [text for text in said if found_in(text)]


@pytest.mark.parametrize("y", [NAMED, [TEXT] * ROWS, [{TEXT: 1}] * ROWS, MARKED, [NUMBER], None])
@pytest.mark.parametrize(
    "model",
    [
        classifier(),
        LinearRegression(**GIVEN, target_bounds=(0, 1)),
        QuantileRegressor(**GIVEN, target_bounds=(0, 1)),
        PoissonRegressor(**GIVEN, target_bounds=(0, 1)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_score_that_cannot_be_computed_quotes_no_target(model: Any, y: Any) -> None:
    """scikit-learn's own sentence lists the labels."""
    fitted = copy.copy(model)
    fitted.predict = lambda _: np.zeros(ROWS)
    said: list[str] = []
    try:
        fitted.score(X, y)
    except Exception as error:
        said += said_by(error)
    assert not [text for text in said if found_in(text)]


@pytest.fixture(scope="module")
def fitted() -> tuple[list[Any], set[bytes]]:
    """Things that a user has after fits on marked data, and the forms of the keys of all noise in them."""
    known: list[bytes] = []
    original = os.urandom

    def remembered(size: int) -> bytes:
        known.append(original(size))
        return known[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privopt.mechanisms.noise.os.urandom", remembered)
        account = Account(100.0, 1e-3, composition="basic")
        model = classifier(account=account).fit(X, MARKED)
        rows = synthesizer().fit(FRAME)
        result = minimize(losses.squared, units(), budget=Budget(1.0, 1e-6), solver=GradientDescent(steps=3))
    assert known
    forms = set().union(*map(forms_of_bytes, known))
    forms |= {str(int.from_bytes(key, "little")).encode() for key in known}
    return [model, rows, result], forms


def test_what_a_fit_leaves_holds_no_marker_and_no_key(fitted: tuple[list[Any], set[bytes]]) -> None:
    things, keys = fitted
    model, rows, result = things
    surfaces: list[Any] = [
        *map(repr, things),
        *map(str, things),
        *map(pickle.dumps, things),
        repr(vars(model)),
        repr(vars(rows)),
        rows.sample(50, random_state=1).to_csv(),
    ]
    for report in (model.privacy_, rows.privacy_, result.report):
        surfaces += [str(report), repr(report), report.to_html(), json.dumps(report.to_dict())]
    surfaces += [json.dumps(result.transcript.to_dict(values=True)), repr(list(result.transcript))]
    for place, surface in enumerate(surfaces):
        assert not found_in(surface), place
        assert not found_in(surface, keys), place


@pytest.mark.parametrize("source", [NoiseSource(), RepeatedChoice(NoiseSource())], ids=["noise", "choice"])
def test_a_source_of_noise_shows_no_key_and_is_not_copied(source: Any) -> None:
    assert "<private>" in repr(source)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            copied(source)


@pytest.mark.parametrize("engine", [InProcessEngine, ReferenceEngine])
def test_units_and_what_computes_on_them_are_not_pickled(engine: Any) -> None:
    made = units()
    for holder in (made, engine(made)):
        assert not found_in(repr(holder))
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(holder)


# ---- the command line ------------------------------------------------------------------------------------------------

COLUMNS = {"columns": {**SCHEMA["columns"], "y": {"kind": "flag"}, "u": {"kind": "id"}}, "target": "y"}
FILES: dict[str, Callable[[Path], Any]] = {
    "odd cells": lambda path: path.write_text(
        "a,s,y,u\n" + f"{NUMBER},{TEXT},{TEXT},{TEXT}\n{TEXT},u,1,2\n" * 20
    ),
    "a row too long": lambda path: path.write_text(
        f"a,s,y,u\n0.1,u,1,2\n{NUMBER},{TEXT},1,{TEXT},{TEXT}\n" + "0.5,u,0,3\n" * 20
    ),
    "a quote that never ends": lambda path: path.write_text(f'a,s,y,u\n0.1,u,1,2\n"{TEXT},{NUMBER}\n'),
    "bytes that are no text": lambda path: path.write_bytes(
        b"a,s,y,u\n" + f"{NUMBER},{TEXT}".encode() + b"\xff,1,2\n" * 20
    ),
    "a header of data": lambda path: path.write_text(f"{NUMBER},{TEXT},1,2\n" * 20),
}


@pytest.mark.later("fit-odd cells")
@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("command", ["fit", pytest.param("synthesize", marks=pytest.mark.audit)])
def test_the_command_line_shows_no_cell(what: str, command: str, tmp_path: Path, monkeypatch: Any) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    FILES[what](tmp_path / "table.csv")
    (tmp_path / "schema.json").write_text(json.dumps(COLUMNS))
    output = tmp_path / ("model" if command == "fit" else "rows.parquet")
    arguments = [
        "--schema",
        tmp_path / "schema.json",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
        "--output",
        output,
    ]
    with overheard() as heard:
        outcome = CliRunner().invoke(
            app, [str(each) for each in (command, tmp_path / "table.csv", *arguments, "--n", "40")]
        )
    assert outcome.exit_code in (0, 2), outcome.output
    assert not found_in(outcome.output)
    assert not found_in(heard.getvalue())
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "table.csv":
            assert not found_in(path.read_bytes()), path


def test_a_wrong_type_in_parquet_is_said_without_a_cell(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(COLUMNS))
    columns = {"a": [[NUMBER]], "s": [[TEXT]], "y": [1], "u": [TEXT]}
    pq.write_table(pa.table(columns), tmp_path / "table.parquet")
    arguments = ["--schema", tmp_path / "schema.json", "--epsilon", "1", "--delta", "1e-6", "--n", "40"]
    outcome = CliRunner().invoke(
        app,
        [str(each) for each in ("fit", tmp_path / "table.parquet", *arguments, "--output", tmp_path / "m")],
    )
    assert outcome.exit_code == 2
    assert not found_in(outcome.output)


# ---- what the compilers write ----------------------------------------------------------------------------------------


@pytest.mark.audit
def test_no_compiled_program_its_dump_or_its_cache_holds_private_numbers(tmp_path: Path) -> None:
    """Data are arguments of programs. A constant in one would stand in XLA's dumps and JAX's cache on the disk."""
    flags = f"--xla_dump_to={tmp_path / 'dumped'} --xla_dump_hlo_as_text --xla_dump_hlo_as_proto"
    surroundings = {**os.environ, "XLA_FLAGS": flags, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    (tmp_path / "temporary").mkdir()
    surroundings |= {"TMPDIR": str(tmp_path / "temporary"), "JAX_LOG_COMPILES": "1"}
    child = [sys.executable, "-m", "tests.support.marked_fits", str(tmp_path)]
    ran = subprocess.run(child, env=surroundings, capture_output=True, cwd=Path(__file__).parents[1])
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    assert not found_in(ran.stderr)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 100
    leaking = {str(path.relative_to(tmp_path)) for path in files if found_in(path.read_bytes())}
    assert leaking
    assert all("jit_leaking" in name for name in leaking), leaking


def compiled_for_all_counts(kinds: list[str]) -> dict[str, dict[str, list[str]]]:
    """What was compiled, by the kind of fit and by how many units there were of the declared n."""
    child = [sys.executable, "-m", "tests.support.counted_fits", *kinds]
    ran = subprocess.run(child, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


@pytest.mark.parametrize(
    "kinds",
    [
        ["loop"],
        pytest.param(list(KINDS), marks=pytest.mark.audit),
    ],
    ids=["loops", "everything"],
)
def test_no_shape_of_a_program_shows_how_many_units_there_are(kinds: list[str]) -> None:
    """Under add-or-remove-one their number is secret; logs, dumps and caches of a compiler name shapes."""
    found = compiled_for_all_counts(kinds)
    assert list(found) == kinds
    for kind, by_count in found.items():
        wanted = by_count[str(COUNTS[0])]
        assert any("ShapedArray(float" in said or "f64[" in said for said in wanted), kind
        for count in COUNTS[1:]:
            assert by_count[str(count)] == wanted, (kind, count)
