"""Gradient descent that stops by itself: a stream of gradient norms against a threshold between Gaussian releases.

    for t = 1, 2, ..., T:   stop if |grad F(w)| + noise < threshold + noise drawn once
                            w <- w - eta (grad F(w) + Gaussian noise)

Source:
    Lowy, Liu, Asi 2024, Algorithm 4 (AboveThreshold, used reversed and with its threshold noise drawn once), between
    Gaussian releases as in their Algorithm 2; Lyu, Su, Li 2017, Algorithm 1.
"""

from dataclasses import dataclass

from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.events import Event, Repeated, Sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.tests import AboveThreshold
from privopt.problems.glm import GLMLoss
from privopt.public import Public
from privopt.queries.slopes import ClippedGradient, GradientNorm
from privopt.result import Result, Status


@dataclass(frozen=True, kw_only=True)
class DescentUntilFlat:
    """The solver of this file.

    Attributes:
        loss: a generalised-linear loss.
        steps: T, the most steps.
        step_size: eta.
        clip: C, of a gradient.
        test: reversed, its threshold in gradient units.
        noise: of a gradient.
    Guarantee:
        The stream is pure, charged once whatever its number of answers; at most T Gaussian releases.
    """

    loss: GLMLoss
    steps: int
    step_size: float
    clip: float
    test: AboveThreshold
    noise: Gaussian

    def event(self, public: Public) -> Event:
        del public
        return Sequence((self.test.event(), Repeated(self.noise.event(), self.steps)))

    def solve(self, curator: Curator, start: Array) -> Result:
        params = start
        norms = curator.stream("gradient norms", self.test)
        for _ in range(self.steps):
            if norms.ask("answer", GradientNorm(loss=self.loss, at=params, clip=self.clip)):
                break
            gradient = curator.release(ClippedGradient(loss=self.loss, at=params, clip=self.clip), self.noise)
            params = params - self.step_size * gradient
        return Result(params, Status.FINISHED, curator.transcript)
