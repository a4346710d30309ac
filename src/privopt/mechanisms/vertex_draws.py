"""Vertices drawn from the softmax of hidden scores: every probability is exact up to a tiny relative rounding.

Logits s_1, ..., s_d are drawn from in two levels, a block of about sqrt(d) vertices and then a vertex in it. Let u be
2^-53, F = 64 log 2, and l_i = max(s_i - max s, -F), in exact arithmetic.

**Claim.** Vertex i is drawn with a probability proportional to exp(l_i + r_i), where |r_i| <= `RELATIVE_ROUNDING`.

1. fl(s_i - max s) is within a factor 1 +- u of the difference, and rounding and clipping are monotone, so what is
   exponentiated is within F u <= 45 u of l_i. NumPy's exponential errs by less than four units in the last place, 8 u
   (its vector kernels promise that, libm one). Every mass m_i is therefore within 54 u of exp(l_i) in the logarithm,
   at most 1 and at least 2^-65, so it is a whole multiple of 2^-120.
2. The mass of a block is added up in two stages of at most 512 terms each. All terms are positive, so in whatever order
   they are added, the sum is within 1024 u of the sum of the masses in the logarithm.
3. From weights w_k, whole multiples of 2^-120, an index is drawn with whole numbers: cumulative sums C_k and a uniform
   number U of N = 212 bits give the index with C_(k-1) <= floor(U C / 2^N) < C_k, C the total. Of the 2^N numbers,
   2^N w_k / C fall on k, up to one. As C / w_k <= 2^36 2^65, that is a relative error of 2^-111: far below u.
4. So p_i = (m_B / sum of all m_B) (m_i / sum of m_j in B), up to 2^-110, with B the block of i, and
   r_i = 54 u + 1024 u + u at most.

What does not have the same sign or size on both data sets is never a loop's length, an exception or a warning: numbers
that are not finite count as the least.

**Privacy of a draw.** If a unit moves s by a vector v, then it moves s - max s by v - c with min v <= c <= max v, whose
entries lie in an interval of length range(v) that holds 0. Clipping from below moves every entry between 0 and what it
was: l moves within that interval too. So log p moves within an interval of length range(v) + 4 RELATIVE_ROUNDING, up to
a constant for the normaliser: the draw, as it is carried out, is (range(v) + 4 RELATIVE_ROUNDING)-bounded range. No
part of delta is spent on rounding, and delta may be 0. The floor costs utility only: vertices further than F below the
best are drawn as if they were F below, all together with a probability of at most d 2^-64.

Source:
    Devroye 1986, section III.2 (inversion). Two levels cost d + draws sqrt(d). Bounded range: Dong et al. 2020.
    Summation of positive terms: Higham 2002, section 4.2. The relative bound, and putting it into the range, is ours.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Any, ClassVar, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.ledger.events import Event, NonPrivateEvent
from privopt.mechanisms.base import HiddenState, Request, StreamMechanism
from privopt.mechanisms.noise import Noise, Shape

RELATIVE_ROUNDING = 1100 * 2.0**-53
WORDS = 4  # words of 53 bits that make one number of 212 bits
MOST_VERTICES = 2**36

_FLOOR = -64 * math.log(2.0)
_SCALE = 2.0**120
_BITS = 53 * WORDS


def softmax_draws(private_logits: NDArray[np.float64], words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw vertices with probability proportional to the exponentials of their logits.

    Args:
        private_logits: one a vertex.
        words: independent integers, uniform on 0, ..., 2^53 - 1, shape (draws, 2, WORDS).
    Privacy:
        See the module.
    """
    with np.errstate(all="ignore"):  # a warning must not depend on the data
        private_masses = _masses(private_logits)
        private_blocks = _whole_numbers(private_masses.sum(axis=-1).sum(axis=-1))
    private_within: dict[int, list[int]] = {}
    width = private_masses.shape[1] * private_masses.shape[2]
    indices = np.empty(len(words), dtype=np.int64)
    for draw, (first, second) in enumerate(_numbers(words)):
        block = _inverse_cdf(private_blocks, first)
        if block not in private_within:
            private_within[block] = _whole_numbers(private_masses[block].ravel())
        indices[draw] = block * width + _inverse_cdf(private_within[block], second)
    return indices


def chosen_below(words: NDArray[np.int64], counts: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Which of so many released plays, for words as in `softmax_draws`. All of them may be seen: it hides nothing."""
    return (words * 2.0**-53 * counts).astype(np.int64)


def _masses(private_logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(max(logit - largest, -F)), laid out as (blocks, side, side) with zeros at the end."""
    size = len(private_logits)
    side = math.ceil(size**0.25 - 1e-9)
    blocks = -(-size // side**2)
    private_laid = np.zeros(blocks * side**2)
    private_used = private_laid[:size]
    np.subtract(private_logits, np.fmax.reduce(private_logits), out=private_used)
    np.fmax(private_used, _FLOOR, out=private_used)  # of a number and NaN, the number
    np.exp(private_used, out=private_used)
    return private_laid.reshape(blocks, side, side)


def _whole_numbers(private_weights: NDArray[np.float64]) -> list[int]:
    """Cumulative sums of weights, in units of 2^-120: exact."""
    return list(accumulate(int(weight) for weight in (private_weights * _SCALE).tolist()))


def _numbers(words: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Two uniform numbers of 212 bits for each draw."""
    return [(_joined(first), _joined(second)) for first, second in words.tolist()]


def _joined(words: list[int]) -> int:
    number = 0
    for word in words:
        number = (number << 53) | word
    return number


def _inverse_cdf(private_cumulative: list[int], number: int) -> int:
    """The index on which a uniform number falls; never one of weight 0."""
    return bisect_right(private_cumulative, (number * private_cumulative[-1]) >> _BITS)


# ------------------------------------------------------------------------------------------------------------
# The best vertex in place of a drawn one: what the streams of drawn vertices become when the noise is off.


class BestVertexState(HiddenState):
    """The cumulative scores by item, as far as later items refer to them, and the best vertex of each step."""

    __slots__ = ("added", "best", "private_scores")

    def __init__(self, vertices: int) -> None:
        self.private_scores = {-1: np.zeros(vertices)}
        self.added = 0
        self.best: list[int] = []


@dataclass(frozen=True, kw_only=True)
class BestVertex(StreamMechanism):
    """Releases the vertex of the least score, the first of equals, as often as vertices would be drawn.

    Item i is added, times its weight, to the scores that `follows[i]` had; a step shows the scores of the last item.

    Args:
        weights: of the items.
        follows: for each item an earlier one, or -1 for scores of zero.
        draws: how often each step releases its vertex.
        mixture: whether a step releases the vertices of random steps so far in place of its own.
    Privacy:
        None: it protects nobody, and says so.
    """

    exact: ClassVar[bool] = True  # there is no noise
    requests: ClassVar[Mapping[str, Request]] = MappingProxyType(
        {"add": Request(fed=True, releases=False), "draw": Request(fed=False)}
    )
    norm: ClassVar[str] = "range"

    weights: tuple[float, ...]
    follows: tuple[int, ...]
    draws: tuple[int, ...]
    mixture: bool = False

    def __post_init__(self) -> None:
        if len(self.follows) != len(self.weights) or any(
            not -1 <= before < item for item, before in enumerate(self.follows)
        ):
            raise ValueError("follows must hold an earlier item, or -1, for each weight.")
        if not all(math.isfinite(weight) for weight in self.weights):
            raise ValueError("weights must be finite.")

    @classmethod
    def of_sums(cls, weights: tuple[float, ...], draws: tuple[int, ...], *, mixture: bool = False) -> Any:
        """Each step shows the weighted sum of all items so far."""
        return cls(weights=weights, follows=tuple(range(-1, len(weights) - 1)), draws=draws, mixture=mixture)

    def event(self) -> Event:
        """Nothing is protected."""
        return NonPrivateEvent()

    def admits(self, items: frozenset[int]) -> bool:
        """Everything: nothing is protected."""
        del items
        return True

    def open(self, noise: Noise, shape: Shape) -> BestVertexState:
        """Start with scores of zero; `shape` is (number of vertices,)."""
        del noise
        return BestVertexState(shape[0])

    def add(
        self, state: BestVertexState, noise: Noise, private_item: ArrayLike, sensitivity: SupportsFloat
    ) -> None:
        """Add the next item; nothing is released."""
        del noise, sensitivity
        item = state.added
        private_before = state.private_scores[self.follows[item]]
        private_step = self.weights[item] * np.asarray(private_item, np.float64)
        still = {item, *self.follows[item + 1 :]}
        state.private_scores[item] = private_before + private_step
        state.private_scores = {
            key: private_kept for key, private_kept in state.private_scores.items() if key in still
        }
        state.added += 1

    def draw(self, state: BestVertexState, noise: Noise) -> NDArray[np.int64]:
        """Release the best vertex of the next step."""
        step = len(state.best)
        state.best.append(int(np.argmin(state.private_scores[state.added - 1])))
        count = self.draws[step]
        if not self.mixture:
            return np.full(count, state.best[-1], np.int64)
        chosen = chosen_below(noise.words((count,)), len(state.best))
        return np.asarray(state.best, np.int64)[chosen]
