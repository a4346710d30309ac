"""The optimal test on a pair of data sets that differs as much as it can: what a program really reveals.

Somebody knows both data sets and everything that was released, and asks which one it was. Given the earlier releases
the law of the next one is known on either side, so the likelihood ratio of the whole transcript is as well, and no test
is stronger. That the noise is what it is taken for, and that the program is post-processing of its releases, is tested
beside it; what is broken is told by its name.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from privopt.attacks.confidence import CONFIDENCE, deviation_bounds
from privopt.attacks.lockstep import Observed, SideCurator, Steering, in_lockstep, transcript_epsilon
from privopt.attacks.subjects import Claim, Records, Subject
from privopt.errors import ArgumentError
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.public import Relation

# By which a move may exceed its sensitivity: that of the engine, which the sensitivity bounds.
ROUNDING = 1e-6
PILOTS = 4
WELL_STEERED = 16  # releases: transcripts of fewer are steered in coarse steps, and more of them are counted
# Noise of a larger one drowns in the rounding of what it is added to: its bits may then agree.
MOST_EPSILON = 1e6
UNSEEN = "its releases are not of a kind whose law is known here"


@dataclass(frozen=True)
class Attack:
    """What an attack found.

    Attributes:
        name: which attack.
        claim: the epsilon that is claimed.
        lower_bound: the largest epsilon that was refuted: what is revealed is more than that; 0 where none was.
        faults: what is broken; each begins with its name.
        detail: how much was tried, in words.
        seconds: how long that took.
    """

    name: str
    claim: float
    lower_bound: float
    faults: tuple[str, ...]
    detail: str
    seconds: float

    @property
    def refutes(self) -> bool:
        """Whether the claim cannot be true."""
        return bool(self.faults) or self.lower_bound > self.claim


def optimal_attack(
    subject: Subject,
    budget: Budget,
    *,
    relation: Relation | str = Relation.REPLACE_ONE,
    runs: int = 20,
    confidence: float = CONFIDENCE,
    seed: int | None = None,
    kind: type[SideCurator] = SideCurator,
    source: Callable[[int | None], NoiseSource] = NoiseSource,
) -> Attack:
    """Attack a program at a claim.

    A few pilots choose how answers lean towards transcripts that tell the sides apart; `runs` others are counted.

    Args:
        subject: what is attacked.
        budget: the claim.
        relation: the neighbouring relation.
        runs: pairs of runs; as many more as there are fewer than `WELL_STEERED` releases.
        confidence: the probability with which the bound holds.
        seed: of the noise; None for the operating system's.
        kind: the curator that the program runs against.
        source: makes the noise of the answers from a seed.

    Raises:
        ArgumentError: the claim is beyond `MOST_EPSILON`, or there are no runs.
    """
    if not budget.epsilon <= MOST_EPSILON or not 0 < budget.delta < 1:
        raise ArgumentError(
            f"an attack needs a claim: an epsilon of at most {MOST_EPSILON:,.0f}, and a delta above 0."
        )
    if runs < 2:
        raise ArgumentError(f"an attack needs at least two runs, got {runs}.")
    began = time.perf_counter()
    relation = Relation.parse(relation)
    noise = source(seed)
    claim = Claim(budget=budget, relation=relation, n=subject.n)

    def meet(left: Records, right: Records, number: int, steering: Steering = Steering()) -> Observed:
        this = replace(claim, seed=number)
        return in_lockstep(
            lambda: subject.run(this, left),
            lambda: subject.run(this, right),
            steering=steering,
            noise=noise,
            kind=kind,
        )

    faults = _past_the_answers(subject, relation, meet)
    left, right = subject.sides(relation)
    steering, seen, widest = Steering(), list[Observed](), 0.0
    shuffles = np.random.default_rng(seed)
    for number in range(PILOTS):
        seen.append(meet(left, right, int(shuffles.integers(2**31)), steering))
        widest = max(widest if number > 1 else 0.0, seen[-1].spread)  # the first one has not leaned yet
        steering = Steering.for_spread(widest, budget.delta)
    answered = len(seen[-1].laws)
    runs *= math.ceil(WELL_STEERED / answered) if answered and not seen[-1].unwatched else 1
    for _ in range(runs):
        seen.append(meet(left, right, int(shuffles.integers(2**31)), steering))
    counted = seen[PILOTS:]
    faults += _run_faults(seen, alone=not faults)
    faults += noise_faults([[law.residual for law in one.laws if law.residual is not None] for one in seen])
    unseen = sorted({name for one in counted for name in one.unwatched})
    bound = 0.0
    if not unseen:
        ratios, weights = (
            np.asarray(values, np.float64)
            for values in zip(*((one.log_ratio, one.log_weight) for one in counted), strict=True)
        )
        bound = transcript_epsilon(ratios, weights, budget.delta, confidence)
    releases = max(len(one.laws) for one in counted)
    return Attack(
        name=f"optimal test, {subject.name}, {relation.value}",
        claim=budget.epsilon,
        lower_bound=bound,
        faults=tuple(faults),
        detail=f"{runs} runs of {releases} releases"
        + (f"; no bound, {UNSEEN}: {', '.join(unseen)}" if unseen else ""),
        seconds=time.perf_counter() - began,
    )


def _past_the_answers(
    subject: Subject, relation: Relation, meet: Callable[[Records, Records, int], Observed]
) -> list[str]:
    """Whether the program sees anything of the data but its answers, on data sets that have nothing in common."""
    left = subject.worst.left(subject.n, subject.kind)
    for stranger in subject.worst.strangers(subject.n, subject.kind):
        alone = meet(left, stranger, 0)
        if alone.parted:
            return [alone.parted]
        if not alone.same_end:
            return ["result past the releases: after the same answers it differs between two data sets"]
    if relation is Relation.ADD_OR_REMOVE_ONE:
        fewer = meet(left, left.first(subject.n // 2), 0)
        if fewer.parted or not fewer.same_end:
            what = fewer.parted or "after the same answers the result differs"
            return [f"leaked n: the number of records is private, and the program sees it: {what}"]
    return []


def _run_faults(seen: list[Observed], *, alone: bool) -> list[str]:
    """What neighbours showed: a value that moved too far, or a program that told them apart without its answers.

    Args:
        seen: the runs.
        alone: whether nothing else is known to be broken; else the latter would only be told twice.
    """
    faults: list[str] = []
    farthest = max((one.longest for one in seen), key=lambda found: found.ratio)
    if farthest.ratio > 1 + ROUNDING:
        faults.append(farthest.fault())
    parted = sorted({one.parted for one in seen if one.parted})
    if alone and parted:
        faults.append(parted[0])
    elif alone and not all(one.same_end for one in seen):
        faults.append("result past the releases: after the same answers it differs between neighbours")
    return faults


# ---- What is wrong with Gaussian noise, by name: used again, not independent, too small --------------------
FALSE_ALARM = 1e-6  # of each of the two statistical tests
_FEWEST = 2  # coordinates from which on equal noise is no chance
_SLACK = 1e-4  # of the deviation: rounding to a lattice


def noise_faults(runs: Sequence[Sequence[NDArray[np.float64]]]) -> Iterator[str]:
    """What is wrong, in words that begin with its name.

    Args:
        runs: for each run, the noise of its Gaussian releases in order, in standard deviations that are claimed.
    Privacy:
        Noise that is right is accused with probability 2e-6 at most: what follows another release is projected on its
        direction, which gives independent standard normals whose sum is tested; all squares are tested by chi-square.
        That two independent draws of two coordinates agree in every bit never happens.
    """
    drawn = [noise for run in runs for noise in run]
    if not drawn:
        return
    wide = [noise.tobytes() for noise in drawn if noise.size >= _FEWEST]
    if len(set(wide)) < len(wide):
        yield "noise reused: two releases have the same noise, and their difference is released without any"
        return
    along = [
        float(after @ before) / float(np.linalg.norm(before))
        for run in runs
        for before, after in pairwise(run)
        if before.shape == after.shape and before.any()
    ]
    if along and abs(sum(along)) / math.sqrt(len(along)) > -float(norm.ppf(FALSE_ALARM / 2)):
        yield "noise not independent: that of a release resembles that of the release before"
        return
    squares = sum(float(noise @ noise) for noise in drawn)
    _, high = deviation_bounds(squares, sum(noise.size for noise in drawn), 1 - 2 * FALSE_ALARM)
    if high < 1 - _SLACK:
        yield f"noise too small: it is at most {high:.3g} times what is claimed"
