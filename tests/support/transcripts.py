"""Every transcript of a game solver, with its probability on two data sets: the real solver, draws forced one by one.

A run of a solver over `ForcedDraws` draws what it is told. How likely that was is found from the mechanism itself, as
the uniform number at which its answer turns from one vertex to the next: nothing is computed a second time here.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from privopt.curator.local import LocalCurator
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.queries.base import MeanQuery

ALMOST_ONE = 1.0 - 2.0**-53
ORDERS = (1.01, 1.5, 2.0, 4.0, 8.0)


class ForcedUniforms:
    """Uniform numbers that are given, one for each draw."""

    def __init__(self, values):
        self.values = values

    def words(self, shape):
        values = np.asarray(self.values, np.float64).reshape(-1, *(1,) * (len(shape) - 1))
        return (np.broadcast_to(values, shape) * 2.0**53).astype(np.int64)


@dataclass
class Notes:
    """What runs of one data set share.

    Attributes:
        values: means of a batch at points, which many runs ask for.
        chances: of the first vertex, at a draw after a prefix of draws.
    """

    values: dict = field(default_factory=dict)
    chances: dict = field(default_factory=dict)


class ForcedDraws(LocalCurator):
    """A curator whose streams of two vertices draw what it is told, in order; it notes how likely the first one was.

    Attributes:
        drawn: what was drawn at each request so far.
        chances: of the first vertex, at each request.
        mechanisms: those of the streams, in the order of their opening.
    """

    def __init__(self, units, outcomes, notes, seed=0):
        super().__init__(units, Unlimited(units.public.relation), noise=NoiseSource(seed))
        self.outcomes, self.notes = iter(outcomes), notes
        self.drawn, self.chances, self.mechanisms = [], [], []

    def _child(self, private_engine, ledger):
        child = object.__new__(ForcedDraws)
        LocalCurator.__init__(child, private_engine, ledger, noise=self._noise, transcript=self.transcript)
        child.notes, child.outcomes = self.notes, iter(())
        return child

    def private_value(self, query, sampling, private_draw):
        if not isinstance(query, MeanQuery):
            return super().private_value(query, sampling, private_draw)
        leaves, structure = jax.tree.flatten(query)
        where = tuple(block.index for block in self.lineage)
        key = (where, structure, tuple(np.asarray(leaf).tobytes() for leaf in leaves))
        if key not in self.notes.values:
            self.notes.values[key] = super().private_value(query, sampling, private_draw)
        return self.notes.values[key]

    def _open_stream(self, name, mechanism, shape):
        self.mechanisms.append(mechanism)
        assert shape == (2,), "two vertices a player"
        return super()._open_stream(name, mechanism, shape)

    def _answer_stream(self, request, state):
        if request.query is not None:
            return super()._answer_stream(request, state)
        mechanism, key = request.mechanism, tuple(self.drawn)
        if key not in self.notes.chances:
            self.notes.chances[key] = chance_of_first(mechanism, state)
        self.chances.append(self.notes.chances[key])
        count = len(draw(mechanism, copied(state), 0.0))
        wanted = next(self.outcomes, (0,) * count)
        found = mechanism.draw(state, ForcedUniforms([ALMOST_ONE if index else 0.0 for index in wanted]))
        assert tuple(found.tolist()) == tuple(wanted)
        self.drawn.append(tuple(wanted))
        return found


def copied(state):
    """Another state like it; a state forbids copies, so that nobody leaves with one."""
    other = object.__new__(type(state))
    for kind in type(state).__mro__:
        for name in getattr(kind, "__slots__", ()):
            value = getattr(state, name)
            object.__setattr__(other, name, value.copy() if isinstance(value, np.ndarray) else value)
    return other


def draw(mechanism, state, uniform):
    """What a mechanism draws if all of its uniform numbers are this one."""
    return mechanism.draw(state, ForcedUniforms([uniform]))


def chance_of_first(mechanism, state):
    """The uniform number at which the draw turns from the first vertex to the second."""
    low, high = 0.0, 1.0
    for _ in range(32):  # to 1e-10, of chances of 1e-3 or more
        middle = 0.5 * (low + high)
        first = int(draw(mechanism, copied(state), middle)[0]) == 0
        low, high = (middle, high) if first else (low, middle)
    return 0.5 * (low + high)


@dataclass
class Tree:
    """The chances of a solver's draws on one data set, after every prefix of draws.

    Attributes:
        chances: by the tuple of all earlier draws, of the first vertex.
        draws: how many vertices each request draws.
        mechanisms: of the streams.
    """

    chances: dict[tuple, float]
    draws: tuple[int, ...]
    mechanisms: list


def tree_of(play: Callable[[LocalCurator], object], units, *, players: int = 2, seed: int = 0) -> Tree:
    """Run a solver on every transcript but for the draws of its last step, whose chances do not need a run each.

    Args:
        play: runs the solver over a curator.
        units: the data.
        players: how many streams draw at the last step.
        seed: of who is in which batch.
    """
    notes = Notes()
    first = ForcedDraws(units, (), notes, seed)
    play(first)
    draws = tuple(len(one) for one in first.drawn)
    before = draws[: len(draws) - players]
    for outcomes in itertools.product(*(list(_sequences(count)) for count in before)):
        play(ForcedDraws(units, outcomes, notes, seed))
    # At the last step a player's draws do not change another's chances: those after zeros stand for all.
    return Tree(notes.chances, draws, first.mechanisms)


def _sequences(count: int) -> Iterator[tuple[int, ...]]:
    return itertools.product((0, 1), repeat=count)


def divergence(one: Tree, other: Tree, order: float, players: int = 2) -> float:
    """The Renyi divergence of an order between two data sets' transcripts."""
    assert one.draws == other.draws
    last = len(one.draws) - players

    def moment(prefix: tuple, position: int) -> float:
        if position == len(one.draws):
            return 1.0
        p, q = one.chances[prefix], other.chances[prefix]
        first, second = (a**order * b ** (1.0 - order) for a, b in ((p, q), (1.0 - p, 1.0 - q)))
        count = one.draws[position]
        if position >= last:
            return (first + second) ** count * moment((*prefix, (0,) * count), position + 1)
        return math.fsum(
            first ** (count - sum(outcome))
            * second ** sum(outcome)
            * moment((*prefix, outcome), position + 1)
            for outcome in _sequences(count)
        )

    return math.log(moment((), 0)) / (order - 1.0)


def largest_cost(one: Tree, other: Tree, orders: Sequence[float] = ORDERS) -> float:
    """The largest D_a / a, in both directions: what zCDP bounds by rho."""
    return max(
        divergence(left, right, order) / order
        for left, right in ((one, other), (other, one))
        for order in orders
    )
