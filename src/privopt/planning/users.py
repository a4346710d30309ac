"""How many users a budget needs, from public numbers alone.

With n users, p parameters, budget mu (Gaussian DP) and s = 2 (replace-one) or 1 (add-or-remove-one):

    noise of one mean   N0 = s sqrt(p) / (n mu), the noise norm of one mean bought with the whole budget, over the clip
    excess              E = 2.2 N0^1.1 m^-0.9 of the logistic loss, m the typical number of records of a user

A user's mean gradient fluctuates by m^-1/2 of a record's, which is why the clip, and with it the noise, falls with m. E
was fitted to the excess of the default on 79 cells of real and generated users (epsilon 0.5 to 8), of which 82 % are
within a factor of 3 where m is right; docs/benchmarks-users.md. All of it concerns utility only.
"""

import math
from typing import TYPE_CHECKING

from privopt.errors import BudgetTooSmall
from privopt.later import Array, jax, jnp
from privopt.ledger.curves import gaussian_mu
from privopt.planning.descent_theory import OWN_SLOPE, guess
from privopt.planning.descent_theory import guess as guess_of
from privopt.planning.task import Instance
from privopt.planning.whitening import loss_constants
from privopt.problems.losses import GLMLoss, Squared

if TYPE_CHECKING:
    from privopt.papers.phased_group_sgd import PhasedGroupSGD
    from privopt.solvers.phased_accelerated_erm import PhasedAcceleratedERM
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from privopt.json_values import json_value
from privopt.ledger.curves import gaussian_epsilon
from privopt.precision import in_float64
from privopt.problems.problem import Problem
from privopt.public import CAPS, of_users

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


# ---- What the phased methods for users have in common: who is in a phase, and what a phase may spend -------
# Phase i = 0, 1, ... gets a share of the users proportional to 2^(-q i) where the phases are disjoint (`blocks`), and
# all n of them where they are reused. Disjoint phases may spend the whole budget each, since a user is in one of them;
# reused ones divide it. The noise of a mean over a share w of the users is that of all users over w, and reuse divides
# the budget by l, which costs sqrt(l): reuse is better from w = 1 / sqrt(l) down, that is for every phase but perhaps
# the first.
#
# Source:
#     Lowy, Liu, Asi 2024, Algorithms 1 and 3, line 4, with shares that use everybody.


BAD_EVENTS = 0.1  # of delta, for tests that pass though they should not
DISTANCE = 2.0  # from 0 to the optimum, where features are standardised
MOST_GAUSSIAN_TESTS = 40  # beyond them one sparse vector needs less slack


def paper_sizes(n: int, decay: float) -> tuple[float, ...]:
    """(1 - 2^-q) n / 2^(q i) users for i = 1 .. floor(log2 n), as printed; a fraction 1 - 2^-q of them takes no part.

    Args:
        n: users.
        decay: q.
    """
    return tuple((1.0 - 0.5**decay) * n / 2.0 ** (decay * i) for i in range(1, math.floor(math.log2(n)) + 1))


def phase_sizes(n: int, phases: int, decay: float) -> tuple[int, ...]:
    """The users of disjoint phases: proportional to 2^(-q i), all together at most n.

    Args:
        n: users.
        phases: l.
        decay: q.
    """
    weights = [2.0 ** (-decay * i) for i in range(phases)]
    return tuple(math.floor(n * weight / math.fsum(weights)) for weight in weights)


def users_of(solver: "PhasedGroupSGD | PhasedAcceleratedERM", n: int) -> tuple[int, ...]:
    """How many users each phase of a solver looks at."""
    return (n,) * solver.phases if solver.reuse else phase_sizes(n, solver.phases, solver.share_decay)


def parts(solver: "PhasedGroupSGD | PhasedAcceleratedERM") -> int:
    """Into how many parts the budget is divided: one a phase where users are reused."""
    return max(1, solver.phases) if solver.reuse else 1


def rho_of_phase(
    instance: Instance, solver: "PhasedGroupSGD | PhasedAcceleratedERM", bad_events: float
) -> float:
    """The zCDP cost that a phase may have, bad events taken off delta; infinite without noise.

    Args:
        instance: problem, public numbers and budget.
        solver: how the phases share the budget.
        bad_events: the part of delta that is set aside.
    """
    if not instance.is_private:
        return math.inf
    budget = instance.budget
    return gaussian_mu(budget.epsilon, budget.delta - bad_events) ** 2 / (2.0 * parts(solver))


def bad_event_delta(instance: Instance, solver: "PhasedGroupSGD | PhasedAcceleratedERM", tests: int) -> float:
    """delta_1 of one test: a tenth of delta, divided among the tests that one user can be in.

    Args:
        instance: problem, public numbers and budget.
        solver: how the phases share the budget.
        tests: in one phase.
    """
    return BAD_EVENTS * instance.budget.delta / (parts(solver) * max(1, tests))


def steepest_gradient(instance: Instance) -> float:
    """L0, the longest gradient of a record that is worth keeping; numbers to predict are thought of as standardised."""
    loss, row_bound = instance.problem.loss, instance.public.row_bound
    if isinstance(loss, Squared):
        return 3.0 * row_bound
    bound = instance.gradient_bound
    if math.isfinite(bound):
        return bound
    return guess(instance).slope * row_bound if isinstance(loss, GLMLoss) else OWN_SLOPE * row_bound


def distance(instance: Instance) -> float:
    """R, a guess of the distance to the optimum: 2 for rows of norm sqrt(d), no further than a ball allows."""
    guessed = DISTANCE * math.sqrt(instance.public.d) / instance.public.row_bound
    radius = getattr(instance.problem.constraint, "radius", math.inf)
    return min(guessed, 2.0 * float(radius))


# ---- A clip for a loss of the user's own, from records that are public or made up --------------------------


def clip_from(
    problem: Problem, public_features: ArrayLike, public_targets: ArrayLike, *, at: Array | None = None
) -> float:
    """The median norm of a record's gradient, over public or made-up records.

    Args:
        problem: whose loss.
        public_features: rows like the private ones, (m, d). **Never rows of the private data.**
        public_targets: their targets, (m,).
        at: the point, such as the start of the solve; default zero.
    Returns:
        A clip: about half of the records would be shortened, at first; fewer as the gradients shrink.
    Raises:
        ValueError: all gradients are zero or not finite, so that no scale can be read off.
    """
    with in_float64():
        rows = jnp.asarray(public_features, jnp.float64)
        targets = jnp.asarray(public_targets, jnp.float64)
        point = (
            jnp.zeros(_shape(problem, rows), jnp.float64)
            if at is None
            else jnp.asarray(problem.ravel(at), jnp.float64)
        )
        gradients = jax.vmap(problem.record_gradient, (None, 0, 0))(point, rows, targets)
        norms = np.sqrt(np.sum(np.asarray(gradients).reshape(len(rows), -1) ** 2, axis=1))
    median = float(np.median(norms))
    if not (np.isfinite(median) and median > 0):
        raise ValueError(
            f"the median gradient norm of these records is {median!r}: give records whose gradients are finite and not "
            "zero, or another point `at`."
        )
    return median


def _shape(problem: Problem, rows: Array) -> tuple[int, ...]:
    """The shape of the parameters, by the number of features."""
    if problem.layout is not None:
        return (problem.layout.size,)
    d, outputs = int(rows.shape[1]), problem.loss.outputs
    return (d,) if outputs == 1 else (d, outputs)


# ------------------------------------------------------------------------------------------------------------
# What protecting users costs beside protecting records, and what a cap on their records does, from public
# numbers.


@dataclass(frozen=True, kw_only=True)
class CapPrice:
    """One way to count units, at the same budget.

    Attributes:
        cap: the most records of a user that are used; None where each record is a unit of its own.
        typical_records: the public guess of how many records of a user are used.
        units: how many units there are, of records a guess.
        noise: N0, the noise of one mean over the largest contribution of a unit; from 1 on a plan is refused.
        excess: what is expected of the objective above its optimum, see `users.expected_excess`.
        smallest_n: the number of units from which on the budget is workable.
        epsilon_of_person: what the same run promises to a person all of whose records change, at the same delta.
    """

    cap: int | None
    typical_records: float
    units: int
    noise: float
    excess: float
    smallest_n: int
    epsilon_of_person: float

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return json_value(vars(self))


def compare_caps(
    instance: Instance, *, typical: float | None = None, caps: Sequence[int] = CAPS
) -> tuple[CapPrice, ...]:
    """Records as units, and users with each of some caps, at one budget.

    Args:
        instance: the problem with users as units.
        typical: public guess of how many records a typical user has; None for the root of each cap.
        caps: the caps to compare.
    """
    return (_of_records(instance), *(_of_users(instance, cap, typical) for cap in caps))


def _of_users(instance: Instance, cap: int, typical: float | None) -> CapPrice:
    kept = None if typical is None else min(max(typical, 1.0), float(cap))
    public = replace(instance.public, **of_users(cap, instance.public.weighting, kept))
    return _price(replace(instance, public=public), cap, instance.budget.epsilon)


def _of_records(instance: Instance) -> CapPrice:
    """Each record a unit, as many as users of the typical number make; then a whole person is a group of records."""
    public = instance.public
    alone = {"unit": "record", "records_per_unit": 1, "weighting": "user", "typical_records": 1.0}
    each = replace(public, n=max(2, round(public.n * public.typical_records)), **alone)
    together = public.typical_records * instance.mu
    epsilon = (
        gaussian_epsilon(together, instance.budget.delta) if instance.is_private else instance.budget.epsilon
    )
    found = _price(replace(instance, public=each), None, epsilon)
    return replace(found, typical_records=public.typical_records)


def _price(instance: Instance, cap: int | None, epsilon: float) -> CapPrice:
    return CapPrice(
        cap=cap,
        typical_records=instance.public.typical_records,
        units=instance.public.n,
        noise=one_shot_noise(instance),
        excess=expected_excess(instance),
        smallest_n=smallest_workable_n(instance),
        epsilon_of_person=epsilon,
    )
