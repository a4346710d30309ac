"""What theory says of private optimisation under the KL condition, from public numbers: rates, floors, lower bounds.

With s the noise of one gradient bought with the whole budget (`descent_defaults.noise_of_one`) and p parameters:

    horizon          distance / (2 sqrt(p) s), the sum of step sizes beyond which more optimisation mostly fits noise
    one-query floor  (s^2 / 2) trace(H^-1), what no first-order method that needs the gradient that well beats by much

The lower bounds are about the worst data set of a class of losses. `KLRates` has the right-hand sides of the published
theorems with every hidden constant set to 1: for comparing exponents, not for planning.

Source:
    Menart, Ullah, Arora, Bassily, Guzman 2023, Theorems 1, 2, 4, 5, 6, 8 and Corollary 1. The horizon and the floor
    are ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.planning import descent_theory
from privopt.planning.plan import Finding
from privopt.planning.task import Instance
from privopt.problems.growth import KL
from privopt.public import Public, Relation

FEWEST_FALLING = 10  # steps
FLAT = 1.05  # fewer passes are taken where they are predicted to cost at most this factor of the excess
RATE = "rate, without constants"
TRUE = "true bound for the worst data set"


def horizon(distance: float, parameters: int, noise: float) -> float:
    """The sum of step sizes beyond which more optimisation mostly fits noise; infinite without noise.

    Args:
        distance: a public guess of the distance from the start to the optimum.
        parameters: how many there are.
        noise: s, a coordinate's noise of one gradient bought with the whole budget.
    """
    return distance / (2.0 * math.sqrt(parameters) * noise) if noise > 0.0 else math.inf


@dataclass(frozen=True, kw_only=True)
class FallingNoise:
    """The steps and the noise of plain descent whose noise falls geometrically, for its last iterate.

    With R_w a guess of how far the solution is, p parameters, and s the noise of one gradient that the whole budget
    buys, a path is as long as the horizon h = R_w / (2 sqrt(p) s), and step t of T = h / eta gets the share
    q^t / sum_s q^s of rho, q = ratio^(1 / (T - 1)). For a mode of curvature c the final variance is least for shares
    proportional to (1 - eta c)^(T-1-t); equal ones pay about ln(F_0 / F_T) / 4 times as much, F_0 / F_T the mode's
    contraction. Utility only.

    Attributes:
        ratio: the last step's share of the budget over the first's; 1 is equal noise.
        distance: R_w; None for 10 / R, R the row bound: for features of about the row bound's size.
        most_steps: T is at most this, and with the noise off it is this.
        growth: the KL condition of the objective; None for that of the problem. With it, T is the least one whose
            predicted excess is within 5 % of the best, and the plan has a prediction.
    """

    ratio: float = 30.0
    distance: float | None = None
    most_steps: int = 1000
    growth: KL | None = None

    def __post_init__(self) -> None:
        if not 1.0 <= self.ratio < math.inf:
            raise ValueError(f"ratio must be at least 1 and finite, got {self.ratio!r}: 1 is equal noise.")
        if self.distance is not None and not 0.0 < self.distance < math.inf:
            raise ValueError(f"distance must be above 0 and finite, got {self.distance!r}.")
        if self.most_steps < 1:
            raise ValueError(f"most_steps must be at least 1, got {self.most_steps!r}.")

    def contraction(self, steps: int) -> float:
        """a of `budget_shares`, whose shares grow by 1 / sqrt(a) a step."""
        return 1.0 if steps < 2 else self.ratio ** (-2.0 / (steps - 1))

    def steps(self, instance: Instance, *, clip: float, step_size: float, smoothness: float) -> int:
        """T of the horizon, or the fewest steps with nearly the best prediction.

        Args:
            instance: the problem and the budget.
            clip: C.
            step_size: eta.
            smoothness: L of the objective, the penalty included.
        """
        if not instance.is_private:
            return self.most_steps
        noise = descent_theory.noise_of_one(instance, clip)
        distance = DISTANCE / instance.public.row_bound if self.distance is None else self.distance
        longest = horizon(distance, instance.parameters, noise)
        candidates = sorted(
            {round(1.15**k) for k in range(200) if 1.15**k < self.most_steps} | {self.most_steps}
        )
        predicted = {
            t: self.predicted_excess(instance, t, clip=clip, step_size=step_size, smoothness=smoothness)
            for t in candidates
        }
        known = {t: excess for t, excess in predicted.items() if excess is not None}
        if not known:
            by_horizon = math.ceil(min(longest / step_size, self.most_steps))
            return min(max(by_horizon, FEWEST_FALLING), self.most_steps)
        best = min(known.values())
        return next(t for t, excess in known.items() if excess <= FLAT * best)

    def predicted_excess(
        self, instance: Instance, steps: int, *, clip: float, step_size: float, smoothness: float
    ) -> float | None:
        """The recursion of `predicted_path` for T steps; None without a KL condition and a finite gap."""
        growth = instance.growth if self.growth is None else self.growth
        if growth is None or growth.kappa > 2.0 or not math.isfinite(growth.gap_within(clip)) or not steps:
            return None  # above 2 no objective is smooth, which the recursion takes it to be
        noise = descent_theory.noise_of_one(instance, clip)
        shares = descent_theory.budget_shares("geometric", steps, self.contraction(steps))
        return descent_theory.predicted_path(
            growth,
            gap=growth.gap_within(clip),
            step_size=step_size,
            smoothness=smoothness,
            trace=smoothness * descent_theory.trace_ratio(instance.problem, instance.public),
            noises=noise / np.sqrt(shares),
        )


def one_query_floor(noise: float, inverse_trace: float) -> float:
    """The excess that the noise of one gradient stands for where the curvature H is known: (s^2 / 2) trace(H^-1)."""
    return 0.5 * noise**2 * inverse_trace


def smooth_rate(growth: KL, n: int, rho: float, lipschitz: float, parameters: int) -> float:
    """(gamma L_0 sqrt(p) / (n sqrt(rho)))^kappa, kappa in (1, 2]: the rate of the least excess of any method.

    At most (gamma L_0)^kappa, which the excess of any start is.

    Differs from the paper:
        the cap; its Corollary 1 supposes n large.
    """
    return growth.excess_at(lipschitz * min(math.sqrt(parameters) / (n * math.sqrt(rho)), 1.0))


def growth_rate(growth: KL, n: int, epsilon: float, lipschitz: float, parameters: int) -> float:
    """The same rate for (epsilon, delta), with its dependence on the exponent: tau^(1 - kappa) (...)^kappa.

    tau = kappa / (kappa - 1) is the exponent of the growth `F - F* >= (dist / gamma)^tau`.
    """
    tau = growth.kappa / (growth.kappa - 1.0)
    ratio = min(math.sqrt(parameters) / (n * epsilon), 1.0)
    return tau ** (1.0 - growth.kappa) * growth.excess_at(lipschitz * ratio)


def sharp_lower_bound(
    growth: KL, public: Public, epsilon: float, delta: float, lipschitz: float
) -> float | None:
    """(1/4) (gamma L_0 / (n epsilon))^kappa, kappa >= 2: a convex loss and data set on which no method does better.

    It holds for epsilon <= ln 2 and delta <= (1 - e^-epsilon) / 16, in any dimension; None elsewhere.

    Differs from the paper:
        which is about data sets that differ in one replaced record. What is (epsilon, delta)-private against adding or
        removing one is (2 epsilon, (1 + e^epsilon) delta)-private against that.
    """
    if public.relation is Relation.ADD_OR_REMOVE_ONE:
        epsilon, delta = 2.0 * epsilon, (1.0 + math.exp(min(epsilon, 1.0))) * delta
    if growth.kappa < 2.0 or epsilon > math.log(2.0) or delta > -math.expm1(-epsilon) / 16.0:
        return None
    return 0.25 * growth.excess_at(lipschitz / (public.n * epsilon))


def lower_bound_indicators(
    growth: KL | None,
    public: Public,
    budget: Budget,
    lipschitz: float,
    parameters: int,
    distance: float | None = None,
) -> Mapping[str, Finding]:
    """What no private method does better than on the worst data set, for a plan to print.

    Args:
        growth: the KL condition, if it is known.
        public: what is public about the data.
        budget: the budget; nothing bounds a method that is not private.
        lipschitz: L_0, a bound on one record's gradient; nothing is said where it is infinite.
        parameters: how many there are.
        distance: a guess of the distance from the start to the optimum, for the rate of all convex losses.
    Returns:
        "least_excess_rate" (kappa in (1, 2]), "least_excess" (kappa >= 2, small epsilon) and "convex_rate" (with
        `distance`), each saying whether it is a rate or a true bound.
    """
    found: dict[str, Finding] = {}
    if not (budget.is_private and math.isfinite(lipschitz)):
        return found
    rho = 0.5 * gaussian_mu(budget.epsilon, budget.delta) ** 2 if budget.delta > 0.0 else 0.0
    if growth is not None and 1.0 < growth.kappa <= 2.0 and rho > 0.0:
        found["least_excess_rate"] = Finding(
            smooth_rate(growth, public.n, rho, lipschitz, parameters),
            f"least excess of any private method for losses of this growth ({RATE})",
        )
    if growth is not None:
        least = sharp_lower_bound(growth, public, budget.epsilon, budget.delta, lipschitz)
        if least is not None:
            found["least_excess"] = Finding(
                least, f"least expected excess of any private method for losses of this growth ({TRUE})"
            )
    if distance is not None:
        ratio = min(math.sqrt(parameters) / (public.n * budget.epsilon), 1.0)
        found["convex_rate"] = Finding(
            lipschitz * distance * ratio,
            f"least excess of any private method for convex losses whose growth is not known ({RATE})",
        )
    return found


@dataclass(frozen=True, kw_only=True)
class KLRates:
    """The published upper bounds with every hidden constant set to 1: rates only, never a plan.

    Attributes:
        growth: the KL condition, with a finite gap F_0 or one that gamma and L_0 imply.
        n: units.
        rho: the whole budget.
        parameters: p.
        lipschitz: L_0.
        curvature: L_1, of one record's loss; for `proximal_point` its weak convexity, 0 for a convex loss.
        failure: beta, where a theorem has logarithms of it.
    """

    growth: KL
    n: int
    rho: float
    parameters: int
    lipschitz: float
    curvature: float
    failure: float = 0.1

    @property
    def gap(self) -> float:
        """F_0."""
        return self.growth.gap_within(self.lipschitz)

    @property
    def signal(self) -> float:
        """n sqrt(rho)."""
        return self.n * math.sqrt(self.rho)

    def spider(self) -> float:
        """Theorem 1, kappa in [1, 2]: `(gamma L_0 sqrt(p (1 + A)) / (n sqrt(rho)))^kappa`.

        A = gamma^2 L_1 / F_0^((2 - kappa) / kappa).
        """
        self._require(self.growth.kappa <= 2.0, "kappa in [1, 2]")
        return self._power(1.0 + self._conditioning)

    def proximal_point(self) -> float:
        """Theorem 2, kappa >= 2: the same with weak convexity in place of curvature."""
        self._require(self.growth.kappa >= 2.0, "kappa at least 2")
        return self._power(1.0 + self._conditioning)

    def adaptive(self) -> float:
        """Theorem 4, kappa in [1, 2]: the sum of its three terms.

        The second and third are the price of its norm releases. They hold maxima of constants with 1, so that they are
        not of one unit; as printed.
        """
        self._require(self.growth.kappa <= 2.0, "kappa in [1, 2]")
        kappa, gamma, slow = self.growth.kappa, self.growth.gamma, 1.0 + 8.0 * self._square * self.curvature
        logarithm = max(math.log(self.signal / self.failure), 1.0)
        exponent = 2.0 * kappa / (4.0 - kappa)
        relative = self.signal / (gamma * self.lipschitz)
        most_steps = slow * max(math.log(self.gap) + exponent * math.log(relative), 1.0)
        first = math.sqrt(self.parameters * logarithm * most_steps) / relative
        second = max(self._square, 1.0) * self.lipschitz**2 * logarithm
        second /= min(self.curvature, 1.0) * self.signal
        third = most_steps / self.signal
        last = third ** (kappa / (2.0 - kappa)) if kappa < 2.0 else (0.0 if third < 1.0 else math.inf)
        return first**exponent + second ** (kappa / 2.0) + last

    def stationary(self, steps: int) -> float:
        """Theorem 5, without any growth: a gradient norm after this many steps."""
        by_steps = math.sqrt(self.gap * self.curvature / steps)
        spread = math.sqrt(self.gap * self.curvature * self.parameters)
        by_budget = math.sqrt(self.lipschitz * spread / self.signal)
        logarithm = max(math.log(self.signal / self.failure), 1.0)
        return min(by_steps, by_budget) + self.lipschitz * math.sqrt(logarithm / self.signal)

    @property
    def _square(self) -> float:
        return self.growth.gamma**2

    @property
    def _conditioning(self) -> float:
        """gamma^2 L_1 F_0^((kappa - 2) / kappa), without a unit."""
        kappa = self.growth.kappa
        return self._square * self.curvature * self.gap ** ((kappa - 2.0) / kappa)

    def _power(self, conditioning: float) -> float:
        ratio = math.sqrt(self.parameters * conditioning) / self.signal
        return self.growth.excess_at(self.lipschitz * ratio)

    def _require(self, holds: bool, range_of_kappa: str) -> None:
        if not holds:
            raise ValueError(f"this theorem is about {range_of_kappa}, got kappa = {self.growth.kappa!r}.")


# ---- What can be hoped for at a budget, whichever solver runs: public numbers that every plan prints -------
# Source: see `kl_theory`, where the formulas are.


DISTANCE = 10.0  # guess of the distance from the start to the optimum, in units of 1 / R


def common_indicators(instance: Instance) -> Mapping[str, Finding]:
    """The noise of one gradient, the horizon, what that noise leaves at least, and lower bounds; without noise nothing.

    Lower bounds need a loss whose formula bounds its gradient.
    """
    if not instance.is_private or instance.budget.delta == 0.0:
        return {}
    parameters = instance.parameters
    noise = descent_theory.noise_of_one(instance, descent_theory.default_clip(instance))
    distance = DISTANCE / instance.public.row_bound
    found = {
        "gradient_noise": Finding(
            noise, "noise of each coordinate of one gradient that the whole budget bought"
        ),
        "horizon": Finding(
            horizon(distance, parameters, noise), "sum of step sizes beyond which more steps mostly fit noise"
        ),
    }
    growth, ridge = instance.growth, instance.ridge
    if growth is None and ridge > 0 and instance.problem.loss.convex is not False:
        growth = KL.of_strong_convexity(ridge)
    if growth is not None:
        left = growth.excess_at(math.sqrt(parameters) * noise)
        meaning = "largest excess of a point whose gradient is no longer than that noise"
        found["one_query_floor"] = Finding(left, meaning)
    bounds = lower_bound_indicators(
        instance.growth, instance.public, instance.budget, instance.gradient_bound, parameters, distance
    )
    return {**found, **bounds}
