"""The player who weights the groups against each other: more weight where losses were larger, from noisy releases.

    few groups    y_t in proportion to sqrt(share) exp(ascent * sum of the noisy losses so far), moved into Y for CVaR
    many groups   y_t = the shares of K groups drawn from softmax(inverse temperature * mean of the hidden group losses)

Source:
    Gonzalez, Guzman, Paquette 2024, Algorithm 1 (draws); Sagawa, Koh, Hashimoto, Liang 2020 (exponentiated ascent).
"""

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import Stream
from privopt.later import jnp
from privopt.ledger.events import Event, Repeated
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.planning.plan import Finding, Picture, line
from privopt.problems.grouped_loss import GroupedLoss
from privopt.public import Public
from privopt.queries.groups import GroupLosses, GroupLossScores

Weights = NDArray[np.float64]


class Play(abc.ABC):
    """A player in the middle of a run. All of it follows from releases.

    Attributes:
        history: the weights of each step so far.
    """

    def __init__(self) -> None:
        self.history: list[Weights] = []

    @abc.abstractmethod
    def weights(self) -> Weights:
        """y_t, once a step."""

    @abc.abstractmethod
    def see(self, at: Any) -> None:
        """Look at the losses at the other player's point."""

    @property
    def measured(self) -> list[Weights]:
        """The noisy losses of the groups at each step, where they were released."""
        return []


@final
@dataclass(frozen=True, kw_only=True)
class GroupPlayer:
    """How the groups are weighted, and what it costs.

    Attributes:
        steps: T.
        noise_multiplier: of a release, were all T of them one: the player costs rho = 1 / (2 noise_multiplier^2).
        ascent: step of the exponentiated ascent, in one over units of the loss.
        draws: K, groups drawn a step; 0 for noisy losses.
    """

    steps: int
    noise_multiplier: float
    ascent: float
    draws: int = 0

    def each(self) -> Gaussian:
        """The mechanism of each noisy vector of losses."""
        return Gaussian(self.noise_multiplier * math.sqrt(self.steps))

    def sampler(self, public: Public) -> VertexSampler:
        """The mechanism of all draws: inverse temperatures s sqrt(t), on the linearly weighted mean of the losses.

        In units of one over the range by which a unit moves a vector of losses: rho = K sum_t s^2 t / 8.
        """
        steps, rho = self.steps, 0.5 / self.noise_multiplier**2
        scale = math.sqrt(16.0 * rho / (self.draws * max(steps * (steps - 1), 1)))
        return VertexSampler.weighted_average(
            step_weights=[s + 1.0 for s in range(steps - 1)],
            inverse_temperatures=[scale * math.sqrt(t) for t in range(steps)],
            draws=self.draws,
            half_range=4.0
            * public.n,  # of a mean over its sensitivity: at most 2 n, and room for a block drawn larger
            sensitivities=1.0,
        )

    def event(self, public: Public) -> Event:
        """Everything the player asks for."""
        return self.sampler(public).event() if self.draws else Repeated(self.each().event(), self.steps)

    def releases(self) -> int:
        """A vector a step; or draws a step, and the opening of the stream."""
        return self.steps + (1 if self.draws else 0)

    def open(self, curator: Curator, loss: GroupedLoss, shares: Weights) -> Play:
        """Begin to play, with public or released shares."""
        if not self.draws:
            return _NoisyPlay(self, curator, loss, shares)
        return _DrawnPlay(
            curator.stream("draws of groups", self.sampler(curator.public), (loss.groups,)), loss, shares
        )


class _NoisyPlay(Play):
    """Weights that follow released losses."""

    def __init__(self, player: GroupPlayer, curator: Curator, loss: GroupedLoss, shares: Weights) -> None:
        super().__init__()
        self._player, self._curator, self._loss, self._shares = player, curator, loss, shares
        self._sum = np.zeros(loss.groups)
        self._losses: list[Weights] = []

    def weights(self) -> Weights:
        self.history.append(self._loss.play(self._player.ascent * self._sum, self._shares))
        return self.history[-1]

    def see(self, at: Any) -> None:
        released = self._curator.release(GroupLosses(loss=self._loss, at=at), self._player.each())
        self._losses.append(self._loss.mean_losses(released, self._shares))
        self._sum = self._sum + self._losses[-1]

    @property
    def measured(self) -> list[Weights]:
        return self._losses


class _DrawnPlay(Play):
    """Weights that are shares of draws; the losses stay hidden."""

    def __init__(self, stream: Stream, loss: GroupedLoss, shares: Weights) -> None:
        super().__init__()
        self._stream, self._loss, self._shares = stream, loss, shares
        self._steps = len(self._sampler().temperatures)

    def weights(self) -> Weights:
        drawn = np.asarray(self._stream.ask("draw"), np.int64)
        counts = np.bincount(drawn, minlength=self._loss.groups).astype(np.float64)
        self.history.append(counts / np.sum(counts))
        return self.history[-1]

    def see(self, at: Any) -> None:
        if len(self.history) == self._steps:
            return  # nothing is drawn after this
        loss, divisors = self._loss, self._loss.divisors(self._shares)
        asked = GroupLossScores(
            loss=loss,
            at=at,
            divisors=jnp.asarray(divisors),
            constants=jnp.asarray(0.5 * loss.cap * self._shares / divisors),
        )
        self._stream.ask("add", asked)

    def _sampler(self) -> VertexSampler:
        mechanism = self._stream.mechanism
        assert isinstance(mechanism, VertexSampler)
        return mechanism


# ------------------------------------------------------------------------------------------------------------
# What the releases of a run show about groups: how they were weighted, and whether anything was to be
# gained.


SURE = 2.0  # standard deviations from which on a difference is more than noise
NEAR = 0.1  # total variation below which weights are those of a plain mean
MOST_LINES = 4  # of a picture
MOST = 0.5  # share of the records from which on a group is what a plain mean is about


def findings(
    loss: GroupedLoss, shares: NDArray[np.float64], play: Play | None, noise: float
) -> Mapping[str, Finding]:
    """By name, what a run shows.

    Args:
        loss: of the groups.
        shares: public or released.
        play: the player at the end of the run; None where nobody weighted groups.
        noise: standard deviation of one released sum of a group's losses; 0 where they stayed hidden.
    """
    found: dict[str, Finding] = {}
    if loss.shares is None:
        found["group_shares"] = Finding(
            shares, "released share of the records in each group, in the order declared"
        )
    if play is None:
        return found
    history = np.asarray(play.history)
    found["group_weights"] = Finding(
        history, "weight of each group (column) in each step (row), from released losses or draws"
    )
    if play.measured:
        found["worst_group_excess"] = _excess(loss, shares, history, np.asarray(play.measured), noise)
    return found


def _excess(
    loss: GroupedLoss,
    shares: NDArray[np.float64],
    history: NDArray[np.float64],
    measured: NDArray[np.float64],
    noise: float,
) -> Finding:
    """Whether a group stood out while the weights followed the losses, and whether they changed what is minimised.

    Losses that the weights have made equal do not differ at the end; over all steps they did.
    """
    losses, weights = np.mean(measured, axis=0), np.mean(history, axis=0)
    spreads = noise / math.sqrt(len(measured)) / loss.divisors(shares)
    above = losses - float(shares @ losses)
    worst = int(np.argmax(above / np.maximum(spreads, 1e-300)))
    heaviest = int(np.argmax(weights))
    moved = 0.5 * float(np.sum(np.abs(weights - shares)))
    meaning = (
        f"how far the released loss of the group that stood out most (number {worst + 1} of those declared) was above "
        f"the mean over all records, averaged over the steps; its noise has standard deviation {spreads[worst]:.2g}, "
        f"and the weights moved by {moved:.2f} of 1 from the groups' shares"
    )
    if above[worst] <= SURE * spreads[worst]:
        meaning += ". No group clearly stood out of the noise: nothing to gain over a plain fit was seen at this budget"
    elif moved < NEAR:
        meaning += (
            ". The weights stayed near the shares: a plain fit minimises nearly the same mean, little to gain"
        )
    elif shares[heaviest] > MOST:
        meaning += (
            f". The group with most weight (number {heaviest + 1}) holds {shares[heaviest]:.0%} of the records: a "
            "plain fit minimises mostly its loss already, little to gain"
        )
    return Finding(float(above[worst]), meaning)


def weights_picture(history: NDArray[np.float64], names: Sequence[str] = ()) -> Picture:
    """How groups were weighted, step by step: the (at most four) groups with most weight.

    Args:
        history: (steps, groups), from releases.
        names: of the groups; by default their numbers.
    """
    known: list[str] = list(names) or [f"group {number + 1}" for number in range(history.shape[1])]
    most = sorted(np.argsort(-np.mean(history, axis=0), kind="stable")[:MOST_LINES].tolist())
    rest = history.shape[1] - len(most)
    others = f" {rest} groups with less weight are not drawn." if rest else ""
    return Picture(
        title="Weights of the groups",
        caption=(
            "Weight of each group at each step, from released noisy losses: where a group's loss was larger, its "
            f"weight grew.{others}"
        ),
        x="step",
        y="weight",
        series=tuple(
            line(known[place], history[:, place].tolist(), range(1, len(history) + 1)) for place in most
        ),
    )
