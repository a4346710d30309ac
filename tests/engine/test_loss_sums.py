"""Sums of losses in parts: those of all records at once, but for the rounding that is paid for."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.reference import LossSumOverParts, PassingLossSum, ReferenceEngine
from privopt.engine.streamed.disk import Residency
from privopt.engine.streamed.spool import Spool
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.queries.minimisers import DescentEnd

N, D = 700, 5
AT, VECTOR = np.linspace(-1.0, 2.0, D), np.linspace(1.0, -3.0, D)


def units(layout: str) -> Units:
    rng = np.random.default_rng(2)
    features: Any = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.6)
    features[5], features[300], features[650] = np.nan, 1e200, 0.0
    if layout == "sparse":
        features = sparse.csr_array(np.nan_to_num(features))
    targets = rng.integers(0, 2, N)
    stored = Units.from_arrays(
        features,
        targets,
        row_bound=1.5,
        classes=(0, 1),
        storage="int8" if layout == "int8" else "float32",
    )
    return stored.mapped(np.diag(np.linspace(0.5, 1.0, D)), 1.0) if layout == "mapped" else stored


def objective(clip: float = 0.3, row_bound: float = 1.5) -> HuberisedObjective:
    problem = Problem(losses.logistic)
    return HuberisedObjective(problem=problem, ridge=0.1, clip=clip, units=N, width=D, row_bound=row_bound)


@pytest.mark.parametrize("layout", ["dense", "sparse", "int8", "mapped"])
@pytest.mark.parametrize("clip", [0.3, np.inf])
def test_parts_make_the_sum_of_all_records(monkeypatch: pytest.MonkeyPatch, layout: str, clip: float) -> None:
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", 64)
    about, held = objective(clip), units(layout)
    with double_precision():
        whole = about.over(held.private_features, held.private_targets)
        parts = InProcessEngine(held).objective(about)
        plain = ReferenceEngine(held).objective(about)
        assert parts.private_rows == plain.private_rows == N
        allowed = about.rounding(float(np.linalg.norm(AT)))
        assert np.linalg.norm(parts.gradient(AT) - whole.gradient(AT)) <= 2.0 * allowed
        assert parts.gradient(AT).tobytes() == plain.gradient(AT).tobytes()
        np.testing.assert_allclose(parts.hessian(AT), whole.hessian(AT), rtol=1e-12, atol=1e-12)
        products = [of.hessian_product(AT)(VECTOR) for of in (parts, whole)]
        np.testing.assert_allclose(*products, rtol=1e-12, atol=1e-12)
        assert not np.any(parts.hessian_product(AT)(np.zeros(D)))


def test_what_is_kept_on_a_disk_has_the_same_bits_and_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", 64)
    held = units("sparse")
    spool = Spool(tmp_path, 2**20, Residency(2**30))
    on_disk = dataclasses.replace(held, room=spool)
    with double_precision():
        one, other = (InProcessEngine(some).objective(objective()) for some in (held, on_disk))
        assert isinstance(other, LossSumOverParts)
        assert all(isinstance(part, PassingLossSum) for part in other._private_parts)
        assert one.private_rows == other.private_rows
        assert one.gradient(AT).tobytes() == other.gradient(AT).tobytes()
        assert one.hessian(AT).tobytes() == other.hessian(AT).tobytes()
        products = [of.hessian_product(AT)(VECTOR).tobytes() for of in (one, other)]
        assert products[0] == products[1]
    spool.close()


def test_one_part_is_as_it_is() -> None:
    held = units("dense")
    with double_precision():
        whole = objective().over(held.private_features, held.private_targets)
        found = InProcessEngine(held).objective(objective())
        assert found.gradient(AT).tobytes() == whole.gradient(AT).tobytes()


def test_an_order_of_parts_does_not_show_in_an_end_of_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", 64)
    held, query = (
        units("dense"),
        DescentEnd(problem=Problem(losses.logistic), clip=0.3, start=np.zeros(D), step_size=0.5, steps=5),
    )
    with double_precision():
        engine = InProcessEngine(held)
        about = query.objective(held.public)
        forwards = query.value(held.public, engine.objective(about))
        engine._parts.reverse()
        backwards = query.value(held.public, engine.objective(about))
    assert np.asarray(forwards).tobytes() == np.asarray(backwards).tobytes()
