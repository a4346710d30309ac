"""Risk, clipped gradient and clipped change of a gradient on twelve records, at (1, -1, 1/2)."""

import numpy as np
from tests.support.kl_reference import LOGISTIC, N, twelve_records

from privopt.engine.in_process import InProcessEngine
from privopt.precision import double_precision
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference, MixedGradient

POINT, ORIGIN = np.array([1.0, -1.0, 0.5]), np.zeros(3)
GRADIENT = [3.3576392912e-02, -6.2350738675e-02, 1.8317732400e-02]
CHANGE = [
    1.6078916252e-02,
    -2.4441566294e-02,
    4.2636447348e-03,
]  # three quarters of the records are clipped to 0.05


def mean(query):
    return InProcessEngine(twelve_records()).clipped_sum(query) / N


def test_the_risk():
    units = twelve_records()
    with double_precision():
        risk = LOGISTIC.objective(POINT, np.asarray(units.private_features), units.private_targets)
    np.testing.assert_allclose(float(risk), 0.743192401935, rtol=1e-11)


def test_the_gradient_and_its_clipped_change():
    loss = LOGISTIC.loss
    gradient = ClippedGradient(loss=loss, at=POINT, clip=1.0)
    np.testing.assert_allclose(mean(gradient), GRADIENT, rtol=1e-8)
    change = ClippedGradientDifference(
        loss=loss, at=POINT, anchor=ORIGIN, slope_clip=0.05 / np.linalg.norm(POINT)
    )
    np.testing.assert_allclose(mean(change), CHANGE, rtol=1e-8)


def test_a_mixture_is_that_of_the_two():
    for gain in (0.0, 0.3, 1.0):
        mixed = MixedGradient(
            loss=LOGISTIC.loss, at=POINT, previous=ORIGIN, clip=1.0, change_clip=0.05, gain=gain
        )
        expected = (1.0 - gain) * np.array(GRADIENT) + gain * np.array(CHANGE)
        np.testing.assert_allclose(mean(mixed), expected, rtol=1e-8)
