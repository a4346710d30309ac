"""How many users a budget needs, from public numbers alone.

With n users, p parameters, budget mu (Gaussian DP) and s = 2 (replace-one) or 1 (add-or-remove-one):

    noise of one mean   N0 = s sqrt(p) / (n mu), the noise norm of one mean bought with the whole budget, over the clip
    excess              E = 2.2 N0^1.1 m^-0.9 of the logistic loss, m the typical number of records of a user

A user's mean gradient fluctuates by m^-1/2 of a record's, which is why the clip, and with it the noise, falls with m. E
was fitted to the excess of the default on 79 cells of real and generated users (epsilon 0.5 to 8), of which 82 % are
within a factor of 3 where m is right; docs/benchmarks-users.md. All of it concerns utility only.
"""

import math

from privopt.errors import BudgetTooSmall
from privopt.planning.descent_defaults import guess as guess_of
from privopt.planning.instance import Instance
from privopt.planning.whitening import loss_constants

FEWEST_USERS = 20  # that any plan is made for: one of fewer is most of a mean by itself
FAINT = 0.1  # the noise of one mean from which on a plan warns
DROWNED = 1.0  # from which on it is refused: each mean is more noise than signal
EXCESS, NOISE_POWER, RECORDS_POWER = 2.2, 1.1, -0.9
LOGISTIC_DISTANCE = 12.8  # `descent_defaults.guess` of the logistic loss: travel times slope


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

    Right within a factor of about 3 where the typical number of records is right. For losses other than the logistic
    one it is scaled by slope and distance, and was not fitted.

    Source:
        Fitted, see the module.
    """
    noise, guess = one_shot_noise(instance), guess_of(instance)
    scale = guess.travel * guess.slope / LOGISTIC_DISTANCE * loss_constants(instance).slope
    records = instance.public.typical_records**RECORDS_POWER
    return instance.capped(EXCESS * scale * noise**NOISE_POWER * records)


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
