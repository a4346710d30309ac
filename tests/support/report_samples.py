"""Results made by hand, for the tests of the report."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from privopt.curator.transcript import FilterMark, Release, Transcript
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.events import (
    BoundedRangeEvent,
    Event,
    EveryUnit,
    GaussianEvent,
    NoEvent,
    NonPrivateEvent,
    Poisson,
    Repeated,
    Sampling,
    Sequence,
)
from privopt.planning.plan import Bound, Finding, Plan
from privopt.public import Public, Relation
from privopt.report.model import ModelSummary
from privopt.report.report import PrivacyReport, Selection
from privopt.result import Result
from privopt.status import Status

N, DELTA = 16_152, 1 / 16_152**2
FEATURES = (
    "age",
    "log1p income",
    "<b>plan</b> = individual deductible",
    "female",
    "children",
    "health = poor",
)
SUMMARY = [
    {"model": "not private", "epsilon": math.inf, "accuracy": 0.7934, "AUC": 0.7051},
    {"model": "private", "epsilon": 0.5, "accuracy": 0.7871, "AUC": 0.6902},
    {"model": "private", "epsilon": 1.0, "accuracy": 0.7902, "AUC": 0.6987},
    {"model": "private", "epsilon": 2.0, "accuracy": 0.7919, "AUC": 0.7021},
]


def release(
    name: str, event: Event, count: int, scale: Any, *, multiplier: float, sampling: Sampling | None = None
) -> Release:
    """One line of a transcript; its released values are numbers that no report may show."""
    scales = np.broadcast_to(np.asarray(scale, np.float64), (count,))
    return Release(
        name=name,
        event=event,
        count=count,
        sensitivity=scales / multiplier if multiplier else np.full(count, 1.2e-4),
        noise="Gaussian(...)",
        scale=scales,
        sampling=sampling or EveryUnit(),
        released=np.full((count, 7), 0.987654321),
        exact=multiplier > 0,
    )


def plan(event: Event, budget: Budget, releases: int, passes: float, public: Public, **settings: Any) -> Plan:
    return Plan(
        solver="gradient-descent",
        settings={"steps": releases, "step_size": 3.2, "clip": 1.0, "momentum": 0.9, "average": "tail"}
        | settings,
        event=event,
        budget=budget,
        public=public,
        releases=releases,
        passes=passes,
        memory_bytes=1_420_000,
        seconds=0.04,
        predicted_excess=0.00123,
        prediction="noise and optimization error of the practical setting, usually within a factor of 3",
        notices=("n * epsilon is small for 7 coefficients: expect noticeable noise.",),
    )


def gaussian_result(epsilon: float = 1.0, *, seeded: bool = False, steps: int = 30) -> Result:
    """Full-batch gradient descent: eager releases, one by one."""
    public = Public(n=N, d=7)
    multiplier = math.sqrt(steps) / gaussian_mu(epsilon, DELTA) * (1 + 1e-9)
    event = GaussianEvent(multiplier)
    transcript = Transcript(public.relation, seeded=seeded)
    for _ in range(steps):
        transcript.append(release("ClippedGradient", event, 1, multiplier * 2 / N, multiplier=multiplier))
    planned = plan(
        Repeated(event, steps),
        Budget(epsilon, DELTA),
        steps,
        float(steps),
        public,
        noise_multiplier=multiplier,
    )
    return Result(np.linspace(-1, 1, 7), Status.FINISHED, transcript, planned)


def gaussian_report(
    epsilon: float = 1.0, *, seeded: bool = False, title: str | None = None, **more: Any
) -> PrivacyReport:
    coefficients = [0.51, -0.0312, 1.25, 0.2, -0.61, 0.000041]
    model = ModelSummary.of(
        "LogisticRegression",
        coefficients,
        features=FEATURES,
        intercept=[0.31],
        classes=["no visit", "any visit"],
    )
    declared = (
        "Classes: no visit, any visit.",
        f"Number of records: {N:,}.",
        "Bounds: age 0 to 70; log1p income 0 to 13.",
    )
    return PrivacyReport.of(
        gaussian_result(epsilon, seeded=seeded), title=title, model=model, declared=declared, **more
    )


def sampled_report() -> PrivacyReport:
    """Sampled steps of falling noise scale for users, and a selection."""
    public = Public(n=5_908, d=200, relation=Relation.ADD_OR_REMOVE_ONE, unit="user", records_per_unit=20)
    sampling = Poisson(0.02)
    inner = GaussianEvent(1.1)
    transcript = Transcript(public.relation)
    scales = 1.1 / (0.02 * 5_908) * np.linspace(1.0, 0.2, 600)
    sampled = sampling.event(inner)
    transcript.append(
        release("ClippedGradientDifference", sampled, 600, scales, multiplier=1.1, sampling=sampling)
    )
    transcript.append(release("VertexScores", BoundedRangeEvent(0.1), 1, 0.0, multiplier=0.0))
    transcript.append(release("PrefixSum.next", NoEvent(), 5, 0.0, multiplier=0.0))
    event = Sequence((Repeated(sampled, 600), BoundedRangeEvent(0.1)))
    planned = plan(event, Budget(3.0, 1e-6), 601, 12.0, public)
    model = ModelSummary.of(
        "LogisticRegression",
        np.random.default_rng(1).normal(size=(3, 200)),
        intercept=[0.1, 0.2, -0.3],
        classes=["a", "b", "c"],
        details={"penalty": "l2", "strength": 1e-3},
    )
    return PrivacyReport.of(
        Result(np.zeros(3), Status.BUDGET_SPENT, transcript, planned),
        model=model,
        selection=Selection(
            sentence="GridSearchCV compared raw validation scores of 12 settings.", private=False
        ),
        metrics={"test accuracy": 0.8441, "test records": 4_038},
        extra_notices=("Rows were clipped to length 1.",),
    )


def seeded_report() -> PrivacyReport:
    return gaussian_report(seeded=True)


def off_report() -> PrivacyReport:
    public = Public(n=N, d=7)
    transcript = Transcript(public.relation)
    transcript.append(release("ClippedGradient", NonPrivateEvent(), 30, 0.0, multiplier=0.0))
    planned = plan(Repeated(NonPrivateEvent(), 30), Budget(math.inf, DELTA), 30, 30.0, public, clip=math.inf)
    return PrivacyReport.of(Result(np.zeros(7), Status.FINISHED, transcript, planned))


def by_hand_report() -> PrivacyReport:
    """A solver run without a plan, with noise multipliers chosen on the way."""
    transcript = Transcript(Relation.REPLACE_ONE)
    for multiplier in (60.0, 50.0, 40.0):
        transcript.append(
            release("Gradient", GaussianEvent(multiplier), 1, multiplier * 1e-4, multiplier=multiplier)
        )
    return PrivacyReport.of(Result({"w": np.ones((2, 2)), "b": np.float64(0.5)}, Status.FINISHED, transcript))


def adaptive_result(releases: int = 300, used: float = 0.98) -> Result:
    """Many single releases whose noise was chosen as the run went, under a filter that was paid for as one."""
    public = Public(n=N, d=7)
    cap = GaussianEvent(1.0 / gaussian_mu(1.0, DELTA) * (1 + 1e-9))
    transcript = Transcript(public.relation)
    mark = FilterMark(transcript.next_filter(), cap, 0)
    falling = np.geomspace(40.0, 1.0, releases) * (1.0 + 0.2 * np.sin(np.arange(releases)))
    scale = cap.noise_multiplier * math.sqrt(float(np.sum(1.0 / falling**2)) / used)
    for multiplier in (falling * scale).tolist():
        made = release(
            "ClippedGradient", GaussianEvent(multiplier), 1, multiplier * 2 / N, multiplier=multiplier
        )
        transcript.append(replace(made, under=mark))
    planned = plan(
        cap, Budget(1.0, DELTA), 3000, 3000.0, public, curvature=0.25, growth="KL(gamma=2, kappa=2)"
    )
    planned = replace(
        planned,
        adaptive=True,
        bound=Bound(0.031, 0.95, "no gradient is longer than the clip"),
        indicators={
            "one_query_floor": Finding(2.1e-4, "the noise of one release that spends the whole budget")
        },
    )
    findings = {
        "gradient_norm": Finding(np.float64(0.0123), "the norm that the schedule ended at, not a bound"),
        "certificate": Finding(
            math.inf, "a bound on the gradient if no clip was active, with probability 0.95"
        ),
        "norms": Finding(np.full(releases, 0.987654321), "the tracked norm of each step"),
    }
    return Result(np.zeros(7), Status.BUDGET_SPENT, transcript, planned, findings)


def adaptive_report() -> PrivacyReport:
    return PrivacyReport.of(adaptive_result())
