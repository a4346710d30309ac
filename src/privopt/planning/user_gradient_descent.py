"""Constants of user-level gradient descent from public numbers.

With n users, p parameters, rows of norm at most R, budget mu (Gaussian DP), m the typical number of records of a user
and s = 2 (replace-one) or 1 (add-or-remove-one):

    noise of one mean   N0 = s sqrt(p) / (n mu): what the whole budget leaves on one mean, over the clip
    first clip          C_0 = L0 max(1/20, m^-1/2 / 2), L0 the longest gradient of a record worth keeping: users'
                        averages of m records differ by about L0 m^-1/2, and people differ however much they contribute
    quantile            q = 0.99 - 12 N0, between 0.3 and 0.99: where there is little noise the bias of a small clip
                        shows; with few records a user and N0 <= 0.004 there is no adaptation, and C_0 = L0
    travel              A = D / (N0 C_0): what eta T / (1 - theta) may add up to before noise costs more than bias, D
                        how far the optimum is
    steps               T = A (1 - theta) L / 1.5, between 10 and 200; L the curvature of the mean loss
    step size           eta = min(1.5 / L, A (1 - theta) / T); momentum theta = 1/2

Once the mean weight is released, m is the number of records that it stands for.

All of it concerns utility only.

Source:
    A, T and eta balance D^2 / (2 e A) + 0.41 (N0 c)^2 A, the bias and the noise of averaged gradient descent (ours).
"""

import math
from typing import TYPE_CHECKING, Any

from privopt.planning import descent_theory
from privopt.planning.coordinates import Coordinates
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.task import Forecast, Instance
from privopt.planning.users import expected_excess, faint_users, one_shot_noise
from privopt.public import Public

if TYPE_CHECKING:
    from privopt.solvers.user_gradient_descent import UserGradientDescent

CLIP_RATE = 0.4
HEIGHT = 0.19  # of the count over the clip: 3.5 % of the budget
WEIGHT_SHARE = 0.01
MOMENTUM = 0.5
FEWEST_STEPS, MOST_STEPS = 10, 200
STEP_FACTOR = 1.5  # momentum 1/2 is stable up to 3
DISTANCE = 0.4  # D over the distance that record-level descent plans for
LEAST_SPREAD = 0.05  # half of it is the least clip: people differ, however much they contribute
PLENTY = 0.004  # N0 up to which few records a user are not clipped
FEW_RECORDS = 5.0


def clips_tightly(instance: Instance) -> bool:
    """Whether users' gradients are clipped at their spread: not where there is next to no noise to save."""
    few = instance.public.typical_records <= FEW_RECORDS
    return instance.is_private and not (few and one_shot_noise(instance) <= PLENTY)


def spread(records: float) -> float:
    """Half of how far users' averages of so many records are apart, over the longest gradient of a record."""
    return 0.5 * max(LEAST_SPREAD, records**-0.5)


def first_clip(instance: Instance) -> float:
    """C_0; infinite with the noise off."""
    if not instance.is_private:
        return math.inf
    longest = descent_theory.default_clip(instance)
    return longest * spread(instance.public.typical_records) if clips_tightly(instance) else longest


def quantile(instance: Instance) -> float:
    """q."""
    if not clips_tightly(instance):
        return 1.0
    return min(max(0.99 - 12.0 * one_shot_noise(instance), 0.3), 0.99)


def reach(instance: Instance) -> float | None:
    """D / N0, in params times gradient units; None with the noise off."""
    noise = one_shot_noise(instance)
    if noise == 0:
        return None
    guess = descent_theory.guess(instance)
    return DISTANCE * guess.travel * guess.slope / (instance.public.row_bound * noise)


def smoothness(instance: Instance) -> float:
    """L, a guess of the curvature of the mean objective."""
    return descent_theory.smoothness(instance) + instance.penalty_smoothness


def steps(solver: "UserGradientDescent", instance: Instance) -> int:
    """T."""
    if solver.reach is None:
        return descent_theory.NOISELESS_STEPS
    wanted = solver.reach / solver.clip * (1.0 - solver.momentum) / solver.step_size
    return min(max(math.ceil(wanted), FEWEST_STEPS), MOST_STEPS)


def records_of_weight(weight: float, public: Public) -> float:
    """How many records a user of the mean weight has: the inverse of the weighting. Post-processing."""
    share = weight**2 if public.weighting == "sqrt" else weight
    return max(public.records_per_unit * share, 1.0)


def rescaled_clip(solver: "UserGradientDescent", weight: float, public: Public) -> float:
    """C_0 for the number of records that the mean weight stands for, not the typical one. Post-processing."""
    return solver.clip * spread(records_of_weight(weight, public)) / spread(solver.typical)


def in_coordinates(coordinates: Coordinates) -> dict[str, Any]:
    """Clip, step size and momentum of other coordinates."""
    return {
        "clip": coordinates.clip,
        "step_size": 1.0 / (coordinates.smoothness + coordinates.ridge_smoothness),
        "momentum": coordinates.momentum,
    }


def forecast(solver: "UserGradientDescent", instance: Instance) -> Forecast:
    """That of `users.expected_excess`."""
    if not instance.is_private:
        return Forecast(
            excess=None if instance.has_own_loss else 0.0, meaning="the noise is off", notices=(NOISE_IS_OFF,)
        )
    notices = large_delta(instance) + (faint_users(instance) if instance.public.by_user else ())
    if instance.has_own_loss:
        return Forecast(meaning="no formula for a user-written loss", notices=notices)
    del solver
    return Forecast(
        excess=expected_excess(instance),
        meaning="fitted to the default; mostly within a factor of 3 if people have as many records as was said",
        notices=notices,
    )
