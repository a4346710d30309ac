"""The whole epsilon(delta) curve of a run, and what it means for somebody who tries to guess."""

import math
from dataclasses import dataclass

from privopt.errors import NotPriceable
from privopt.ledger import accounting
from privopt.ledger.events import DeltaEvent, Event, GaussianEvent, leaf_counts
from privopt.public import Relation

_DENSE_POINTS = 81
# For costly curves: a few around the target, which bound the surprise, and large ones, which bound the best guess.
_MULTIPLES = (1 / 30, 1.0, 3.0, 10.0, 40.0)
_LARGE = (1e-3, 0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.35)
_SMALLEST = 1.5e-10  # numerical accounting ends at 1e-10


@dataclass(frozen=True)
class PrivacyCurve:
    """Points at which a run is (epsilon, delta)-private, in order of growing delta.

    Attributes:
        deltas: from small to large.
        epsilons: the price at each, falling.
        exact: whether the curve is dense and exact (Gaussian releases only) or a few computed bounds.
    """

    deltas: tuple[float, ...]
    epsilons: tuple[float, ...]
    exact: bool

    @property
    def best_guess(self) -> float:
        """How often the best guess between two neighbouring data sets, 50:50 beforehand, is right at most.

        Every (epsilon, delta) bounds it by (e^epsilon + delta) / (1 + e^epsilon); the least of these is the answer.

        Source:
            Kairouz, Oh, Viswanath 2015, theorem 2.1 (both error rates), added up.
        """
        bounds = [sure(e) + d * sure(-e) for d, e in zip(self.deltas, self.epsilons, strict=True)]
        return min([1.0, *bounds])

    def surprise(self, epsilon: float) -> float:
        """Probability, at most, that the privacy loss exceeds `epsilon`: that odds shift by more than e^epsilon.

        delta(e) is the expectation of (1 - exp(e - loss)) over losses above e, so
        P[loss > epsilon] <= delta(e) / (1 - exp(e - epsilon)) for every e < epsilon.
        """
        pairs = zip(self.deltas, self.epsilons, strict=True)
        bounds = [delta / -math.expm1(lower - epsilon) for delta, lower in pairs if lower < epsilon]
        return min([1.0, *bounds])


def privacy_curve(event: Event, relation: Relation, delta: float, near: float | None) -> PrivacyCurve:
    """Price a run at many deltas: densely where that is free, else at a few points of one numerical curve.

    Args:
        event: everything that was released.
        relation: the neighbouring relation.
        delta: the delta of the guarantee; it is one of the points.
        near: about the epsilon to expect there; the grid of the numerical accountant.
    """
    leaves, parallels = leaf_counts(event)
    exact = not parallels and all(isinstance(leaf, GaussianEvent | DeltaEvent) for leaf in leaves)
    target = delta if delta > 0 else 1e-6
    if exact:
        lowest = math.log10(min(1e-12, target / 1e3))
        highest = math.log10(0.5)
        steps = range(_DENSE_POINTS)
        grid = [10 ** (lowest + (highest - lowest) * step / (_DENSE_POINTS - 1)) for step in steps]
    else:
        around = [multiple * target for multiple in _MULTIPLES if multiple * target < _LARGE[0]]
        grid = [at for at in (*around, *_LARGE) if at >= min(_SMALLEST, target)]
    wanted = sorted({*grid, target})
    points: list[tuple[float, float]] = []
    for at in wanted:
        try:
            points.append((at, accounting.epsilon(event, at, relation, near=near)))
        except NotPriceable:  # a delta too small for this accountant; the target itself was priced before
            continue
    if exact:
        points.append((accounting.delta(event, 0.0, relation), 0.0))
    points.sort()
    finite = [(at, price) for at, price in points if math.isfinite(price)]
    finite = finite[: 1 + sum(price > 0 for _, price in finite)]  # one point at epsilon = 0 says it all
    return PrivacyCurve(tuple(at for at, _ in finite), tuple(price for _, price in finite), exact)


def sure(epsilon: float) -> float:
    """How sure somebody becomes who was undecided and sees the odds shift by e^epsilon."""
    return 1 / (1 + math.exp(-epsilon)) if epsilon > -700 else 0.0
