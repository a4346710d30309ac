"""Settings of whitened methods from public quantities: the floor of the spectrum, the clip, the number of steps.

With n units of p parameters, budget mu (Gaussian DP), share q of mu^2 for the second moment, in which rows are at most
R long (1 where the problem has a column of ones: every row is divided by its length there, see `row_length`):

    noise of the Gram   sigma_G = sqrt(factor) R^2 / (n mu sqrt(q)), in the Frobenius norm
    floor               f = max(lam / curvature, m sigma_G sqrt(d / 2)), m 1 or of the loss
    spectrum            h, the released eigenvalues with the noise's share taken out, see `denoised`; then h and f times
                        k, what rows were divided by
    map                 B = U diag(h + f)^-1/2 U^T
    typical row in v    r = sqrt(sum_j h_j / (h_j + f)), at most R / sqrt(f + R^2 / d) if the h sum to R^2
    noise in v          s = factor slope r / (n mu sqrt(1 - q)), had the rest bought a single gradient
    noise excess        V = s^2 K e / (1.2 curvature), about the excess that noise alone would leave, for K outputs and
                        e = (d r0^4)^(1/3) directions, between the d that there are and the r0^2 that rows use
    cap                 a - b log10 V, between a least value and 1, or (5e-5 / V)^(1/3) if that is more, up to 10: a
                        clip that stays where noise is gone keeps its bias, so that a larger budget would only find the
                        biased optimum more exactly. The clip is cap * slope * r; for numbers to predict it is
                        slope * min(k x^-0.7, r), x = factor sqrt(d) / (n mu sqrt(1 - q)), or slope * r times
                        (1e-6 / V)^(1/3), up to 10, if that is more
    steps               V^-0.48 at the bound r0 on r, between 4 and 100, so that the plan is fixed
    step size           1.25 / (curvature + lam |B|^2); momentum 0.5

On a loss that is not convex T steps go before these in coordinates whose floor is at least R^2 / 10: fully whitened
steps from 0 found valleys that fit wrong labels, slower ones the good one, from where whitened steps find its bottom.

`loss_constants` has what depends on the loss. The numbers were chosen by the training excess of logistic regression on
eight tables (adult, compas, covertype, fars, german, kdd99, randhie, w8a) and of softmax on MNIST, its cap on seven
problems of six other tables, at epsilon 0.1 to 3; those of the Huber and quantile losses on seven problems of five
tables (adult, anes96, california, fair, fars); the cap of the logistic loss, the clip of the squared one and what is
corrected by the test loss on the tables for choosing. All of it concerns utility only.

Source:
    Eigenvalues of a low-rank matrix in noise: Benaych-Georges, Nadakuditi 2011.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import part_of
from privopt.planning import descent_theory
from privopt.planning.averaging import Average
from privopt.planning.coordinates import Coordinates, RowSpectrum
from privopt.planning.row_length import square_length
from privopt.planning.task import Instance
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.losses import Huber, Logistic, Quantile, SmoothedHinge, Softmax, Squared
from privopt.public import Relation

SHARE = 0.1  # of mu^2 for the second moment
DIVIDED = 1.0  # R where every row is divided by its length: with a constant 1 in it no row is shorter
STEPS_POWER, CLIP_POWER = 0.48, 0.7
FEWEST_STEPS, MOST_STEPS = 4, 100
FURTHER = 6.0  # steps that V asks for beyond the most, to one that is taken where the loss allows more
STEP_FACTOR, MOMENTUM = 1.25, 0.5
NOT_DIVIDED = 1.001  # the row bound up to which rows are of length 1 already, the constant in them below 1
LEAST_TRACE = 0.25  # over R^2: rows are seldom shorter than half their bound
COARSE = 0.1  # over R^2: the floor of the first steps on a loss that is not convex, by adult and covertype
FAINT, FAINT_FOR_NUMBERS = 5e-5, 1e-6  # the V below which noise asks for no short clip
LONGEST = 10.0  # the largest cap
FULL_RIDGE = 1e-3  # the V from which the default ridge is 1 / n
LEAST_RIDGE = 0.1  # of 1 / n
NOISE_RIDGE = 0.03  # of sigma_G, the most for two classes
WEIGHTED_SLOPE, WEIGHTED_CAP = 2.0, (0.24, 0.19, 0.5)  # of losses of groups; by covertype, adult and compas
NOISELESS_FLOOR, NOISELESS_STEPS, NOISELESS_MOMENTUM = 1e-6, 500, 0.8  # the floor over R^2


@dataclass(frozen=True, kw_only=True)
class LossConstants:
    """What the rule takes from the loss.

    Attributes:
        slope: the largest slope worth keeping.
        curvature: of the loss by its prediction.
        cap: (a, b, least): the cap is a - b log10 V, between `least` and 1.
        clip_factor: k, the clip over the slope where x is 1; None where the cap says what the clip is.
        floor_factor: m, how much of the floor that noise asks for is kept.
        balanced: whether gradients are shortened without regard to the target.
        pace: factor of the number of steps.
        returns: which average of the iterates.
        most_steps: T grows beyond `MOST_STEPS` up to this, by one for every six steps that V asks for.
        secant: whether steps are shortened by the curvature that released gradients show.
        hurries: whether half-way momentum grows where parameters still grow, see `still_grows`.
        corrected: whether half of the result is a Newton step from the mean of the points, see `newton_end`.
    """

    slope: float
    curvature: float
    cap: tuple[float, float, float] = (-0.45, 0.3, 0.15)
    clip_factor: float | None = None
    floor_factor: float = 1.0
    balanced: bool = False
    pace: float = 1.0
    returns: Average = "settled"
    most_steps: int = MOST_STEPS
    secant: bool = False
    hurries: bool = False
    corrected: bool = False


def coarse(instance: Instance) -> float:
    """c: `COARSE` where the loss is not convex, so that the first steps do not rush into the nearest valley."""
    return COARSE if instance.problem.loss.convex is False else 0.0


def loss_constants(instance: Instance) -> LossConstants:
    """The constants of a loss; targets to predict are scaled to [-1, 1], counts are not."""
    match instance.problem.loss:
        case Logistic():
            return LossConstants(
                slope=1.0, curvature=0.25, cap=(0.3, 0.1, 0.25), balanced=True, corrected=True
            )
        case GroupedLoss() as loss:  # its slopes are weighted
            slope = WEIGHTED_SLOPE * (loss.lipschitz if math.isfinite(loss.lipschitz) else 1.0)
            return LossConstants(
                slope=slope, curvature=loss.curvature, cap=WEIGHTED_CAP, balanced=loss.balances
            )
        case Softmax() as loss:
            pace = float(loss.outputs)
            return LossConstants(slope=math.sqrt(2.0), curvature=0.5, cap=(0.08, 0.21, 0.25), pace=pace)
        case SmoothedHinge() as loss:
            return LossConstants(
                slope=1.0, curvature=loss.curvature, cap=(0.4, 0.2, 0.5), corrected=True, hurries=True
            )
        case Squared():
            return LossConstants(slope=1.0, curvature=1.0, clip_factor=0.018, pace=4.0, corrected=True)
        case Huber() as loss:
            return LossConstants(slope=loss.threshold, curvature=1.0, clip_factor=0.08, pace=4.0)
        case Quantile():
            guess = descent_theory.guess(instance)
            return LossConstants(
                slope=guess.slope,
                curvature=guess.curvature,
                clip_factor=0.14,
                floor_factor=0.25,
                pace=4.0,
            )
        case _:
            guess = descent_theory.guess(instance)
            return LossConstants(slope=guess.slope, curvature=guess.curvature)


@dataclass(frozen=True, kw_only=True)
class WhiteningRule:
    """Everything about a whitened problem that is known before, or follows from, the released second moment.

    Attributes:
        constants: of the loss.
        gram_noise: sigma_G, the scale of the noise of the released second moment.
        least_floor: m sigma_G sqrt(d / 2), in units of the released second moment.
        unit_noise: s / r.
        parameters: p.
        row_bound: R of the second moment.
        ridge: largest strength of the ridge.
        width: d.
        budget: of everything, the second moment's share included.
        constant: the number of the column of ones, None without one.
        divided: whether rows enter the second moment divided by their length, and not as they are.
        all_expected: whether n is the number of units that there are, see `row_length.usable_share`.
    """

    constants: LossConstants
    gram_noise: float
    least_floor: float
    unit_noise: float
    parameters: int
    row_bound: float
    ridge: float
    width: int
    budget: Budget
    constant: int | None = None
    divided: bool = False
    all_expected: bool = True

    @classmethod
    def of(
        cls, instance: Instance, share: float, *, constants: LossConstants | None = None, beside: float = 0.0
    ) -> "WhiteningRule":
        """The rule for a problem and a budget, of which the second moment gets a share.

        Args:
            instance: the problem and the budget.
            share: of mu^2 for the second moment.
            constants: in place of those of the loss.
            beside: share of mu^2 for other releases before the solver's.
        """
        constants = loss_constants(instance) if constants is None else constants
        public, mu = instance.public, instance.mu
        factor = public.relation.factor
        divided = divides(instance)
        bound = DIVIDED if divided else public.row_bound
        gram_noise = math.sqrt(factor) * bound**2 / (public.n * mu * math.sqrt(share))
        least = NOISELESS_FLOOR * bound**2
        if instance.is_private:
            least = constants.floor_factor * gram_noise * math.sqrt(public.d / 2.0)
        return cls(
            constants=constants,
            gram_noise=gram_noise,
            least_floor=least,
            unit_noise=factor * constants.slope / (public.n * mu * math.sqrt(1.0 - share - beside)),
            parameters=instance.parameters,
            row_bound=bound,
            ridge=instance.penalty_smoothness,
            width=public.d,
            budget=instance.budget,
            constant=instance.problem.constant,
            divided=divided,
            all_expected=public.relation is Relation.REPLACE_ONE and not public.by_user,
        )

    @property
    def floor(self) -> float:
        """f, as far as it is public."""
        return max(self.ridge / self.constants.curvature, self.least_floor)

    @property
    def most_signal(self) -> float:
        """The r of eigenvalues that sum to R^2, all alike: no smaller sum and no other split gives more."""
        return self.row_bound / math.sqrt(self.floor + self.row_bound**2 / self.width)

    def with_floor(self, least: float) -> "WhiteningRule":
        """The same with a floor of at least that times R^2."""
        return replace(self, least_floor=max(self.least_floor, least * self.row_bound**2))

    def noise_excess(self, signal: float) -> float:
        """V: the excess that the noise of one gradient would leave at cap 1, for rows of typical length `signal`."""
        crowded = (self.most_signal**2 / self.width) ** (2.0 / 3.0)
        return (self.unit_noise * signal) ** 2 * self.parameters * crowded / (1.2 * self.constants.curvature)

    def cap(self, signal: float, steepness: float = 1.0) -> float:
        """Clip over the steepest slope times the typical row: small where noise would drown the signal, 1 where not.

        Args:
            signal: length of a typical row in v.
            steepness: of the steepest slope over the constants'.
        """
        excess = self.noise_excess(signal) * steepness**2
        if excess == 0:
            return 1.0
        if self.constants.clip_factor is not None:
            noise = math.sqrt(self.width) * self.unit_noise / self.constants.slope
            drowned = min(self.constants.clip_factor * noise**-CLIP_POWER / max(signal, 1e-6), 1.0)
            return max(drowned, min((FAINT_FOR_NUMBERS / excess) ** (1.0 / 3.0), LONGEST))
        at_one, falling, least = self.constants.cap
        drowned = min(max(at_one - falling * math.log10(excess), least), 1.0)
        return max(drowned, min((FAINT / excess) ** (1.0 / 3.0), LONGEST))

    def steps(self) -> int:
        """T, from public numbers alone."""
        excess = self.noise_excess(self.most_signal)
        if excess == 0:
            return NOISELESS_STEPS
        steps = self.constants.pace * min(max(excess, 1e-12), 1e12) ** -STEPS_POWER
        more = min(round(steps / FURTHER), self.constants.most_steps)
        return max(min(max(round(steps), FEWEST_STEPS), MOST_STEPS), more)

    def rows(self, released_moment: Array | NDArray[np.float64]) -> RowSpectrum:
        """What a released second moment (d, d) says of the rows as they are; it counts as zero if it is not finite."""
        moment = np.asarray(released_moment, np.float64)
        usable = moment if np.all(np.isfinite(moment)) else np.zeros_like(moment)
        spectrum, axes = np.linalg.eigh(usable)
        kept = denoised(spectrum, self.gram_noise, self.row_bound**2)
        square = self._square_length(usable)
        return RowSpectrum(
            moment=usable * square,
            eigenvalues=kept * square,
            axes=axes,
            floor=self.least_floor * square,
            constant=self.constant,
        )

    def directions(self, released_moment: Array | NDArray[np.float64]) -> RowSpectrum:
        """`rows` along the axes in which the problem is alike, the ridge in their floor.

        A ridge below the noise is part of the floor. A stronger one is larger than the moment everywhere but along the
        column of ones, which it leaves free: the axes are the eigenvectors of both together,
        `U diag(h) U^T + lam / c diag(1, ..., 1, 0)`, so that the map keeps all curvatures below c and makes the
        intercept as fast as the rest.
        """
        rows, ridge = self.rows(released_moment), self.ridge / self.constants.curvature
        if ridge <= rows.floor:
            return rows
        if self.constant is None:
            return replace(rows, floor=ridge)
        penalty = np.where(np.arange(self.width) == self.constant, 0.0, ridge)
        spectrum, axes = np.linalg.eigh((rows.axes * rows.eigenvalues) @ rows.axes.T + np.diag(penalty))
        turned = replace(rows, axes=axes)
        share = ridge * turned.penalised
        return replace(turned, eigenvalues=np.maximum(spectrum - share, 0.0), floor=rows.floor + share)

    def _square_length(self, moment: NDArray[np.float64]) -> float:
        """k, see `row_length`; 1 where rows enter the moment as they are."""
        if not self.divided or self.constant is None:
            return 1.0
        return square_length(moment, self.gram_noise, self.constant, all_expected=self.all_expected)

    def coordinates(self, released_moment: Array | NDArray[np.float64]) -> Coordinates:
        """The coordinates of a released second moment (d, d). Post-processing."""
        rows = self.directions(released_moment)
        ridge = float(np.max(rows.ridge(self.ridge)))
        return self._coordinates(rows.map(), float(np.min(rows.scale)) ** -0.5, rows.signal, ridge, rows)

    def planned(self) -> Coordinates:
        """The coordinates of no data, with the lengths of the longest typical row: for plans."""
        matrix, none = np.eye(self.width), np.zeros((self.width, self.width))
        rows = RowSpectrum(
            moment=none, eigenvalues=none[0], axes=matrix, floor=self.floor, constant=self.constant
        )
        ridge = self.ridge / self.floor
        return self._coordinates(matrix * self.floor**-0.5, self.floor**-0.5, self.most_signal, ridge, rows)

    def _coordinates(
        self,
        matrix: NDArray[np.float64],
        stretch: float,
        signal: float,
        ridge: float,
        rows: RowSpectrum,
    ) -> Coordinates:
        noiseless = self.unit_noise == 0
        hurry = 1.0 if noiseless else STEP_FACTOR
        return Coordinates(
            matrix=matrix,
            stretch=stretch,
            clip=math.inf if noiseless else self.cap(signal) * self.constants.slope * max(signal, 1e-6),
            smoothness=self.constants.curvature / hurry,
            ridge_smoothness=ridge / hurry,
            momentum=NOISELESS_MOMENTUM if noiseless else MOMENTUM,
            balanced=self.constants.balanced and not noiseless,
            secant=self.constants.secant,
            hurries=self.constants.hurries and not noiseless,
            rows=rows,
        )


def divides(instance: Instance) -> bool:
    """Whether rows enter the second moment divided by their lengths, and not as they are."""
    has_constant = instance.problem.constant is not None
    return has_constant and instance.is_private and instance.public.row_bound > NOT_DIVIDED


def inner_instance(instance: Instance, share: float, beside: float = 0.0) -> Instance:
    """What the inner solver plans for: the rest of the budget, and nothing known of the growth in its coordinates."""
    return replace(
        instance,
        problem=replace(instance.problem, growth=None),
        budget=part_of(instance.budget, 1.0 - share - beside),
    )


def default_ridge(instance: Instance) -> float:
    """A ridge strength for the mean loss: `signal_ridge`, for two classes at most 0.03 sigma_G, never below 0.1 / n.

    In directions that the released moment says nothing of, 0.03 sigma_G is a ridge of 0.03 sqrt(2 / d) in v. By the
    half of the benchmark panel that is there to choose on.
    """
    strength = signal_ridge(instance)
    if isinstance(instance.problem.loss, Logistic) and instance.is_private:
        by_noise = NOISE_RIDGE * WhiteningRule.of(instance, SHARE).gram_noise
        return max(min(strength, by_noise), LEAST_RIDGE / instance.public.n)
    return strength


def signal_ridge(instance: Instance) -> float:
    """1 / n, and down to a tenth of it where the noise is small.

    A ridge of 1 / n damps what noise does to directions that the data say little about; where there is little noise it
    would itself be the largest error.
    """
    rule = WhiteningRule.of(instance, SHARE)
    share = min(max(rule.noise_excess(rule.most_signal) / FULL_RIDGE, LEAST_RIDGE), 1.0)
    return share / instance.public.n


def denoised(spectrum: NDArray[np.float64], noise: float, largest_trace: float) -> NDArray[np.float64]:
    """Estimates of the eigenvalues of a positive semidefinite matrix from those of a noisy one.

    Noise whose off-diagonal entries have standard deviation `noise / sqrt(2)` spreads zero eigenvalues over an interval
    of half-length `noise sqrt(2 d)`. An eigenvalue g beyond it is pushed out from `(g + sqrt(g^2 - 2 d noise^2)) / 2`;
    the others say nothing one by one, and share what is left of the trace.

    Args:
        spectrum: eigenvalues of the released matrix, (d,).
        noise: scale of its noise in the Frobenius norm.
        largest_trace: a public bound on the trace, seldom more than four times it.
    """
    spectrum = np.clip(spectrum, 0.0, 2.0 * largest_trace)
    edge = 2.0 * len(spectrum) * noise**2
    large = (spectrum > 0.0) & (spectrum**2 > edge)
    pulled = 0.5 * (spectrum + np.sqrt(np.where(large, spectrum**2 - edge, 0.0)))
    total = min(max(float(np.sum(spectrum)), LEAST_TRACE * largest_trace), largest_trace)
    rest = max(total - float(np.sum(pulled[large])), 0.0) / max(1, len(spectrum) - int(np.sum(large)))
    return np.where(large, pulled, rest)
