"""Single-pass online-to-nonconvex optimisation of capped-ReLU residuals through one stream of prefix sums.

Loss of a record (a, b), a in three dimensions: f(x) = |max(a . x, 0) - b|, nonsmooth and nonconvex, smoothed over a
ball of radius alpha. With u = a . z, T a coordinate of a uniform point of the unit ball, and F the distribution
function of u + alpha |a| T, the smoothed slope is

    E f'(u + alpha |a| T) = 1 - 2 F(b) + F(0),    b > 0,    P(T <= t) = 1/2 + (3 t - t^3) / 4.

Steps t = 0, ..., T - 1, each on its own disjoint batch, in periods of S:

    z_t = x_t + Delta_t / 2,   x_{t+1} = x_t + Delta_t
    item_t = mean clip_C(g_i(z_t)) at the start of a period, else mean clip_c(g_i(z_t) - g_i(z_{t-1}))
    g~_t = sum of the period's items, noise correlated over the period
    Delta_{t+1} = project(Delta_t - eta g~_t, |.| <= D)

and the output is the mean of z over each block of M steps.

Source:
    Kornowski, Liu, Talwar 2024, Algorithms 2 and 5, with exact smoothing in place of sampled points and a matrix
    factorisation in place of the tree: period noise std of prefix t is s_1 / mu at the start, then
    sqrt(s_1^2 + s_2^2 sum_{k < t} f_k^2 |column|^2) / mu with f the square-root Toeplitz coefficients.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from privopt.curator.base import Curator
from privopt.ledger.events import Event, NoEvent, Parallel, Sequence
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import block_diagonal, independent, square_root_toeplitz
from privopt.public import Public
from privopt.queries.base import RecordSum, clip_to_ball, query
from privopt.result import Result, Status


def smoothed_gradient(at, radius, private_features, private_target):
    """The gradient of one record's smoothed loss, in three dimensions."""
    private_length = jnp.sqrt(jnp.sum(private_features * private_features))
    private_width = radius * jnp.where(private_length > 0, private_length, 1.0)
    private_u = private_features @ at

    def distribution(level):
        private_t = jnp.clip((level - private_u) / private_width, -1.0, 1.0)
        return 0.5 + (3.0 * private_t - private_t**3) / 4.0

    return (1.0 - 2.0 * distribution(private_target) + distribution(0.0)) * private_features


@query
class SmoothedGradient(RecordSum):
    """Mean over units of the smoothed gradient at a point, each clipped to the l2 norm `clip`."""

    at: Float[Array, " d"]
    smoothing: float
    clip: float

    def radius(self):
        return self.clip

    def shape(self, public: Public) -> tuple[int, ...]:
        return (public.d,)

    def record_contribution(self, private_features, private_target):
        return smoothed_gradient(self.at, self.smoothing, private_features, private_target)


@query
class SmoothedDifference(RecordSum):
    """Mean over units of the difference of smoothed gradients at two points, each clipped to `clip`.

    Privacy:
        Both points are released; the clip is fixed beforehand, as correlated noise needs it.
    """

    at: Float[Array, " d"]
    anchor: Float[Array, " d"]
    smoothing: float
    clip: float

    def radius(self):
        return self.clip

    def shape(self, public: Public) -> tuple[int, ...]:
        return (public.d,)

    def record_contribution(self, private_features, private_target):
        return smoothed_gradient(
            self.at, self.smoothing, private_features, private_target
        ) - smoothed_gradient(self.anchor, self.smoothing, private_features, private_target)


@dataclass(frozen=True, kw_only=True)
class SinglePassO2NC:
    """The solver of this file.

    Attributes:
        steps: T.
        period: S.
        first_batch: units of the batch at a period's start.
        later_batch: units of every other batch.
        averaged: M, steps of an output block.
        radius: D, the longest step.
        step_size: eta.
        smoothing: alpha.
        clip: C, of a gradient.
        difference_clip: c, of a difference.
        noise_multiplier: 1 / mu.
    Guarantee:
        mu-GDP for any records: every unit is in one batch, every batch in one item of one stream.
    """

    steps: int
    period: int
    first_batch: int
    later_batch: int
    averaged: int
    radius: float
    step_size: float
    smoothing: float
    clip: float
    difference_clip: float
    noise_multiplier: float

    def batches(self) -> list[int]:
        """One size a step."""
        return [self.later_batch if t % self.period else self.first_batch for t in range(self.steps)]

    def stream(self) -> PrefixSum:
        """One stream for all periods: their strategies one after the other, each period's noise its own."""
        strategies = []
        for start in range(0, self.steps, self.period):
            differences = min(self.period, self.steps - start) - 1
            strategies += [independent(1)] + ([square_root_toeplitz(differences)] if differences else [])
        return PrefixSum(strategy=block_diagonal(*strategies), noise_multiplier=self.noise_multiplier)

    def sensitivities(self, public: Public) -> np.ndarray:
        """Of the items: factor * clip / batch, without the rounding that the curator adds."""
        clips = [self.difference_clip if t % self.period else self.clip for t in range(self.steps)]
        return public.relation.factor * np.asarray(clips) / np.asarray(self.batches())

    def event(self, public: Public) -> Event:
        del public
        return Sequence((self.stream().event(), Parallel((NoEvent(),) * self.steps)))

    def solve(self, curator: Curator) -> Result:
        stream = curator.stream("prefix sums", self.stream(), (curator.public.d,))
        x = step = anchor = prefix = before = jnp.zeros(curator.public.d, jnp.float64)
        visited = []
        for t, batch in enumerate(curator.blocks(self.batches())):
            z, x = x + step / 2.0, x + step
            if t % self.period == 0:
                item = SmoothedGradient(at=z, smoothing=self.smoothing, clip=self.clip)
                before = prefix  # the sum of all earlier periods, as released
            else:
                item = SmoothedDifference(
                    at=z, anchor=anchor, smoothing=self.smoothing, clip=self.difference_clip
                )
            prefix = jnp.asarray(stream.ask("add", item, on=batch))
            step = clip_to_ball(step - self.step_size * (prefix - before), self.radius)
            visited.append(z)
            anchor = z
        blocks = jnp.reshape(jnp.stack(visited), (-1, self.averaged, curator.public.d))
        return Result(jnp.mean(blocks, axis=1), Status.FINISHED, curator.transcript)


def period_noise(sensitivity_first: float, sensitivity_later: float, period: int, mu: float) -> list[float]:
    """The standard deviation of a period's released sums, from the formula of the module's docstring."""
    lags = [1.0]
    for k in range(1, period - 1):
        lags.append(lags[-1] * (1.0 - 1.0 / (2.0 * k)))
    column = sum(lag * lag for lag in lags)
    later = [sensitivity_later**2 * column * sum(lag * lag for lag in lags[:t]) for t in range(period)]
    return [math.sqrt(sensitivity_first**2 + variance) / mu for variance in later]
