"""How many users a budget needs, from public numbers alone.

With n users, p parameters, budget mu (Gaussian DP) and s = 2 (replace-one) or 1 (add-or-remove-one):

    noise of one mean   N0 = s sqrt(p) / (n mu), the noise norm of one mean bought with the whole budget, over the clip
    typical clip        c = r max(1/20, m^-1/2) / 2, m the typical number of records and r a typical whitened row
    excess              0.55 D N0 c, for an optimum whose predictions spread by D = 1.7

A user's mean gradient fluctuates by m^-1/2 of a record's, which is why the clip, and with it the noise, falls with m.
D was chosen by the excess of whitened descent on movietweetings, randhie and generated users (epsilon 1 and 3). All of
it concerns utility only.
"""

import math

from privopt.errors import BudgetTooSmall
from privopt.planning.instance import Instance
from privopt.planning.whitening import SHARE, WhiteningRule

FEWEST_USERS = 20  # that any plan is made for: one of fewer is most of a mean by itself
FAINT = 0.1  # the noise of one mean from which on a plan warns
DROWNED = 1.0  # from which on it is refused: each mean is more noise than signal
EXCESS_FACTOR, DISTANCE = 0.55, 1.7
LEAST_SPREAD = 0.05  # of users' means over that of records: people differ, however much they contribute


def one_shot_noise(instance: Instance) -> float:
    """N0: the noise norm of one mean over units that the whole budget buys, in units of the clip; 0 without noise."""
    if not instance.is_private:
        return 0.0
    return _noise_times_n(instance) / instance.public.n


def smallest_workable_n(instance: Instance) -> int:
    """The number of units from which on this budget, at this delta, makes a mean that is not all noise."""
    if not instance.is_private:
        return FEWEST_USERS
    return max(FEWEST_USERS, math.ceil(_noise_times_n(instance) / DROWNED))


def expected_excess(instance: Instance) -> float:
    """The excess to be expected of the default, at most the loss of zero.

    Right within a factor of about 3 where people differ and directions are of many scales, as in real tables; several
    times too high where all users are alike and all directions matter.

    Source:
        0.55 R N0 c of the sum of bias and noise of averaged gradient descent at its best length.
    """
    rule = WhiteningRule.of(instance, SHARE)
    typical = instance.public.typical_records
    clip = 0.5 * rule.constants.slope * rule.most_signal * max(LEAST_SPREAD, typical**-0.5)
    return instance.capped(EXCESS_FACTOR * DISTANCE * one_shot_noise(instance) * clip)


def require_workable(instance: Instance) -> None:
    """Refuse a plan in which the noise drowns the users. Nothing is read for it.

    Raises:
        BudgetTooSmall: there are fewer than 20 users, or the noise of one mean exceeds the clip.
    """
    noise, users = one_shot_noise(instance), instance.public.n
    if not instance.is_private or (users >= FEWEST_USERS and noise <= DROWNED):
        return
    raise BudgetTooSmall(
        f"{users:,} users are too few for {instance.parameters:,} parameters at the epsilon of "
        f"{instance.budget.epsilon:.3g} that means are bought with: the noise of one mean would be {noise:.2g} times "
        f"the largest contribution of a user, and the predicted excess is {expected_excess(instance):.2g}. At least "
        f"{smallest_workable_n(instance):,} users are needed, or a larger epsilon, or fewer features."
    )


def faint_users(instance: Instance) -> tuple[str, ...]:
    """A notice where the noise is going to be most of the error."""
    noise = one_shot_noise(instance)
    if noise <= FAINT:
        return ()
    return (
        f"noise will dominate: with {instance.public.n:,} users and epsilon {instance.budget.epsilon:.3g} the noise of "
        f"one mean is {noise:.2g} times the largest contribution of a user, and the expected excess is about "
        f"{expected_excess(instance):.2g}. From {math.ceil(_noise_times_n(instance) / FAINT):,} users on it would not.",
    )


def _noise_times_n(instance: Instance) -> float:
    return instance.public.relation.factor * math.sqrt(instance.parameters) / instance.mu
