"""The Newton step at the end of a descent: exact for a quadratic, shrunk by its noise."""

import numpy as np
import pytest

from privopt.planning.coordinates import RowSpectrum
from privopt.planning.shrinkage import newton_end

D = 5


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(D, D)))[0]
    return RowSpectrum(
        moment=np.eye(D), eigenvalues=np.array([0.1, 0.2, 0.4, 0.8, 1.6]), axes=axes, floor=0.05
    )


def quadratic(rows, curvature, ridge):
    """The Hessian in v of the squared norm of mapped rows, and of a ridge on w."""
    scale = rows.eigenvalues + rows.floor
    return rows.axes @ np.diag((curvature * rows.eigenvalues + ridge) / scale) @ rows.axes.T


def test_without_noise_it_ends_at_the_optimum_of_a_quadratic_wherever_the_points_were(rows):
    optimum, point, start = np.arange(D) - 2.0, np.cos(np.arange(D)), np.full(D, 0.3)
    hessian = quadratic(rows, 0.25, 0.01)
    found = newton_end(
        rows, point, hessian @ (point - optimum), start=start, curvature=0.25, ridge=0.01, noise=0.0
    )
    np.testing.assert_allclose(found, optimum, atol=1e-12)


def test_noise_shrinks_it_towards_the_start(rows):
    optimum, start = np.arange(D) - 2.0, np.full(D, 0.3)
    gradient = quadratic(rows, 0.25, 0.0) @ (start - optimum)
    lengths = [
        np.linalg.norm(
            newton_end(rows, start, gradient, start=start, curvature=0.25, ridge=0.0, noise=noise) - start
        )
        for noise in (0.0, 0.1, 1.0, 1e6)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < 1e-5
    # By hand in the eigenbasis: A / (A + s).
    bend = np.array([0.1, 0.2, 0.4, 0.8, 1.6]) / (np.array([0.1, 0.2, 0.4, 0.8, 1.6]) + 0.05) / 4.0
    expected = np.linalg.norm(bend / (bend + 0.1) * (rows.axes.T @ (optimum - start)))
    assert lengths[1] == pytest.approx(expected)


def test_directions_without_rows_move_no_further_than_their_least_curvature_allows(rows):
    empty = RowSpectrum(moment=np.zeros((D, D)), eigenvalues=np.zeros(D), axes=np.eye(D), floor=1.0)
    found = newton_end(
        empty, np.zeros(D), np.ones(D), start=np.zeros(D), curvature=0.25, ridge=0.0, noise=0.0
    )
    np.testing.assert_allclose(found, -1.0 / (0.25 * 0.05))
