"""Private gradient descent over blocks of units in turn, with noise that nearly cancels in the sums of gradients.

Solves min_x F(x) + r(x) over a constraint set, F = (1/n) sum_i f(x, xi_i).
Source: Kairouz, McMahan, Song, Thakkar, Thakurta, Xu 2021, Algorithm 1 (DP-FTRL).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import Feed
from privopt.curator.loops import ReleaseCall
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.ledger.events import Event, NoEvent, Parallel, Sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.drawable import require_drawable_sums
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import (
    LARGEST_DENSE,
    Participation,
    Strategy,
    banded,
    binary_tree,
    dense_optimum,
    independent,
    prefix_noise,
    square_root_toeplitz,
    unit_sensitivity,
)
from privopt.planning import descent_theory
from privopt.planning.notices import NOISE_IS_OFF, large_delta, long_steps
from privopt.planning.plan import Picture, Plan, line
from privopt.planning.task import Forecast, Instance
from privopt.problems.problem import Problem
from privopt.public import Public, Relation
from privopt.queries.slopes import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import Solver
from privopt.solvers.fields import choice, derived, guarded

# ---- Defaults, forecast and picture of descent with correlated noise ---------------------------------------
# Epochs and blocks make T = k b steps. The noise of the mean gradient of a whole run is that of one full-batch release
# bought with the whole budget, times `_excess_noise`: 2.1 for one epoch of 50 blocks, 1.04 for 8 epochs of 12. With
# that signal the rule of `descent_defaults` gives a number of steps, of which SHARE are taken: too many blocks cost far
# more than too few. Step size and momentum are those of full-batch descent for as many steps. Chosen by the excess of
# logistic regression on adult, randhie, compas and german at epsilon 0.3 to 3. Utility only.
EPOCHS = 8
SHARE = 0.75  # of the steps that full-batch descent with this signal would take
SMALLEST_BLOCK = 20


class CorrelatedIterate(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # x_t
    at: Float[Array, " *shape"]  # u_t = x_t + b (x_t - x_{t-1}), where the next gradient is taken
    average: Float[Array, " *shape"]  # of the iterates, with weights (t + 1)^2
    prefix: Float[Array, " *shape"]  # the released sum of the gradients so far
    time: Float[Array, ""]  # t
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves


class CorrelatedState(NamedTuple):
    """An iterate, and what one compiled loop serves for any value of."""

    iterate: CorrelatedIterate
    problem: Problem
    step_size: Float[Array, ""]
    momentum: Float[Array, ""]
    clip: Float[Array, ""]


@dataclass(frozen=True, kw_only=True)
class CorrelatedNoiseDescent(Solver):
    """Private gradient descent over disjoint blocks in turn, once or in several epochs, with correlated noise.

    For records that arrive in an order and are seen once or in rounds. Where who takes part in a step can be drawn in
    secret, sampled or full-batch descent is more accurate at the same price.

    Attributes:
        epochs: k, how often every block comes.
        blocks: b, how many disjoint blocks there are; T = k b steps.
        clip: C, the largest norm of one unit's gradient.
        step_size: eta, in params^2 / objective units.
        momentum: b in [0, 1), fixed.
        strategy: how the noise is correlated: "bands" (the square root, cut to b bands with columns of norm 1), whole
            "square-root", "optimum" (the least noise in one epoch, up to 512 steps), "tree", or "independent".
        returns: "weighted" (the mean of the iterates with weights (t + 1)^2) or "last".
        in_order: cut the blocks in the order in which the records were given; else at random. Replace-one only.
    Guarantee:
        One Gaussian release: every unit is in one block, so in k items of one stream, at least b items apart; the
        strategy has sensitivity 1 for that (see `PrefixSum`). For any data, loss and parameters, under the curator's
        relation. There is no amplification by sampling, so nothing rests on the order of the blocks being secret.
    Differs from the paper:
        a matrix factorisation in place of the tree, for one epoch and for several; fixed momentum and an average;
        penalty and set enter by proximal steps.
    Source:
        Kairouz, McMahan, Song, Thakkar, Thakurta, Xu 2021, Algorithm 1; Choquette-Choo, Ganesh, McKenna, McMahan, Rush,
        Thakurta, Xu 2023 for bands and epochs.
    """

    name: ClassVar[str] = "correlated-noise-descent"

    epochs: int = derived(at_least=1)
    blocks: int = derived(at_least=1)
    clip: float = derived(above=0)
    step_size: float = derived(above=0)
    momentum: float = derived(at_least=0, below=1)
    strategy: Literal["bands", "square-root", "optimum", "tree", "independent"] = choice("bands")
    returns: Literal["weighted", "last"] = choice("weighted")
    in_order: bool = False

    def default_epochs(self, instance: Instance) -> int:
        """k; with the noise off as many as a full-batch descent has steps."""
        if instance.is_private:
            return EPOCHS
        return descent_theory.default_steps(instance, self.default_step_size(instance))

    def default_blocks(self, instance: Instance) -> int:
        """b, see the comment above; one block with the noise off, that is full-batch descent."""
        if not instance.is_private:
            return 1
        steps = descent_theory.default_steps(instance, self.default_step_size(instance))
        most = max(1, instance.public.n // SMALLEST_BLOCK)
        first = min(max(1, round(steps / self.epochs)), most)
        steps *= SHARE / math.sqrt(_excess_noise(self.epochs, first))  # a signal to the power of a half
        return min(max(1, round(steps / self.epochs)), most)

    def default_clip(self, instance: Instance) -> float:
        return descent_theory.default_clip(instance)

    def default_step_size(self, instance: Instance) -> float:
        """eta of full-batch descent."""
        return descent_theory.descent_setting(instance, steps=1).step_size

    def default_momentum(self, instance: Instance) -> float:
        """b of full-batch descent with as many steps."""
        return descent_theory.descent_setting(instance, steps=self.epochs * self.blocks).momentum

    @property
    def steps(self) -> int:
        """T = k b."""
        return self.epochs * self.blocks

    def longest_step(self, instance: Instance) -> float:
        """The stability limit of gradient steps."""
        return self.gradient_limit(instance)

    def forecast(self, instance: Instance) -> Forecast:
        """No prediction; notices on what was guessed, and on steps that are too long."""
        if not instance.is_private:
            return Forecast(notices=(NOISE_IS_OFF,))
        smoothness = descent_theory.smoothness(instance) + instance.penalty_smoothness
        found = large_delta(instance) + long_steps(self.step_size, smoothness)
        if instance.has_own_loss:
            found += (
                "step size and clip of a user-written loss, where not given, are guesses from the row bound.",
            )
        return Forecast(notices=found)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Blocks need two units each, and an order needs records that are all there."""
        del problem
        if self.is_set("blocks") and self.blocks > public.n // 2:
            return f"{self.blocks} blocks of n = {public.n} units would have fewer than 2 units each: use fewer blocks"
        if self.in_order and (public.relation is not Relation.REPLACE_ONE or public.unit != "record"):
            return "blocks in order need records under replace-one: use in_order=False"
        known = self.is_set("epochs") and self.is_set("blocks")
        if self.strategy == "optimum" and known and self.steps > LARGEST_DENSE:
            return (
                f"the optimal strategy is for at most {LARGEST_DENSE} steps, and epochs x blocks are {self.steps}: use "
                "strategy='bands'"
            )
        return None

    def memory_bytes(self, problem: Problem, public: Public) -> int:
        """The data, their blocks, and the correlated noise of as many steps as there are bands."""
        rows = self.blocks if self.strategy == "bands" else self.steps
        stored = super().memory_bytes(problem, public)
        return 2 * stored + 8 * rows * math.prod(problem.parameter_shape(public))

    def stream(self) -> PrefixSum:
        """The mechanism with hidden state: the noise of all T sums."""
        return PrefixSum(
            strategy=self._noise_strategy(),
            noise_multiplier=self.noise_multiplier,
            participation=self._participation(),
        )

    def announcement(self, instance: Instance) -> Plan:
        """The plan, refused where there is no room for the noise of the sums."""
        entries = math.prod(instance.problem.parameter_shape(instance.public))
        require_drawable_sums(self.noise_multiplier, entries, self.stream)
        return super().announcement(instance)

    def event(self, public: Public) -> Event:
        """The stream, charged when it opens; the blocks that feed it cost nothing of their own."""
        del public
        return Sequence((Gaussian(self.noise_multiplier).event(), Parallel((NoEvent(),) * self.blocks)))

    def releases(self) -> int:
        """A sum a step, and the opening of the stream."""
        return self.steps + 1

    def passes(self) -> float:
        """One an epoch."""
        return float(self.epochs)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1, with momentum and averaging: the increments of the released sum move the iterate."""
        stream = curator.stream("gradient sums", self.stream(), start.shape)  # charges for all of it
        feed = Feed(stream, curator.blocks(self.blocks, in_order=self.in_order))
        zero = jnp.zeros_like(start)
        state = CorrelatedState(
            iterate=CorrelatedIterate(start, start, start, zero, jnp.zeros(()), jnp.asarray(True)),
            problem=problem,
            step_size=jnp.asarray(self.step_size, jnp.float64),
            momentum=jnp.asarray(self.momentum, jnp.float64),
            clip=jnp.asarray(self.clip, jnp.float64),
        )
        end = curator.iterate(CorrelatedStep(), state, self.steps, feeds={"gradients": feed}).iterate
        params = end.params if self.returns == "last" else problem.constraint.project(end.average)
        sums = curator.transcript[len(curator.transcript) - 1]
        pictures = () if sums.scale is None else self._noise_picture(sums.scale, sums.sensitivity)
        return Outcome(params, ending(end.finite), pictures=pictures)

    def _participation(self) -> Participation:
        """Every unit is in one block, and every block in one item an epoch."""
        return Participation(separation=self.blocks, most=self.epochs)

    def _noise_strategy(self) -> Strategy:
        """The strategy that `strategy` names, of sensitivity 1 for the epochs."""
        match self.strategy:
            case "bands":
                made: Strategy = banded(self.steps, self.blocks)
            case "optimum":
                made = dense_optimum(np.ones(self.steps))
            case "square-root":
                made = square_root_toeplitz(self.steps)
            case "tree":
                made = binary_tree(self.steps)
            case _:
                made = independent(self.steps)
        return unit_sensitivity(made, self._participation())

    def _noise_picture(
        self, scales: NDArray[np.float64], sensitivities: NDArray[np.float64]
    ) -> tuple[Picture, ...]:
        """The noise of the released sums beside independent noise of the same price; nothing with the noise off.

        Args:
            scales: standard deviation of the noise on each sum.
            sensitivities: of the items.
        """
        if not self.noise_multiplier > 0:
            return ()
        alone = self.noise_multiplier * math.sqrt(self.epochs) * np.sqrt(np.cumsum(sensitivities**2))
        steps = range(1, len(scales) + 1)
        return (
            Picture(
                title="Noise of the released sums of gradients",
                caption="Standard deviation of each coordinate, step by step. Correlated noise nearly cancels in the "
                "sums, along which the parameters move; independent noise at the same price adds up.",
                x="step",
                y="standard deviation",
                series=(
                    line("correlated, as added", scales.tolist(), steps),
                    line("independent", alone.tolist(), steps),
                ),
            ),
        )


@dataclass(frozen=True)
class CorrelatedStep:
    """One step, hashable by value so that all configurations share one compiled loop."""

    def __call__(self, state: CorrelatedState, release: ReleaseCall) -> CorrelatedState:
        """G_t = the released sum of the gradients on the blocks so far, then a step along G_t - G_{t-1}."""
        query = ClippedGradient(loss=state.problem.loss, at=state.iterate.at, clip=state.clip)
        prefix = release(query, into="gradients")
        moved = _step(
            state.iterate,
            prefix,
            problem=state.problem,
            step_size=state.step_size,
            momentum=state.momentum,
        )
        return state._replace(iterate=moved)


@jax.jit
@guarded
def _step(
    iterate: CorrelatedIterate, prefix: Array, *, problem: Problem, step_size: Array, momentum: Array
) -> CorrelatedIterate:
    """x = prox(u - eta (g + grad r(u))), then the next u and the average."""
    params = problem.proximal_step(iterate.at, prefix - iterate.prefix, step_size)
    count = iterate.time + 1.0
    weight = 6.0 * count / ((count + 1.0) * (2.0 * count + 1.0))  # count^2 over the sum of 1, 4, 9, ...
    return iterate._replace(
        params=params,
        at=params + momentum * (params - iterate.params),
        average=iterate.average + weight * (params - iterate.average),
        prefix=prefix,
        time=count,
    )


def _excess_noise(epochs: int, blocks: int) -> float:
    """The noise of the sum of all gradients of a run, over that of one full-batch release of the same price."""
    cut = banded(epochs * blocks, blocks)
    return float(prefix_noise(cut)[-1]) / math.sqrt(epochs)
