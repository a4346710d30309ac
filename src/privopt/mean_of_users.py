"""`user_mean`: a private mean over people of what each of them has on average."""

import math
from typing import Any, NamedTuple

import numpy as np

from privopt.curator.base import Observer
from privopt.curator.run import Run
from privopt.curator.transcript import Transcript
from privopt.data import cells
from privopt.data.units import Units
from privopt.declared_facts import declared_of_mean
from privopt.errors import BudgetTooSmall, tells_what_was_spent
from privopt.later import jnp
from privopt.ledger.account import Account, checked_account
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import DeltaEvent, Event, GaussianEvent, Sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.tests import GaussianTest
from privopt.named_arguments import check_observer, refuses_unknown
from privopt.planning.notices import NOISE_IS_OFF, extreme_epsilon
from privopt.planning.plan import Finding, Plan
from privopt.planning.stable_mean import (
    BAD_EVENT_SHARE,
    OUTLIERS,
    RADII,
    plan_radius_search,
    plan_stable_mean,
)
from privopt.precision import in_float64
from privopt.public import DEFAULT_RECORDS, Public, Relation, real
from privopt.queries.moments import UserAverage
from privopt.report.report import PrivacyReport
from privopt.result import Result
from privopt.solvers.held_means import ClippedMean, PrivateMean, StableMean, StableMeanAuto
from privopt.status import Status

# ------------------------------------------------------------------------------------------------------------
# How a private mean over users is taken, from public numbers alone: which mechanism, and what it will do.
WORTH = 10.0  # a search pays where the points lie within the bound over this number of each other, or closer


class UserMeanPlan(NamedTuple):
    """How a mean over users is taken, and what to say of it.

    Attributes:
        mean: clipped around 0, or stable with a known radius or one that is searched for.
        title: its name in plans.
        settings: what a plan shows.
        releases: how many there are, at most.
        indicators: what to expect, by name.
        notices: sentences for the user.
    """

    mean: PrivateMean
    title: str
    settings: dict[str, float | int | str]
    releases: int
    indicators: dict[str, Finding]
    notices: tuple[str, ...] = ()


def plan_user_mean(
    public: Public, budget: Budget, *, bound: float, radius: float | None, outliers: float
) -> UserMeanPlan:
    """Choose between clipping around 0 and a stable mean.

    Args:
        public: of users.
        budget: of the mean.
        bound: largest norm of a user's average.
        radius: a radius around the mean that holds most users' averages; None if unknown.
        outliers: the fraction of users that may lie outside of it.
    """
    replaced = public.relation is Relation.REPLACE_ONE
    clip = calibrate(GaussianEvent, budget, public.relation) if budget.is_private else 0.0
    noise = public.relation.factor * bound / public.n * clip * math.sqrt(public.d)
    length = Finding(noise, "typical length of the noise where averages are clipped around 0")

    def clipped(*notices: str) -> UserMeanPlan:
        mean = ClippedMean(radius=bound, noise=Gaussian(clip))
        indicators = {"noise": length} if budget.is_private else {}
        return UserMeanPlan(mean, "user mean (clipped)", {"bound": bound}, 1, indicators, notices)

    if not budget.is_private:
        return clipped()
    try:
        if radius is not None:
            bad = BAD_EVENT_SHARE * budget.delta

            def event(scale: float) -> Event:
                return Sequence((DeltaEvent(bad), GaussianEvent(scale)))

            scale = calibrate(event, budget, public.relation)
            known = plan_stable_mean(
                points=public.n,
                replaced=replaced,
                rho=0.5 / scale**2,
                bad_event_delta=bad,
                outliers=outliers,
            )
            expected = known.cost * radius * scale * math.sqrt(public.d) / public.n
            meaning = "typical length of the noise where the test passes"
            return UserMeanPlan(
                StableMean(
                    spread=radius,
                    test=GaussianTest(known.test_multiplier, bad),
                    noise=Gaussian(known.noise_multiplier),
                    outliers=outliers,
                    fallback=bound,
                ),
                "user mean (stable)",
                {"bound": bound, "radius": radius, "outliers": outliers, "test_share": known.share},
                2,
                {"noise": Finding(expected, meaning)},
            )
        search = plan_radius_search(
            points=public.n,
            replaced=replaced,
            budget=budget,
            relation=public.relation,
            radii=RADII,
            outliers=outliers,
        )
    except BudgetTooSmall as small:
        return clipped(f"averages are clipped around 0: {small}")
    ratio = search.cost * math.sqrt(public.d) / public.n
    if search.cost > WORTH * public.relation.factor * clip:
        return clipped(
            f"averages are clipped around 0: with {public.n:,} users a search for their location would pay only "
            f"where they lie within {bound / WORTH:.3g} of each other. Give `radius` if they do."
        )
    found = Finding(ratio, "typical length of the noise over the radius that most users' averages lie within")
    fallen = Finding(
        length.value * search.noise_multiplier / clip, "typical length of the noise after a fallback"
    )
    return UserMeanPlan(
        StableMeanAuto(
            largest=bound,
            search=search.search,
            noise=Gaussian(search.noise_multiplier),
            outliers=outliers,
            fallback=bound,
        ),
        "user mean (stable, radius searched for)",
        {"bound": bound, "outliers": outliers, "search_epsilon": search.search_epsilon},
        RADII + 2,
        {"noise_over_radius": found, "fallback_noise": fallen},
    )


_SECONDS_PER_NUMBER = 2e-7  # of a search, for each number held; measured


class UserMean(NamedTuple):
    """A private mean over users.

    Attributes:
        value: the mean, shaped like one row of the values.
        status: how it was taken; `FELL_BACK` after a test that failed.
        transcript: every release in order.
        plan: what was announced before the data was read.
        declared: what the caller declared to be public, in sentences.
    """

    value: Any
    status: Status
    transcript: Transcript
    plan: Plan
    declared: tuple[str, ...] = ()

    @property
    def report(self) -> PrivacyReport:
        """The privacy report, in words."""
        return PrivacyReport.of(
            Result(self.value, self.status, self.transcript, self.plan),
            title="Private mean over users",
            declared=self.declared,
        )

    def __repr__(self) -> str:
        return f"UserMean(value={self.value!r}, status={self.status.value!r}, {self.plan.headline})"


@tells_what_was_spent
@refuses_unknown
def user_mean(
    values: Any,
    groups: Any,
    *,
    bound: float,
    epsilon: float,
    delta: float,
    radius: float | None = None,
    outliers: float = OUTLIERS,
    n: int | None = None,
    relation: Relation | str = Relation.REPLACE_ONE,
    max_records_per_user: int = DEFAULT_RECORDS,
    account: Account | None = None,
    random_state: int | None = None,
    observer: Observer | None = None,
) -> UserMean:
    """The mean over users of each user's average row: rates, embeddings, models trained locally.

    With enough users the location of the averages is found privately, and the noise is that of the *spread* of the
    averages, not of their distance from 0: a search for the radius within which most of them lie, each radius tested
    (`StableMeanAuto`); where no radius passes, and where there are too few users for a search, the averages are clipped
    around 0 at `bound`.

    Args:
        values: (rows, d) or (rows,) numbers. A row that is not finite counts as no row, and so does one of a list
            that cannot be read.
        groups: (rows,) user keys; everything of one user is protected together.
        bound: public bound on a row's l2 norm; longer rows are shortened to it.
        epsilon: privacy budget; infinite for no privacy.
        delta: privacy budget. A tenth of it pays for tests.
        radius: public radius around the mean within which most users' averages lie; default: searched for.
        outliers: public fraction of users, below 0.5, who may lie further away, and count by direction only.
        n: public number of users; required under add-or-remove-one, see `Units.from_arrays`.
        relation: the neighbouring relation.
        max_records_per_user: public cap; of users with more rows a random choice counts.
        account: a budget shared with other runs; charged before the data is read.
        random_state: a seed: reproducible, and *not private*.
        observer: called with (name, count) after releases.
    Returns:
        Value, status, transcript, plan and report. Under replace-one a user without rows counts as an average of 0;
        under add-or-remove-one a clipped mean divides by n, and a stable one is that of the users who are there.
    Privacy:
        (epsilon, delta)-DP for everything that one user contributed, under `relation`. No step depends on more than
        the releases before it.
    Raises:
        ValueError, TypeError: an argument is not usable.
        BudgetExceeded: the account cannot pay; nothing was read.
    Source:
        Lowy, Liu, Asi 2024, section 2, with the stable mean in place of their outlier removal; see
        `privopt.proofs.huber_centre`.
    """
    budget = Budget(epsilon, delta)
    checked_account(account)
    check_observer(observer)
    _check_length("bound", bound)
    if radius is not None:
        _check_length("radius", radius)
    if not 0 <= real("outliers", outliers) < 0.5:
        raise ValueError(
            f"outliers must be at least 0 and below 0.5, got {outliers!r}: the fraction of users who may be far off."
        )
    if groups is None:
        raise ValueError(
            "groups is missing: give the key of the user that each row belongs to. Where every row is somebody else's, "
            "give as many different keys."
        )
    kind, values = type(values).__name__, cells.matrix(values)
    if values.ndim not in (1, 2):
        raise TypeError(
            f"values must be numbers of shape (rows,) or (rows, d), got {kind}: give one row for each record."
        )
    flat = values.ndim == 1
    noise = NoiseSource(random_state)
    units = Units.from_arrays(
        values[:, None] if flat else values,
        relation=relation,
        row_bound=float(bound),
        n=n,
        groups=groups,
        max_records_per_user=max_records_per_user,
        user_weighting="user",
        noise=noise,
    )
    with in_float64():
        planned = plan_user_mean(
            units.public, budget, bound=float(bound), radius=radius, outliers=float(outliers)
        )
        announced = _announced(planned, units.public, budget)
        run = Run(
            planned.title,
            announced.event,
            budget,
            units.public,
            noise=noise,
            account=account,
            observer=observer,
            seeded=units.seeded,
        )
        curator = run.curator(units)
        released = planned.mean.release(
            curator, curator.hold(UserAverage(bound=float(bound))), jnp.zeros(units.public.d)
        )
    value = np.asarray(released.value)
    return UserMean(
        value[0] if flat else value,
        released.status,
        run.transcript,
        announced,
        declared_of_mean(units.public, bound=float(bound), radius=radius, outliers=float(outliers)),
    )


def _announced(planned: UserMeanPlan, public: Public, budget: Budget) -> Plan:
    held = public.n * public.d
    return Plan(
        solver=planned.title,
        settings=planned.settings,
        event=planned.mean.event(),
        budget=budget,
        public=public,
        releases=planned.releases,
        passes=1.0,
        memory_bytes=8 * 4 * held,
        seconds=0.05 + _SECONDS_PER_NUMBER * held * planned.releases,
        prediction="a mean has no objective",
        indicators=planned.indicators,
        notices=(
            *(() if budget.is_private else (NOISE_IS_OFF,)),
            *extreme_epsilon(budget),
            *planned.notices,
        ),
        adaptive=planned.releases > 1,
    )


def _check_length(name: str, value: Any) -> None:
    if not (math.isfinite(real(name, value)) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value!r}: it is a public length.")
