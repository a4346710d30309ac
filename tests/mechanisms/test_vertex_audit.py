"""Exact audits of streams of drawn vertices: all transcripts, on all neighbours, against the price."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.scale_checks import softmax

from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.vertex_stream import VertexSampler, VertexStream, VertexTable

ORDERS = (1.01, 1.5, 2.0, 4.0, 8.0)
Item = Callable[[int, tuple[int, ...]], NDArray[np.float64]]


def law(stream: VertexStream, item: Item, needed: tuple[int, ...]) -> NDArray[np.float64]:
    """The probabilities of all transcripts of a stream of two vertices; `item(s, drawn)` is what is added as item s.

    They are read off the stream's own hidden scores. `needed[t]` items are added before step t.
    """
    noise = NoiseSource(seed=95)
    probabilities = []
    for transcript in itertools.product((0, 1), repeat=stream.steps):
        state, probability, parts = stream.open(noise, (2,)), 1.0, []
        for step, index in enumerate(transcript):
            while state.added < needed[step]:
                stream.add(state, noise, item(state.added, transcript[:step]), 1.0)
            parts.append(softmax(stream._logits(state, step)))
            probability *= (np.mean(parts, axis=0) if stream.mixture else parts[-1])[index]
            stream.draw(state, noise)
        probabilities.append(probability)
    assert math.fsum(probabilities) == pytest.approx(1.0)
    return np.array(probabilities)


def divergence(laws: list[NDArray[np.float64]]) -> float:
    """The largest D_a / a over orders and ordered pairs: what rho must bound."""
    return max(
        math.log(np.sum(p**a * q ** (1 - a))) / (a - 1) / a
        for p, q in itertools.permutations(laws, 2)
        for a in ORDERS
    )


def pure_loss(laws: list[NDArray[np.float64]]) -> float:
    return max(float(np.max(np.log(p / q))) for p, q in itertools.permutations(laws, 2))


def with_record(table: NDArray[np.float64], present: tuple[int, ...]) -> Item:
    """An item is 0 but for one record, whose vector depends on the vertex drawn last."""

    def item(s: int, drawn: tuple[int, ...]) -> NDArray[np.float64]:
        vector = table[:, drawn[-1] if drawn else 0]
        return vector if s in present else 0 * vector

    return item


RECORDS = [np.array([[0.0, 0.5], [-0.5, 0.0]]), np.array([[0.25, -0.25], [-0.25, 0.25]])]


@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize("patterns", [((0, 1, 2),), ((0,), (1,), (2,)), ((0, 2), (1,))])
def test_a_sampler_costs_what_all_transcripts_show(
    patterns: tuple[tuple[int, ...], ...], mixture: bool
) -> None:
    stream = VertexSampler(
        item_weights=(0.8, 1.0, 0.6),
        temperatures=(1.0, 1.0, 0.4, 0.9),
        draws=(1, 1, 1, 1),
        participation=patterns,
        largest_item=0.5,
        mixture=mixture,
    )
    found = []
    for pattern in patterns:
        laws = [
            law(stream, with_record(sign * record, pattern), (0, 1, 2, 3))
            for record in RECORDS
            for sign in (1, -1)
        ]
        ranges = stream.range_bounds(pattern)
        found.append(divergence(laws))
        assert found[-1] <= np.sum(ranges**2) / 8
        assert pure_loss(laws) <= np.sum(ranges)
    assert max(found) <= stream.rho()
    if not mixture:  # the price of a mixture counts the choice of its part as known
        assert max(found) > stream.rho() / 1.5  # half the range would be a quarter of the price


def test_a_tree_costs_what_all_transcripts_show() -> None:
    """Items 0 | 0 1 | 0 2 | 0 2 3 at the four leaves of a tree of depth 2, each of its own batch."""
    rows = ((0,), (0, 1), (0, 2), (0, 2, 3))
    stream = VertexTable(
        weights=tuple(tuple((item, 0.5 if item else 0.7) for item in row) for row in rows),
        draws=(1,) * 4,
        participation=VertexTable.one_item(4),
        largest_item=0.5,
    )
    for item in range(4):
        laws = [
            law(stream, with_record(sign * record, (item,)), (1, 2, 3, 4))
            for record in RECORDS
            for sign in (1, -1)
        ]
        allowed = float(np.sum(stream.range_bounds((item,)) ** 2)) / 8
        assert allowed / 1.5 < divergence(laws) <= allowed
        assert pure_loss(laws) <= np.sum(stream.range_bounds((item,)))
    assert stream.rho() == pytest.approx(4 * 0.7**2 / 8, rel=1e-9)
