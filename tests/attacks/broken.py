"""Curators that break what descent rests on, one mistake each."""

import dataclasses

import numpy as np

from privopt.attacks.watched import Watched


class ClipForgotten(Watched):
    """Sums gradients as they are."""

    def _answer(self, query, mechanism, sampling, sensitivity):
        return super()._answer(dataclasses.replace(query, clip=1e3), mechanism, sampling, sensitivity)


class SensitivityHalved(Watched):
    """Takes the sensitivity of add-or-remove-one where units are replaced."""

    def _answer(self, query, mechanism, sampling, sensitivity):
        return super()._answer(query, mechanism, sampling, sensitivity / 2)


class OneDraw:
    """Noise that is drawn once."""

    def __init__(self, noise):
        self._noise, self._drawn = noise, {}

    def __getattr__(self, name):
        return getattr(self._noise, name)

    def rounded_normal(self, shape, exponent):
        return self._drawn.setdefault(shape, self._noise.rounded_normal(shape, exponent))


class NoiseReused(Watched):
    """Adds the same noise to every release."""

    def __init__(self, left, right, ledger, *, noise=None):
        super().__init__(left, right, ledger, noise=noise)
        self._noise = OneDraw(self._noise)


class Slow(OneDraw):
    """Noise that forgets its past too slowly."""

    def rounded_normal(self, shape, exponent):
        before, drawn = self._drawn.get(shape, 0), self._noise.rounded_normal(shape, exponent)
        self._drawn[shape] = np.rint(0.6 * before + 0.8 * drawn).astype(np.int64)
        return self._drawn[shape]


class NoiseCorrelated(Watched):
    """Adds noise of the right size that resembles the noise before it."""

    def __init__(self, left, right, ledger, *, noise=None):
        super().__init__(left, right, ledger, noise=noise)
        self._noise = Slow(self._noise)


BROKEN = {
    "sensitivity": (ClipForgotten, SensitivityHalved),
    "same noise": (NoiseReused,),
    "not independent": (NoiseCorrelated,),
}
