"""The landed descent taken apart: without changes it is the landed rule."""

import numpy as np
import pytest
from benchmarks.panel_alternatives import noise_ridge, varied
from benchmarks.panel_cells import Cell
from benchmarks.panel_problems import PanelArrays, PanelProblem, Target
from benchmarks.panel_rules import landed


@pytest.fixture
def cell() -> Cell:
    generator = np.random.default_rng(0)
    features = generator.uniform(-1.0, 1.0, (300, 4)).astype(np.float32)
    targets = (features[:, 0] + 0.3 * generator.standard_normal(300) > 0).astype(float)
    arrays = PanelArrays(
        features=features,
        targets=targets,
        test_features=features[:1],
        test_targets=targets[:1],
        classes=2,
        most=1.0,
    )
    problem = PanelProblem(name="made up", table="adult", kind="two classes", target=Target(column="target"))
    return Cell(problem, arrays, 1.0, seeds=3)


def test_unchanged_it_is_the_landed_rule(cell: Cell) -> None:
    assert np.array_equal(varied(cell), landed(cell))


def test_seeds_agree_on_gradients_without_noise_up_to_the_moment(cell: Cell) -> None:
    noisy, exact = varied(cell), varied(cell, noise=0.0)
    assert np.mean(np.std(exact, axis=0)) < 0.5 * np.mean(np.std(noisy, axis=0))


def test_a_larger_ridge_shortens_the_result(cell: Cell) -> None:
    small, large = noise_ridge(cell, 0.01), noise_ridge(cell, 10.0)
    assert np.all(np.linalg.norm(large[:, :-1], axis=1) < np.linalg.norm(small[:, :-1], axis=1))
