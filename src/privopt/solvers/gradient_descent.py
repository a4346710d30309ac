"""Full-batch private gradient descent, with fixed momentum, proximal steps and averaging.

Minimises F(x) + r(x) over a closed convex set, F(x) = (1/n) sum_i f(x, xi_i), xi_i the data of unit i, r the penalty:

    u_t     = x_t + b (x_t - x_{t-1})
    g_t     = (1/n) sum_i clip_C(grad f(u_t, xi_i)) + Gaussian noise       released, the only access to data
    x_{t+1} = prox(u_t - eta (g_t + grad r(u_t)))                          the smooth part of r enters by its gradient

Source: Wang, Ye, Xu 2017, Algorithm 4; Bassily, Smith, Thakurta 2014 for the privacy argument.
"""

import math
import secrets
from collections import abc
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.curator.base import Curator
from privopt.later import Array, Bool, Float
from privopt.ledger.events import Event, Repeated, Sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory
from privopt.planning.averaging import Average, mixing_ratios
from privopt.planning.coordinates import Coordinates, RowSpectrum
from privopt.planning.counts import level_notice
from privopt.planning.descent_theory import Shares, ShownCurvature, SmoothObjective, budget_shares
from privopt.planning.improvement import Evidence
from privopt.planning.kl_theory import FallingNoise
from privopt.planning.notices import long_steps
from privopt.planning.shrinkage import NoisePath, newton_end, newton_share
from privopt.planning.task import Forecast, Instance
from privopt.precision import arrays_of, jitted, run_arrays
from privopt.problems.constraints import Unconstrained
from privopt.problems.growth import KL
from privopt.problems.losses import GLMLoss, Logistic
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser, Ridge, strongest
from privopt.public import Public
from privopt.queries.safeguards import known
from privopt.queries.slopes import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import StepwiseSolver
from privopt.solvers.fields import choice, derived, guarded, optional

FALLING_EXCESS = "expected under the KL condition, while no gradient is clipped and eta <= 2 / L"
FALLING_WITHOUT_FORMULA = (
    "no formula without a KL condition of kappa up to 2 and a bound on the excess of the start"
)
SHARE_OF_STEP = 0.5  # eta lam of a given step size, above which the ridge lam enters by its proximal map
HURRIED = 0.95  # momentum of the second half of the steps, where parameters still grow
GROWING = 2.5  # in standard deviations of the noise: beyond it parameters count as still growing


class DescentState(NamedTuple):
    """The iterates and running averages of the descent; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # x_t
    at: Float[Array, " *shape"]  # u_t = x_t + b (x_t - x_{t-1}), where the next gradient is taken
    average: Float[Array, " *shape"]  # running weighted average of x, see `mixing_ratios`
    gradient: Float[Array, " *shape"]  # average of the released gradients of the loss, with the same weights
    age: Float[Array, ""]  # k, how many steps ago the growing momentum began
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class GradientDescent(StepwiseSolver):
    """Full-batch private gradient descent; see the module for the objective and the step.

    Attributes:
        steps: T, at least 0; 0 returns the start and spends nothing.
        step_size: eta, in params^2 / objective units.
        clip: C, the largest norm of one unit's gradient.
        momentum: b in [0, 1), fixed; growing momentum amplifies noise until it diverges.
        restarts: whether momentum is k / (k + 3) after k steps and begins anew where it leads uphill; the default
            without noise where `momentum` is open.
        balanced: whether records' gradients are shortened without regard to their targets, see `ClippedGradient`.
        returns: which point: "tail" (mean of the last half), "weighted" (weights (t + 1)^2, the default), "settled",
            "eased" or "late" (see `mixing_ratios`; all divided by the noise variance where it differs), "last" (the
            default with the noise off), "random" (a uniformly random iterate), "flattest" (the middle of the ten
            iterates over which the mean of the released gradients is smallest) or, inside `Whitening`, "corrected"
            ("settled", half of the way or less to a Newton step from the mean of all points, see `newton_end`).
        secant: whether no step is longer than 1 / L_t, L_t the largest curvature that successive released gradients
            have shown so far, see `ShownCurvature`: for losses whose curvature is not known beforehand.
        hurries: whether the last half of the steps takes momentum 0.95 where released gradients show that parameters
            still grow, see `still_grows`; for `returns="corrected"`, whose points are kept.
        shares: how the budget is split over the steps: "equal" or "geometric", which is best for the last iterate of a
            strongly convex objective; see `descent_theory`.
        contraction: a of the geometric shares; default 1 - eta * ridge strength, or that of `falling`.
        falling: how many steps there are, and how their noise falls, see `geometric`.
        smoothness: L of the objective, ridge included, if it is known better than by the loss and the row bound: it
            sets the default step size, and with it the number of steps, and decides whether a step is called too large.
        shrinks: whether steps take the ridge by its exact proximal map, which is stable at any strength, and not by its
            gradient; default: for ridges more curved than the loss, where that map is exact and `smoothness` is open.
        chosen: the t in 0..T-1 of the iterate x_t that "random" returns; drawn before data is read.
        rows: the released second moment that its coordinates follow from, set by `Whitening`.
    Guarantee:
        T Gaussian releases, of sensitivity factor * C / n or what the loss allows at the point if that is less (see
        `ClippedGradient`), with fixed multipliers: exactly (epsilon, delta)-DP by Gaussian-DP composition, under the
        curator's relation, for any data, loss and parameters.
    Differs from the paper:
        fixed momentum, averaging, and few calibrated steps in place of T = 1000 and the last iterate; exact noise in
        place of the theorem's constant.
    Source:
        Wang, Ye, Xu 2017, Algorithm 4.
    """

    name: ClassVar[str] = "gradient-descent"
    preconditions: ClassVar[bool] = True

    step_size: float = derived(above=0)
    clip: float = derived(above=0)
    momentum: float = derived(at_least=0, below=1)
    balanced: bool = False
    secant: bool = False
    hurries: bool = False
    returns: Average | Literal["random", "flattest", "corrected"] | None = optional()
    shares: Shares = choice("equal")
    contraction: float | None = optional(above=0, at_most=1)
    smoothness: float | None = optional(above=0)
    shrinks: bool | None = None
    restarts: bool | None = None
    chosen: int | None = optional(at_least=0)
    falling: FallingNoise | None = field(default=None, repr=False)
    rows: RowSpectrum | None = field(default=None, repr=False)

    def default_shrinks(self, instance: Instance) -> bool:
        """Whether the ridge enters by its proximal map: where that is exact and its gradient would need short steps."""
        if self.smoothness is not None or not instance.problem.shrinks_exactly:
            return False
        penalty = instance.penalty_smoothness
        if self.is_set("step_size"):
            return self.step_size * penalty > SHARE_OF_STEP
        return penalty > descent_theory.smoothness(instance)

    def default_restarts(self, instance: Instance) -> bool | None:
        return not instance.is_private and not self.is_set("momentum")

    def default_clip(self, instance: Instance) -> float:
        return self._setting(instance).clip

    def default_step_size(self, instance: Instance) -> float:
        """1.25 / L, and 1 / L where noise falls."""
        return 1.0 / self._smoothness(instance) if self.falling else self._setting(instance).step_size

    def default_steps(self, instance: Instance) -> int:
        if self.falling is None:
            return self._setting(instance).steps
        return self.falling.steps(instance, **self._plain(instance))

    def default_momentum(self, instance: Instance) -> float:
        return self._setting(instance).momentum

    def default_returns(
        self, instance: Instance
    ) -> Average | Literal["random", "flattest", "corrected"] | None:
        return "weighted" if instance.is_private else "last"

    def default_contraction(self, instance: Instance) -> float | None:
        """a = 1 - eta lam, a bound on the factor by which one step reduces the excess; None for equal shares."""
        if self.shares == "equal":
            return None
        if self.falling is not None:
            return self.falling.contraction(self.steps)
        return max(1.0 - self.step_size * instance.ridge, 1e-12)

    def default_chosen(self, instance: Instance) -> int | None:
        """The index t of the iterate x_t that "random" returns, drawn uniformly from 0..T-1; else None."""
        del instance
        return secrets.randbelow(self.steps) if self.returns == "random" and self.steps else None

    @classmethod
    def geometric(
        cls,
        *,
        ratio: float = 30.0,
        distance: float | None = None,
        most_steps: int = 1000,
        growth: KL | None = None,
        **fields: Any,
    ) -> Self:
        """Plain descent whose noise falls geometrically, of which the last iterate is returned; see `FallingNoise`.

        Args:
            ratio: the last step's share of the budget over the first's; 1 is equal noise.
            distance: from the start to the solution, a guess; default 10 / R, R the row bound.
            most_steps: T is at most this, and with the noise off it is this.
            growth: the KL condition of the objective; default that of the problem.
            fields: other fields of the class.
        Raises:
            ValueError: a field is out of its range.
        """
        falling = FallingNoise(ratio=ratio, distance=distance, most_steps=most_steps, growth=growth)
        plain: dict[str, Any] = {"momentum": 0.0, "returns": "last", "shrinks": False, "shares": "geometric"}
        return cls(falling=falling, **plain | fields)

    @property
    def title(self) -> str:
        """The name, and whether noise falls."""
        return self.name if self.falling is None else f"geometric-{self.name}"

    @classmethod
    def for_pl(
        cls,
        instance: Instance,
        *,
        clip: float | None = None,
        smoothness: float | None = None,
        constant: float | None = None,
        gap: float | None = None,
        shares: Shares = "geometric",
    ) -> Self:
        """The setting for a Polyak-Lojasiewicz (PL) objective: steps 1 / L, no momentum, the last iterate.

        Its bound on the excess is `objective_facts(...).last_iterate_bound(constant, steps, shares)` of
        `planning.descent_theory`, as long as no gradient is clipped.

        Args:
            instance: the problem and the budget it will be configured for.
            clip: C; default that of `descent_defaults`.
            smoothness: L, the ridge included; default that of the problem.
            constant: c of the PL condition `|grad|^2 >= 2 c excess`; default the ridge's strength, right for a convex
                loss.
            gap: a bound on the excess of the start; default the bound on the loss at 0.
            shares: "geometric", or "equal" as in the paper.
        Raises:
            ValueError: a constant is neither given nor known.
        """
        clip = descent_theory.default_clip(instance) if clip is None else clip
        facts = descent_theory.objective_facts(instance, clip=clip, smoothness=smoothness, gap=gap)
        if constant is None:
            if instance.problem.loss.convex is False:
                raise ValueError(
                    f"the {instance.problem.loss.name} loss is not convex: a ridge says nothing, give `constant`."
                )
            constant = instance.ridge
        return cls(
            clip=clip,
            steps=facts.steps_to_contract(constant),
            returns="last",
            shares=shares,
            contraction=max(1.0 - constant / facts.smoothness, 1e-12),
            **_plain_steps(facts),
        )

    @classmethod
    def for_stationarity(
        cls,
        instance: Instance,
        *,
        clip: float | None = None,
        smoothness: float | None = None,
        gap: float | None = None,
        returns: Literal["random", "flattest"] = "flattest",
    ) -> Self:
        """The setting with a bound on the gradient norm of any smooth objective, convex or not.

        Its bound for "random" is `objective_facts(...).stationarity_bound(steps)`, as long as no gradient is
        clipped; "flattest" was at least as good wherever it was tried. `returns` says which iterate is returned; the
        other arguments are those of `for_pl`.

        Raises:
            ValueError: a constant is neither given nor known.
        """
        clip = descent_theory.default_clip(instance) if clip is None else clip
        facts = descent_theory.objective_facts(instance, clip=clip, smoothness=smoothness, gap=gap)
        return cls(clip=clip, steps=facts.steps_to_flatten(), returns=returns, **_plain_steps(facts))

    def forecast(self, instance: Instance) -> Forecast:
        """The forecast of `descent_defaults`, and notices on the step size and the level of a quantile."""
        found = descent_theory.forecast(instance, steps=self.steps, clip=self.clip)
        if self.rows is None:  # in whitened coordinates the level is set afterwards
            found = found.noting(*level_notice(instance.problem.loss, None))
        found = found.noting(*long_steps(self.step_size, self._smoothness(instance)))
        if self.falling is None:
            return found
        excess = self.falling.predicted_excess(instance, self.steps, **self._plain(instance))
        meaning = FALLING_WITHOUT_FORMULA if excess is None else FALLING_EXCESS
        return replace(found, excess=excess, meaning=meaning, for_convex=False)

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        smoothness = coordinates.smoothness + coordinates.ridge_smoothness
        return self.with_(
            clip=coordinates.clip,
            step_size=1.0 / smoothness,
            momentum=coordinates.momentum,
            restarts=math.isinf(coordinates.clip),  # no clip is infinite with noise
            balanced=coordinates.balanced,
            secant=coordinates.secant,
            hurries=coordinates.hurries,
            smoothness=smoothness,
            rows=coordinates.rows,
        )

    def longest_step(self, instance: Instance) -> float:
        """The stability limit 2 (1 + b) / ((1 + 2 b) L) at momentum b; the smallest one, b = 1, where b is open."""
        curved = self._gradient_part_smoothness(instance)
        momentum = self.momentum if self.is_set("momentum") else 1.0
        return 2.0 * (1.0 + momentum) / ((1.0 + 2.0 * momentum) * curved) if curved > 0 else math.inf

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Refuse a proximal map, Newton step or balanced clip that the penalty or the loss has no formula for."""
        del public
        loss = problem.loss
        if self.shrinks and not problem.shrinks_exactly:
            return (
                "the proximal map of its whole penalty with its set is not known exactly: use shrinks=False"
            )
        if self.returns == "corrected" and not (
            isinstance(loss, GLMLoss) and loss.outputs == 1 and math.isfinite(loss.curvature)
        ):
            return f'the {loss.name} loss has no known curvature of one prediction: use returns="settled"'
        if self.balanced and not (isinstance(loss, GLMLoss) and loss.balances):
            return f"the {loss.name} loss has no balanced clip: use balanced=False"
        return None

    def steps_in_numpy(self, problem: Problem) -> bool:
        """Of the library's own generalised-linear losses, with its ridge or no penalty, and no set."""
        loss, parts = problem.loss, (type(problem.regulariser), type(problem.constraint))
        plain = type(self) is GradientDescent and parts in (
            (Ridge, Unconstrained),
            (NoRegulariser, Unconstrained),
        )
        return plain and isinstance(loss, GLMLoss) and loss.kernel_code is not None and known(loss)

    def filled(self, instance: Instance) -> Self:
        """The open fields from public numbers.

        Raises:
            ValueError: it cannot solve the problem, or a Newton step is wanted without a second moment.
        """
        if self.returns == "corrected" and self.rows is None:
            raise ValueError(
                'returns="corrected" needs the second moment that whitening releases: use '
                'Whitening(inner=GradientDescent(returns="corrected")).'
            )
        return super().filled(instance)

    def event(self, public: Public) -> Event:
        """T Gaussian releases, with the noise multipliers of `mechanisms`."""
        return self.scaled_event(public, 1.0)

    def scaled_event(self, public: Public, factor: float) -> Event:
        """The same with all noise times `factor`."""
        del public
        if self.shares == "equal":
            return Repeated(Gaussian(self._scaled_noise(factor)).event(), self.steps)
        return Sequence(tuple(mechanism.event() for mechanism in self.mechanisms(factor)))

    def mechanisms(self, factor: float = 1.0) -> tuple[Gaussian, ...]:
        """The noise of each step: `noise_multiplier / sqrt(T share_t)`, which costs together what equal noise costs.

        Args:
            factor: all noise is multiplied by it.
        """
        noise = self._scaled_noise(factor)
        return tuple(Gaussian(float(noise * each)) for each in self._noise_factors())

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 4, with momentum and averaging. A slope is a released gradient plus that of the penalty."""
        xp = run_arrays()
        step = partial(_step, problem=problem, shrinks=bool(self.shrinks), restarts=bool(self.restarts))
        zeros = xp.zeros_like(start)
        state = DescentState(start, start, start, zeros, xp.zeros(()), xp.asarray(True))
        points: list[Array] = []
        gradients: list[Array] = []
        slopes: list[Array] = []
        deviations: list[float] = []
        shown, momentum, deviation = ShownCurvature(), self.momentum, 0.0
        keeps_points = self.returns == "flattest" or self.rows is not None
        for ratio, noise in zip(self._mixing_ratios(), self.mechanisms(), strict=True):
            query = ClippedGradient(loss=problem.loss, at=state.at, clip=self.clip, balanced=self.balanced)
            gradient = curator.release(query, noise)
            if self.secant or keeps_points:
                deviation = _deviation(noise, query, curator.public)
                slopes.append(_with_penalty(problem, gradient, state.at))
            if self.secant:
                shown = shown.after(state.at, slopes[-1], deviation)
            if keeps_points:
                points.append(state.at)
                gradients.append(gradient)
                deviations.append(deviation)
            if self.hurries and 2 * len(points) == self.steps - self.steps % 2:
                grows = still_grows(points, slopes, deviation)
                momentum = HURRIED if grows else momentum
            state = step(
                state,
                gradient,
                ratio=float(ratio),
                step_size=shown.step_size(self.step_size),
                momentum=momentum,
            )
        # Of whitened runs, from which `planning.improvement` estimates the quality of the model.
        evidence = None if self.rows is None else Evidence.of(points, gradients, deviations, self.clip)
        if self.returns == "corrected":
            settled = self._corrected(state, points, slopes, start, curator.public, problem)
            return Outcome(settled, ending(state.finite), evidence=evidence)
        if points and self.returns == "flattest":
            return Outcome(problem.constraint.project(flattest(points, slopes)), ending(state.finite))
        averaged = self.steps and self.returns not in ("last", "random", "flattest")
        if averaged and not problem.regulariser.is_smooth:
            # An average of sparse iterates is not sparse: one more proximal step from it, on released gradients.
            last = shown.step_size(self.step_size)
            state = step(
                state._replace(at=state.average), state.gradient, ratio=1.0, step_size=last, momentum=0.0
            )
        return Outcome(state.average, ending(state.finite), evidence=evidence)

    def noise_path(self, params: Array, public: Public, loss: GLMLoss, ridge: float) -> NoisePath | None:
        """How noise entered the result; None without noise, outside of `Whitening`, and for a single iterate.

        Args:
            params: the result, in the coordinates of the run, (d,).
            public: sizes and relation of the data.
            loss: the loss that was minimised.
            ridge: the strength of the ridge in the data's own coordinates.
        """
        noisy = self.steps and self.noise_multiplier
        if not noisy or self.rows is None or self.returns in ("random", "flattest"):
            return None
        newton = 0.0
        if self.returns == "corrected":
            newton = newton_share(self.rows, params, fades=isinstance(loss, Logistic))
        largest = public.relation.factor * self.clip / public.n
        return NoisePath(
            step_size=self.step_size,
            momentum=self.momentum,
            clip=self.clip,
            deviations=largest * np.asarray([noise.noise_multiplier for noise in self.mechanisms()]),
            mixing=self._mixing_ratios(),
            newton=newton,
            curvature=loss.curvature,
            ridge=ridge,
            rows=self.rows,
        )

    def _corrected(
        self,
        state: DescentState,
        points: list[Array],
        slopes: list[Array],
        start: Array,
        public: Public,
        problem: Problem,
    ) -> Array:
        """(1 - share) average + share Newton step, see `newton_end`; the average without steps, noise or finite x."""
        if not points or self.noise_multiplier == 0 or not bool(state.finite):
            return state.average
        assert self.rows is not None
        assert isinstance(problem.loss, GLMLoss)
        # The noise multiplier of the mean of all T released gradients: sqrt(sum_t z_t^2) / T.
        multiplier = math.sqrt(sum(noise.noise_multiplier**2 for noise in self.mechanisms())) / self.steps
        xp = run_arrays()
        point = xp.mean(xp.stack(points), axis=0)
        end = newton_end(
            self.rows,
            point,
            xp.mean(xp.stack(slopes), axis=0),
            start=start,
            curvature=problem.loss.curvature,
            ridge=strongest(problem.regulariser),
            noise=multiplier * public.relation.factor * self.clip / public.n,
        )
        share = newton_share(self.rows, point, fades=isinstance(problem.loss, Logistic))
        return (1.0 - share) * state.average + share * xp.asarray(end)

    def _noise_factors(self) -> NDArray[np.float64]:
        """The ratio of each step's noise multiplier to `noise_multiplier`, (T,): 1 / sqrt(T share_t)."""
        if self.shares == "equal" or self.contraction is None:
            return np.ones(self.steps)
        return 1.0 / np.sqrt(self.steps * budget_shares(self.shares, self.steps, self.contraction))

    def _mixing_ratios(self) -> NDArray[np.float64]:
        """The weight of each new iterate in the running average, (T,); see `mixing_ratios`."""
        if self.returns == "random":  # the average follows the iterates up to the chosen one
            return (np.arange(self.steps) < (self.chosen or 0)).astype(np.float64)
        if self.returns == "flattest":
            return np.ones(self.steps)
        precision = None if self.shares == "equal" else 1.0 / self._noise_factors() ** 2
        average = "settled" if self.returns == "corrected" else self.returns or "weighted"
        return mixing_ratios(average, self.steps, precision)

    def _setting(self, instance: Instance) -> descent_theory.Setting:
        """The default clip, steps, step size and momentum, for those of these fields that are set."""
        return descent_theory.descent_setting(
            instance,
            clip=self.clip,
            steps=self.steps,
            curvature=self.smoothness,
            shrinks=bool(self.shrinks),
        )

    def _plain(self, instance: Instance) -> dict[str, float]:
        """What the rules of falling noise ask for."""
        return {"clip": self.clip, "step_size": self.step_size, "smoothness": self._smoothness(instance)}

    def _smoothness(self, instance: Instance) -> float:
        """The curvature that steps are planned for, given or guessed; without a ridge that is a proximal map."""
        if self.smoothness is not None:
            return self.smoothness
        return descent_theory.smoothness(instance) + (0.0 if self.shrinks else instance.penalty_smoothness)

    def _gradient_part_smoothness(self, instance: Instance) -> float:
        """The known curvature of the part of the objective that enters by its gradient, not by a proximal map."""
        if self.smoothness is not None:
            return self.smoothness
        shrinks = self.default_shrinks(instance) if self.shrinks is None else self.shrinks
        return instance.known_smoothness - (instance.penalty_smoothness if shrinks else 0.0)


def _plain_steps(facts: SmoothObjective) -> dict[str, Any]:
    """Steps of size 1 / L without momentum, as the bounds of `descent_theory` assume."""
    return {"step_size": 1.0 / facts.smoothness, "momentum": 0.0, "smoothness": facts.smoothness}


def still_grows(points: abc.Sequence[ArrayLike], slopes: abc.Sequence[ArrayLike], deviation: float) -> bool:
    """Whether descent would lengthen the parameters further, by more than 2.5 standard deviations of the noise.

    On separable classes the optimum is far from 0, and a hinge is nearly flat in the length of the parameters: the one
    direction in which steps that suit all others stop short. So the mean of the second half of the gradients is tested
    along the point before them, whose noise is independent of theirs. Post-processing.

    Args:
        points: where the gradients were taken, (p,) each.
        slopes: the released gradients, penalty included, (p,) each.
        deviation: standard deviation of the noise in one entry of one gradient.
    """
    half = len(points) // 2
    if not half:
        return False
    at = np.asarray(points[half - 1], np.float64)
    mean = np.mean(np.asarray(slopes[half:], np.float64), axis=0)
    noise = deviation * float(np.linalg.norm(at)) / math.sqrt(len(slopes) - half)
    return -float(mean @ at) > GROWING * noise > 0.0


def _deviation(noise: Gaussian, query: ClippedGradient, public: Public) -> float:
    """Standard deviation of the noise in each entry of one release, in gradient units; 0 with the noise off."""
    return noise.noise_multiplier * float(query.sensitivity(public)) if noise.noise_multiplier else 0.0


@jitted
def _with_penalty(problem: Problem, gradient: Array, at: Array) -> Array:
    """The gradient of the objective at a point: the released one of the loss plus that of the penalty."""
    return gradient + problem.regulariser.gradient(at)


@partial(jitted, static_argnames=("shrinks", "restarts"))
@guarded
def _step(
    state: DescentState,
    gradient: Array,
    *,
    ratio: float,
    step_size: float,
    momentum: Array | float,
    problem: Problem,
    shrinks: bool,
    restarts: bool,
) -> DescentState:
    """x = prox(u - eta (g + grad r(u))), with `shrinks` prox of all of r at u - eta g; then the next u and averages."""
    move = problem.shrinking_step if shrinks else problem.proximal_step
    params = move(state.at, gradient, step_size)
    moved, age = params - state.params, state.age
    if restarts:  # O'Donoghue, Candes 2015, the gradient scheme
        xp = arrays_of(moved)
        uphill = xp.sum((state.at - params) * moved) > 0
        age = xp.where(uphill, 0.0, age + 1.0)
        momentum = age / (age + 3.0)
    return DescentState(
        params=params,
        at=params + momentum * moved,
        average=state.average + ratio * (params - state.average),
        gradient=state.gradient + ratio * (gradient - state.gradient),
        age=age,
        finite=state.finite,
    )


# ---- The flattest of the points of a run, picked by what was released --------------------------------------
WINDOW = 10  # released gradients that are averaged before their norm is looked at


def flattest(points: list[Array], slopes: list[Array]) -> Array:
    """The middle point of the window of up to `WINDOW` steps whose mean slope is shortest. Post-processing.

    Args:
        points: where the gradients were taken, in order, at least one.
        slopes: the released gradients at these points, penalty included, of the same shape.
    """
    width = min(WINDOW, len(points))
    stacked = np.stack([np.asarray(slope, np.float64).ravel() for slope in slopes])
    sums = np.concatenate([np.zeros((1, stacked.shape[1])), np.cumsum(stacked, axis=0)])
    norms = np.linalg.norm(sums[width:] - sums[:-width], axis=1)
    start = int(np.argmin(np.where(np.isfinite(norms), norms, np.inf)))
    return points[start + width // 2]
