"""The same program on two data sets in lockstep: both are given the same answers, and what tells them apart is noted.

Each side runs in a thread of its own, through the package's own entry points. At every release the two meet: they show
what they ask for and the value before noise, one answer is drawn for the left one, and both go on with it. A program
that is post-processing of its releases cannot tell that it was not alone. One that looks past them asks for something
else, stops elsewhere, or ends elsewhere, and is caught at that.
"""

import math
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.special import log_ndtr

from privopt.attacks.confidence import CONFIDENCE, largest_refuted, mean_is_above_one
from privopt.attacks.laws import Law, Lean, choice, law_of
from privopt.curator import loops
from privopt.curator.audit import distance, ratio
from privopt.curator.handles import Feed, StreamRequest
from privopt.curator.local import LocalCurator
from privopt.curator.run import Run
from privopt.data.units import Units
from privopt.engine.protocol import Engine
from privopt.ledger.curves import gaussian_epsilon
from privopt.ledger.default_account import nothing_private
from privopt.ledger.events import EveryUnit, Poisson, Sampling, expected_units
from privopt.ledger.payer import Payer
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.base import Mechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.vertex_stream import VertexStream
from privopt.queries.base import ArgminQuery, MeanQuery, PassQuery, Query, Scalar

# ------------------------------------------------------------------------------------------------------------
# How answers are made to lean towards transcripts that tell two data sets apart, and how those are weighed.
# At a delta of 1e-6 one transcript in a million is what a guarantee is about. So answers are drawn such that all are
# like these, each counts for how much likelier it was made, and the mean is what it would have been.


_special = cast("Any", special)  # its type information is incomplete
_HALVINGS = 60
_AHEAD = (
    2.0  # the delta that is steered for, over that of the claim: a mean far above delta shows in few runs
)
_LARGEST = 300.0  # a logarithm: transcripts never count for more
_STEEPEST = 1e4


@dataclass(frozen=True)
class Steering:
    """Leads log-likelihood ratios to where the curve of Gaussian noise of the expected spread has its delta.

    Attributes:
        target: the epsilon to be exceeded.
        spread: what is expected of the whole transcript, see `Observed.spread`; 0 does not steer.
    """

    target: float = 0.0
    spread: float = 0.0

    @classmethod
    def for_spread(cls, spread: float, delta: float) -> "Steering":
        """The steering for transcripts of a spread, at a claim's delta."""
        return cls(gaussian_epsilon(math.sqrt(spread), min(_AHEAD * delta, 0.5)), spread)

    def lean(self, ratio: float, spent: float, own: float) -> float:
        """How far the next answer leans, t of `laws`.

        With mu^2 the spread that is left and x = target - ratio, the chance that decides is delta_mu(x), and the best
        lean is its logarithmic slope, M(y + mu) / (M(y) - M(y + mu)) with y = x / mu - mu / 2 and Mills' ratio M.

        Args:
            ratio: the log-likelihood ratio so far.
            spent: the spread so far.
            own: the spread of the next answer.
        """
        if self.spread == 0 or own == 0:
            return 0.0
        mu = math.sqrt(max(self.spread - spent, own))
        y = (self.target - ratio) / mu - mu / 2
        near, far = (float(_special.erfcx(at / math.sqrt(2))) for at in (y, y + mu))
        return min(far / (near - far), _STEEPEST) if near > far else 0.0


def transcript_epsilon(
    log_ratios: NDArray[np.float64],
    log_weights: NDArray[np.float64],
    delta: float,
    confidence: float = CONFIDENCE,
) -> float:
    """The largest epsilon whose delta(epsilon) = E_p max(0, 1 - e^(epsilon - L)) is above delta; 0 where none is.

    The mean is taken over transcripts of another law, each counted p over its density. Every value in it falls as
    epsilon grows, so the bound on epsilon holds with the confidence of a single test of a mean.

    Args:
        log_ratios: L, the log-likelihood ratios of independent transcripts.
        log_weights: log p less the logarithm of the density that each was drawn with.
        delta: of the claim, above 0.
        confidence: the probability with which the bound holds.

    Source:
        Siegmund 1976 (importance sampling).
    """

    def holds(epsilon: float) -> bool:
        with np.errstate(over="ignore", divide="ignore"):
            parts = np.log(-np.expm1(np.minimum(0.0, epsilon - log_ratios))) + log_weights
            shares = np.exp(np.minimum(_LARGEST, parts - math.log(delta)))
        return mean_is_above_one(shares, confidence)

    return largest_refuted(holds, float(np.max(log_ratios)), _HALVINGS) if holds(0.0) else 0.0


# ------------------------------------------------------------------------------------------------------------
# The same program on two data sets in lockstep: both are given the same answers, and what tells them apart
# is noted.


SLACK = 1e-6  # of a sum: rounding
PATIENCE = 300.0  # seconds that one side waits for the other
Fit = Callable[[], Sequence[Any]]


class Parted(Exception):
    """The other side is no longer there: it ended, failed, or did something else."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What one side asks for.

    Attributes:
        name: of the query; empty at the end of the program.
        what: mechanism and sampling, in words.
        sensitivity: as stated.
        most: how far the value moves at most if the contribution of one unit is clipped; 0 where nothing is known.
        value: before noise; at the end, everything that the program ended with.
        in_question: of a Poisson sample, the value with the last record and without it.
    """

    name: str
    what: str
    sensitivity: float = 0.0
    most: float = 0.0
    value: Any
    in_question: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None


@dataclass(frozen=True, kw_only=True)
class Move:
    """How far one release moved before noise.

    Attributes:
        ratio: over its stated sensitivity.
        name: of the query.
        beyond: by how much the contributions of the changed unit are farther apart than clipped ones can be; at most 1
            where they are clipped, or nothing is known of a clip.
    """

    ratio: float = 0.0
    name: str = ""
    beyond: float = 0.0

    def fault(self) -> str:
        """What is wrong where the ratio is above 1."""
        if self.beyond > 1 + SLACK:
            return (
                f"clip forgotten: one unit moves {self.name} {self.beyond:.3g} times as far as its clip allows, and "
                f"{self.ratio:.3g} times its stated sensitivity"
            )
        return f"sensitivity understated: one unit moves {self.name} by {self.ratio:.3g} times what is stated"


@dataclass(kw_only=True)
class Observed:
    """What an observer of one pair of runs noted.

    Attributes:
        laws: of each release, how it is told apart.
        names: of these releases.
        unwatched: the names of releases whose law is not known here.
        longest: the largest move over its stated sensitivity.
        parted: how the two sides parted; empty if they did the same to the end.
        same_end: whether both ended with the same numbers.
    """

    laws: list[Law] = field(default_factory=list[Law])
    names: list[str] = field(default_factory=list[str])
    unwatched: list[str] = field(default_factory=list[str])
    longest: Move = Move()
    parted: str = ""
    same_end: bool = True

    def answered(self, name: str, law: Law) -> Any:
        """Note an answer and what it says; give it."""
        self.laws.append(law)
        self.names.append(name)
        return law.released

    def moved(self, query: Query, far: float, offer: "Offer") -> None:
        """Note how far a value moved."""
        over = ratio(far, offer.sensitivity)
        if over > self.longest.ratio:
            self.longest = Move(
                ratio=over, name=query.name, beyond=far / offer.most if offer.most > 0 else 0.0
            )

    @property
    def log_ratio(self) -> float:
        """Of the whole transcript: its log-likelihood on the left less that on the right."""
        return sum(law.log_ratio for law in self.laws)

    @property
    def spread(self) -> float:
        """Twice the divergence of the releases, given what was released before: mu squared where all are Gaussian."""
        return sum(law.spread for law in self.laws)

    @property
    def log_weight(self) -> float:
        """How much likelier the transcript was made, as a logarithm, with the sign turned."""
        return sum(law.log_weight for law in self.laws)


class Meeting:
    """Where the two sides meet.

    Args:
        steering: how answers lean to the left side.
        noise: what the answers are drawn with.
    """

    def __init__(self, steering: Steering, noise: NoiseSource) -> None:
        self.steering, self.noise, self.observed = steering, noise, Observed()
        self._slots: list[Any] = [None, None]
        self._barrier = threading.Barrier(2, timeout=PATIENCE)

    @property
    def lean(self) -> Lean:
        """How far the next answer leans."""
        return partial(self.steering.lean, self.observed.log_ratio, self.observed.spread)

    def exchange(self, side: int, item: Any) -> tuple[Any, Any]:
        """Show something to the other side and see what it shows.

        Raises:
            Parted: it is no longer there.
        """
        try:
            self._slots[side] = item
            self._barrier.wait()
            left, right = self._slots
            self._barrier.wait()
            return left, right
        except threading.BrokenBarrierError:
            raise Parted("the other side is no longer there") from None

    def leave(self) -> None:
        """Let nobody wait for this side."""
        self._barrier.abort()

    def agree(self, side: int, offer: Offer) -> tuple[Offer, Offer]:
        """Both offers, if they ask for the same.

        Raises:
            Parted: they do not; how they differ is noted.
        """
        left, right = self.exchange(side, offer)
        if (left.name, left.what) != (right.name, right.what):
            asked = [one.name or "the end" for one in (left, right)]
            what = "stop" if "the end" in asked else "control"
            after = f"{len(self.observed.names)} answers, the same on both"
            where = f"one side is at {asked[0]}, the other at {asked[1]}"
            self.observed.parted = f"{what} that follows the data: after {after}, {where}"
            raise Parted(self.observed.parted)
        if left.sensitivity != right.sensitivity:
            self.observed.parted = f"noise that follows the data: the sensitivity of {left.name} differs"
            raise Parted(self.observed.parted)
        return left, right

    def answer(self, side: int, offer: Offer, draw: Callable[[Offer, Offer], Any]) -> Any:
        """One answer for both sides, drawn by the left one."""
        left, right = self.agree(side, offer)
        drawn = draw(left, right) if side == 0 else None
        return self.exchange(side, drawn)[0]


class SideCurator(LocalCurator):
    """The curator of one side: answers are agreed on with the other one.

    Loops run step by step. Whom a sample holds, and where units are cut, is drawn alike on both sides.
    """

    meeting: Meeting
    side: int

    def bind(self, meeting: Meeting, side: int) -> "SideCurator":
        """Take a side of a meeting."""
        self.meeting, self.side = meeting, side
        return self

    def private_offer(
        self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar
    ) -> Offer:
        """What this side asks for, and its value."""
        query = self.with_lots(query)
        private_draw = self.private_draw(sampling)
        private_value = self.private_value(query, sampling, private_draw)
        in_question = None
        if private_draw is not None and isinstance(sampling, Poisson) and isinstance(query, MeanQuery):
            in_question = self._with_and_without(query, sampling, private_draw)
        most = 0.0
        if isinstance(query, MeanQuery) and (query.radius_norm or query.norm) == query.norm:
            clip = float(query.radius()) * (1.0 if query.norm != "range" else 2.0)
            both = self.public.relation.factor * clip / expected_units(sampling, self.public.n)
            most = both if math.isfinite(both) else 0.0
        return Offer(
            name=query.name,
            what=f"{mechanism}, {sampling}",
            sensitivity=float(sensitivity),
            most=most,
            value=private_value,
            in_question=in_question,
        )

    def _with_and_without(
        self, query: Query, sampling: Sampling, private_draw: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The value with the last record and without it, over the others that the left side drew."""
        last = self.meeting.exchange(self.side, self.private_engine.private_count)[0] - 1
        private_others = self.meeting.exchange(self.side, private_draw[private_draw != last])[0]
        there = (
            private_others if self.private_engine.private_count <= last else np.append(private_others, last)
        )
        first, second = (
            np.asarray(self.private_value(query, sampling, positions), np.float64)
            for positions in (there, private_others)
        )
        return first, second

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        offer = self.private_offer(query, mechanism, sampling, sensitivity)
        plain = isinstance(sampling, EveryUnit) and not isinstance(query, ArgminQuery | PassQuery)

        def draw(left: Offer, right: Offer) -> Any:
            meeting, observed, law = self.meeting, self.meeting.observed, None
            if plain:
                ours, theirs = (np.asarray(one.value, np.float64) for one in (left, right))
                observed.moved(query, distance(ours, theirs, query.norm), left)
                if left.sensitivity == 0:
                    return left.value
                law = law_of(mechanism, ours, theirs, left.sensitivity, meeting.noise, meeting.lean)
            elif left.in_question and right.in_question and isinstance(mechanism, Gaussian):
                (ours, without), (theirs, _) = left.in_question, right.in_question
                observed.moved(query, distance(ours, theirs, query.norm), left)
                if left.sensitivity > 0 and mechanism.noise_multiplier > 0:
                    values = (without, ours, theirs)
                    law = sampled_law(
                        mechanism, values, sampling.rate, left.sensitivity, meeting.noise, meeting.lean
                    )
            if law is None:
                observed.unwatched.append(query.name)
                return mechanism.release(meeting.noise, left.value, left.sensitivity)
            return observed.answered(query.name, law)

        return self.meeting.answer(self.side, offer, draw)

    def _answer_stream(self, request: StreamRequest, state: Any) -> Any:
        mechanism, private_chances = request.mechanism, None
        if isinstance(mechanism, VertexStream) and request.name == "draw" and not mechanism.mixture:
            private_chances = mechanism.log_chances(state)
        # The stream moves on; what it answered is not looked at.
        answer = super()._answer_stream(request, state)
        offer = Offer(
            name=request.label,
            what=repr(mechanism),
            sensitivity=request.sensitivity,
            value=answer if private_chances is None else private_chances,
        )
        if not mechanism.request(request.name).releases:
            self.meeting.agree(self.side, offer)
            return answer

        def draw(left: Offer, right: Offer) -> Any:
            if private_chances is None:
                self.meeting.observed.unwatched.append(request.label)
                return left.value
            drawn = [self._choose(request.label, left.value, right.value) for _ in answer]
            return np.asarray(drawn, np.int64)

        return self.meeting.answer(self.side, offer, draw)

    def _choose(self, name: str, left: NDArray[np.float64], right: NDArray[np.float64]) -> int:
        """One of several vertices, for both sides."""
        law = choice(left, right, self.meeting.noise, self.meeting.lean)
        return int(self.meeting.observed.answered(name, law))

    def _compiles(self, slots: list[loops.Slot], feeds: Mapping[str, Feed]) -> bool:
        return False


_SIDE = threading.local()
_ONE_AT_A_TIME = threading.Lock()  # the curator of runs is replaced for all threads of the process


@contextmanager
def _watched_runs(kind: type[SideCurator]) -> Generator[None]:
    """Runs that are opened in the threads of a meeting hold a curator of their side; all others are as ever."""
    usual = Run.curator

    def curator(run: Run, data: Units | Engine, ledger: Payer | None = None) -> LocalCurator:
        meeting: Meeting | None = getattr(_SIDE, "meeting", None)
        if meeting is None:
            return usual(run, data, ledger)
        paid = run.ledger if ledger is None else ledger
        return kind(data, paid, noise=run.noise, transcript=run.transcript).bind(meeting, _SIDE.number)

    with mock.patch.object(Run, "curator", curator):
        yield


def in_lockstep(
    left: Fit,
    right: Fit,
    *,
    steering: Steering = Steering(),
    noise: NoiseSource | None = None,
    kind: type[SideCurator] = SideCurator,
) -> Observed:
    """Run a program on two data sets with the same answers.

    Args:
        left: runs it on one, and gives everything that it ended with.
        right: on the other; the same seed decides who is sampled.
        steering: how answers lean to the left side; by default they do not.
        noise: what answers are drawn with; default: the operating system's.
        kind: the curator of either side.
    """
    meeting = Meeting(steering, NoiseSource() if noise is None else noise)
    failures: list[BaseException] = []

    def follow(side: int, fit: Fit) -> None:
        _SIDE.meeting, _SIDE.number = meeting, side
        try:
            with nothing_private():
                end = Offer(name="", what="", value=[np.asarray(one) for one in fit()])
            first, other = meeting.agree(side, end)
            meeting.observed.same_end = all(
                (a.shape, a.tobytes()) == (b.shape, b.tobytes())
                for a, b in zip(first.value, other.value, strict=True)
            )
        except Parted:
            pass
        except BaseException as error:
            failures.append(error)
        finally:
            meeting.leave()

    threads = [threading.Thread(target=follow, args=(side, fit)) for side, fit in enumerate((left, right))]
    with _ONE_AT_A_TIME, _watched_runs(kind):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    return meeting.observed


# ---- What a Gaussian release on a secret Poisson sample says to somebody who knows who else was drawn ------
# The record in question is in the sample with the sampling rate, so the release is from a mixture on either side. To
# know the others only helps the attacker, and the guarantee holds against that as well: units are drawn independently.
Values = NDArray[np.float64]
_CELLS = 4000
_REACH = 12.0  # standard deviations beyond the means: what is farther away is never drawn, which only lowers a bound
_IN_LINE = 1e-9  # relative


def sampled_law(
    mechanism: Gaussian,
    values: tuple[Values, Values, Values],
    rate: float,
    sensitivity: float,
    noise: NoiseSource,
    lean: Lean,
) -> Law | None:
    """Answer for the left side; None where the three values are not in line, which makes it no question of one number.

    Args:
        mechanism: with its noise on.
        values: without the record in question; with the left one; with the right one.
        rate: with which each record is drawn.
        sensitivity: as stated, above 0.
        noise: what the mechanism draws from.
        lean: gives t of `laws` for the spread of the answer.
    """
    without, left, right = (np.ravel(value) for value in values)
    scale = mechanism.noise_multiplier * sensitivity
    apart = float(np.linalg.norm(left - right))
    released = np.asarray(mechanism.release(noise, values[0], sensitivity), np.float64)
    if apart == 0:
        return Law(released=released, log_ratio=0.0, log_weight=0.0, spread=0.0)
    axis = (left - right) / apart
    places = [float((side - without) @ axis) for side in (left, right)]
    beside = [
        float(np.linalg.norm(side - without - at * axis))
        for side, at in zip((left, right), places, strict=True)
    ]
    if max(beside) > _IN_LINE * max(apart, *map(abs, places)):
        return None
    at_left, at_right = (place / scale for place in places)
    edges = np.linspace(
        min(0.0, at_left, at_right) - _REACH, max(0.0, at_left, at_right) + _REACH, _CELLS + 1
    )
    chances = [_log_chances(edges, at, rate) for at in (at_left, at_right)]
    ratios = chances[0] - chances[1]
    spread = 2 * float(np.exp(chances[0]) @ ratios)
    leaning = chances[0] + lean(spread) * ratios
    leaning = np.exp(leaning - np.logaddexp.reduce(leaning))
    cell = min(int(np.searchsorted(np.cumsum(leaning), float(noise.uniform(())))), _CELLS - 1)
    width = edges[1] - edges[0]
    place = float(edges[cell] + width * noise.uniform(()))
    log_left, log_right = (_log_density(place, at, rate) for at in (at_left, at_right))
    along = place * scale - float((np.ravel(released) - without) @ axis)
    return Law(
        released=released + np.reshape(along * axis, released.shape),
        log_ratio=log_left - log_right,
        log_weight=log_left - math.log(float(leaning[cell]) / width),
        spread=spread,
    )


def _log_density(place: float, at: float, rate: float) -> float:
    """Of the mixture of unit normals around 0 and around `at`."""
    parts = (math.log1p(-rate) - place**2 / 2, math.log(rate) - (place - at) ** 2 / 2)
    return float(np.logaddexp(*parts)) - math.log(2 * math.pi) / 2


def _log_chances(edges: Values, at: float, rate: float) -> Values:
    """The logarithms of the chances of the cells, summing to nearly 1."""
    cells = [
        math.log(share) + _log_between(edges[:-1] - mean, edges[1:] - mean)
        for share, mean in ((1 - rate, 0.0), (rate, at))
    ]
    return np.logaddexp(*cells)


def _log_between(low: Values, high: Values) -> Values:
    """The logarithm of the chance of a normal to be between, from the nearer tail."""
    near, far = np.where(high > 0, -low, high), np.where(high > 0, -high, low)
    upper = np.asarray(log_ndtr(near), np.float64)
    return upper + np.log(-np.expm1(np.asarray(log_ndtr(far), np.float64) - upper))
