"""How a private mean over users is taken, from public numbers alone: which mechanism, and what it will do."""

import math
from typing import NamedTuple

from privopt.errors import BudgetTooSmall
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import DeltaEvent, Event, GaussianEvent, Sequence
from privopt.planning.plan import Finding
from privopt.planning.stable_mean import (
    BAD_EVENT_SHARE,
    RADII,
    RadiusSearchPlan,
    StableMeanPlan,
    plan_radius_search,
    plan_stable_mean,
)
from privopt.public import Public, Relation

WORTH = 10.0  # a search pays where the points lie within the bound over this number of each other, or closer


class UserMeanPlan(NamedTuple):
    """What a mean over users is taken with.

    Attributes:
        clip_multiplier: noise multiplier of a clipped mean that is all there is; 0 for no privacy.
        known: a stable mean of known radius, if that is the way.
        search: a stable mean whose radius is searched for, if that is.
        indicators: what to expect, by name.
        notices: sentences for the user.
    """

    clip_multiplier: float
    known: StableMeanPlan | None
    search: RadiusSearchPlan | None
    indicators: dict[str, Finding]
    notices: tuple[str, ...]


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
    clipped = Finding(noise, "typical length of the noise where averages are clipped around 0")
    if not budget.is_private:
        return UserMeanPlan(0.0, None, None, {}, ())
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
            return UserMeanPlan(clip, known, None, {"noise": Finding(expected, meaning)}, ())
        search = plan_radius_search(
            points=public.n,
            replaced=replaced,
            budget=budget,
            relation=public.relation,
            radii=RADII,
            outliers=outliers,
        )
    except BudgetTooSmall as small:
        return UserMeanPlan(
            clip, None, None, {"noise": clipped}, (f"averages are clipped around 0: {small}",)
        )
    ratio = search.cost * math.sqrt(public.d) / public.n
    if search.cost > WORTH * public.relation.factor * clip:
        small = (
            f"averages are clipped around 0: with {public.n:,} users a search for their location would pay only "
            f"where they lie within {bound / WORTH:.3g} of each other. Give `radius` if they do."
        )
        return UserMeanPlan(clip, None, None, {"noise": clipped}, (small,))
    found = Finding(ratio, "typical length of the noise over the radius that most users' averages lie within")
    fallen = Finding(
        clipped.value * search.noise_multiplier / clip, "typical length of the noise after a fallback"
    )
    return UserMeanPlan(clip, None, search, {"noise_over_radius": found, "fallback_noise": fallen}, ())
