"""Constants of federated averaging from public numbers.

With n users, p parameters, rows of norm at most R, budget mu (Gaussian DP) and s = 2 (replace-one) or 1:

    rounds         P = 12
    local steps    eta_t = 0.9^t / (L + l), L the largest curvature of a record's loss, l that of the penalty. A step is
                   stable up to 2 / (L + l)
    first clip     between 10^-3 and 10 times sqrt(d) / R: parameters of columns of about standard deviation 1 are about
                   1 long; of a user-written loss, times 1
    quantile       q = 1/2; with the noise off everything is kept
                   with the stable aggregator 0.9, since c is then a radius that nearly all moves share
    budget         90 % of mu^2 for the means, 10 % for all counts

P, the first step size and its decay were chosen by the excess of logistic regression (epsilon 1) on generated users:
300 x 300, 1000 x 100 (all alike, or each with an optimum of their own) and 500 x 30 records of 20 columns, and 800
users with a median of 36 records of 41 columns. With 6 rounds and half the step, always the same, it was 1.2 to 6 times
as large. The forecast is 0.3 times `noise_excess`, and 0.0015 times the loss at zero: on the same data, epsilon 1 and
3, it was off by factors of 0.4 to 2.4, and by more where nothing was left to be lost. All of it concerns utility only.

Source:
    Lowy, Liu, Asi 2024, for the setting; the rule when to use it, and the formula of the noise, are ours.
"""

import math
from typing import Any

from privopt.planning import descent_defaults, effort, stable_mean
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta, long_steps
from privopt.planning.plan import Finding
from privopt.planning.users import faint_users, one_shot_noise
from privopt.problems.glm import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public, Relation

ROUNDS = 12
DECAY = 0.9
QUANTILE, STABLE_QUANTILE = 0.5, 0.9
OUTLIERS, TEST_SHARE = 0.2, 0.3
FIRST_COUNTS, LATER_COUNTS = 10, 5
COUNT_SHARE = 0.1
LONGEST, SPAN = 10.0, 1e4
ENOUGH_RECORDS, FEW_USERS = 20.0, 0.04
FOR_CORNERS, FOR_CORNERS_OF_FEW = 8.0, 3.0  # records a parameter
DISTANCE = 3.0  # D times R: predictions of the optimum
LEFT_BY_ROUNDS = 0.3  # of the noise of all means
LEFT_BY_DRIFT = 0.0015  # of the loss at zero, by users' optima that pull apart and by rounds that are too few
SEQUENTIAL = 3.0  # time of a local step over that of a record in a pass of gradients


def step_size(instance: Instance) -> float:
    """eta of the first round."""
    return 1.0 / (descent_defaults.smoothness(instance) + instance.penalty_smoothness)


def longest(instance: Instance) -> float:
    """The longest first clip."""
    if instance.has_own_loss:
        return LONGEST
    return LONGEST * math.sqrt(instance.public.d) / instance.public.row_bound


def quantile(solver: Any, instance: Instance) -> float:
    """q."""
    if not instance.is_private:
        return 1.0
    return QUANTILE if solver.aggregator == "clip" else STABLE_QUANTILE


def bad_event_delta(solver: Any, instance: Instance) -> float:
    """delta_1 of each round: a tenth of delta for all of them."""
    if solver.aggregator == "clip" or not instance.is_private or solver.rounds == 0:
        return 0.0
    return stable_mean.BAD_EVENT_SHARE * instance.budget.delta / solver.rounds


def test_share(solver: Any, instance: Instance) -> float:
    """The share of a round's test.

    Raises:
        BudgetTooSmall: there are too few users for a test; it names how many are enough.
    """
    if solver.aggregator == "clip" or not solver.bad_event_delta > 0.0:
        return TEST_SHARE
    return stable_mean.plan_stable_mean(
        points=instance.public.n,
        replaced=instance.public.relation is Relation.REPLACE_ONE,
        rho=0.5 * instance.mu**2 * (1.0 - solver.count_share) / solver.rounds,
        bad_event_delta=solver.bad_event_delta,
        outliers=solver.outliers,
    ).share


DEFAULTS = {
    "step_size": lambda solver, instance: step_size(instance),
    "quantile": lambda solver, instance: quantile(solver, instance),
    "longest": lambda solver, instance: longest(instance),
    "bad_event_delta": bad_event_delta,
    "test_share": test_share,
}


def wins(instance: Instance) -> bool:
    """Whether averaging local passes is expected to be better than descent on users' gradients, by public numbers.

    It takes many records a user, for a pass to lead anywhere, and few users: the noise of one mean that the whole
    budget buys is at least 4 % of the longest contribution. On a loss with corners, where every record moves the
    parameters as far as the last, a pass takes eight records a parameter, or three of few users, and then serves any
    number of users; by the median of generated users with 4 to 30 columns at epsilon 0.3 to 3.
    """
    public = instance.public
    if not (public.by_user and instance.is_private and public.typical_records >= ENOUGH_RECORDS):
        return False
    few = one_shot_noise(instance) >= FEW_USERS
    if has_corners(instance):
        wanted = FOR_CORNERS_OF_FEW if few else FOR_CORNERS
        return public.typical_records >= wanted * instance.parameters
    return few


def has_corners(instance: Instance) -> bool:
    """Whether it is a convex generalised-linear loss of infinite curvature."""
    loss = instance.problem.loss
    return bool(loss.convex) and not instance.has_own_loss and math.isinf(loss.curvature)


def pass_seconds(problem: Problem, public: Public) -> float:
    """Rough time of one round of local passes."""
    own = None if isinstance(problem.loss, GLMLoss) else math.prod(problem.parameter_shape(public))
    return SEQUENTIAL * effort.pass_seconds(public, problem.loss.outputs, own=own)


def reading_seconds(problem: Problem, public: Public) -> float:
    """Rough time of reading every user's kept move once."""
    return public.n * math.prod(problem.parameter_shape(public)) * 8 * 8 * effort.BYTE_SECONDS


def noise_excess(solver: Any, instance: Instance) -> float:
    """What the noise of all means does to the objective if no round contracts it.

    (phi'' R^2 / 2) (s c / n)^2 P^2 / (2 rho), R^2 standing for the trace of the rows' second moment and
    c = D / 2, half of the way to the optimum.
    """
    public, curvature = instance.public, descent_defaults.smoothness(instance)
    clip = DISTANCE / public.row_bound / 2.0
    spread = public.relation.factor * clip / (public.n * instance.mu)
    return 0.5 * curvature * spread**2 * solver.rounds**2 / (1.0 - solver.count_share)


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The noise of the means, where a formula says how the objective feels it."""
    curved = descent_defaults.smoothness(instance) + instance.penalty_smoothness
    steps = long_steps(solver.step_size, curved)
    if not instance.is_private:
        return Forecast(
            meaning="the noise is off; users' local optima pull apart where they differ",
            notices=(NOISE_IS_OFF, *steps),
        )
    notices = (*large_delta(instance), *faint_users(instance), *steps)
    if instance.has_own_loss:
        return Forecast(meaning="no formula for a user-written loss", notices=notices)
    whole = noise_excess(solver, instance)
    drift = LEFT_BY_DRIFT * (instance.loss_at_zero or 0.0)
    meaning = (
        "of the noise of the means if no round contracted what the rounds before left: an upper estimate"
    )
    return Forecast(
        excess=instance.capped(LEFT_BY_ROUNDS * whole + drift),
        meaning="for users who agree, with 30 records and more; often off by a factor of 3",
        indicators={"uncontracted_noise": Finding(whole, meaning)},
        notices=notices,
    )
