"""The share of the achievable improvement that a whitened descent has reached, estimated from its own releases.

The achievable improvement is how much better, in mean loss, the best model without privacy predicts new records than
the best constant prediction does. Of that,

    share = 1 - (excess of the model) / (excess of the constant)

has been reached. Nobody may look at either excess. But gradients y_t at the points u_t were released with noise of
known size. In the eigenbasis of the second moment (h, f as in `planning.whitening`), with D = max(h / (h + f), 1/20),
bars for means weighted by the precision of the noise, s_t its standard deviation, n units and v the model itself,

    y_t = a D (u_t - v*) + N(0, s_t^2)      where gradients are linear; a: curvature of the clipped loss
    a   = sum <D (u_t - u), y_t - y> / s_t^2 over sum |D (u_t - u)|^2 / s_t^2, around what the loss would have
    b   = a D u - y  =  a D v* + N(0, N_j)
    N_j = p^2 + S D_j / n + (da D_j u_j)^2  noise of the mean gradient, of a finite sample, of a

so that sampling counts as noise too: a target of coin flips has its best model on the training records, but there is
nothing to find. S is the variance of a slope: a times the share that the clip keeps for two classes; for numbers to
predict it is not known, and what is significant is judged by the largest, min(1, clip / row length)^2. The direction q
that moves all predictions by a constant is taken out of b. Then, for log tau^2 uniform beforehand,

    v*_j ~ N(0, tau^2 (h_j + f)) across q,   flat along q
    share = 1 - |v - v*|_D^2 / |v* across q|_D^2      for `DRAWS` draws of v* given b

Its quantiles at 1/20 and 19/20 are the range, each moved away from the middle by a factor of `WIDENED` in 1 - share.
Where the largest likelihood of b across q is hardly above that of noise alone (`LEAST_EVIDENCE`), or a has vanished, as
it does where no record is usable and for coin flips whose slopes are all clipped, nothing was found.

Source:
    MacKay 1992 for the evidence; the rest is ours. `python -m benchmarks.improvement_calibration` holds the range to
    account on problems whose share is known.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, ndtr

from privopt.later import Array
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_epsilon, gaussian_mu
from privopt.planning.plan import IMPROVEMENT_ENDS, IMPROVEMENT_SHARE, Finding, figure
from privopt.planning.shrinkage import RESIDUAL, clipped_curvature, two_columns
from privopt.planning.whitening import WhiteningRule
from privopt.problems.losses import GLMLoss, Logistic, Loss, Squared
from privopt.public import Public

Floats = NDArray[np.float64]

CALIBRATED = (Logistic, Squared)
LEAST_DAMPING = 0.05
LEAST_EVIDENCE = 1.5  # in natural logarithms
SCALES = np.geomspace(1e-3, 1e6, 73)  # of tau^2 a^2 D^2 (h + f) over the noise, in the means over directions
BENT = 0.15  # standard deviation of a over a along the path of two classes, where it is judged what is significant
LINEAR = 0.5  # how far the path is trusted: a descent is not quite linear
LEAST_CURVED = (
    0.1  # a over what the loss would have, for two classes; for numbers to predict a itself is larger
)
VANISHED = 0.4  # likewise: below it no slope follows the prediction
WIDEST = 5.0  # standard deviation of predictions, in the curvature
DRAWS, SEED = 400, 7
WIDENED = 1.2


class Evidence(NamedTuple):
    """The released gradients of one descent, in the coordinates of the run, (T, d) or (T, d, K).

    Attributes:
        points: where they were taken.
        gradients: as they were released, without the penalty's.
        deviations: standard deviation of the noise in each entry of a gradient, (T,).
        clip: C, their clipping norm.
    """

    points: Floats
    gradients: Floats
    deviations: Floats
    clip: float

    @classmethod
    def of(
        cls, points: Sequence[Array], gradients: Sequence[Array], deviations: Sequence[float], clip: float
    ) -> "Evidence | None":
        """The same as arrays; None where nothing was released, or without noise."""
        if not points or not all(deviations):
            return None
        stacked = [np.stack([np.asarray(one, np.float64) for one in many]) for many in (points, gradients)]
        return cls(stacked[0], stacked[1], np.asarray(deviations, np.float64), clip)


@dataclass(frozen=True, kw_only=True)
class ImprovementShare:
    """An estimate of the share.

    Attributes:
        low, middle, high: of it; below 0 where the model is worse than a constant.
        evidence: by how much the logarithm of the largest likelihood exceeds that of noise alone; 0 without curvature.
    """

    low: float
    middle: float
    high: float
    evidence: float

    @property
    def is_found(self) -> bool:
        """Whether there is more to be seen than noise."""
        return self.evidence >= LEAST_EVIDENCE


@dataclass(frozen=True, kw_only=True)
class _Slopes:
    """What is known of the clipped loss's slopes.

    Attributes:
        curvature: a.
        deviation: da, its standard deviation.
        vanished: whether no slope follows the prediction.
        variance: S.
        largest: S, the largest that it can be.
    """

    curvature: float
    deviation: float
    vanished: bool
    variance: float
    largest: float


def improvement_share(
    rule: WhiteningRule,
    released_moment: ArrayLike,
    evidence: Evidence,
    loss: Loss,
    params: ArrayLike,
    public: Public,
) -> ImprovementShare | None:
    """What the releases of one whitened descent say about its result. Post-processing of releases.

    Args:
        rule: of the run.
        released_moment: the second moment as it was released, (d, d).
        evidence: of the run in its coordinates.
        loss: that was minimised.
        params: the result in the original coordinates, (d,).
        public: of the data.
    Returns:
        None for losses on which it was not held to account, without a constant column, or if something is not finite.
    """
    found = np.asarray(params, np.float64)
    if not isinstance(loss, CALIBRATED) or rule.constant is None or found.ndim != 1:
        return None
    if not all(np.all(np.isfinite(one)) for one in (*evidence, found)):
        return None
    moment = np.asarray(released_moment, np.float64)
    rows = rule.directions(moment)
    damping = np.maximum(rows.damping, LEAST_DAMPING)
    mean, spread = (float(entry) for entry in two_columns(rule.rows(moment), found).found)
    precisions = evidence.deviations**-2.0
    points, gradients = evidence.points @ rows.axes, evidence.gradients @ rows.axes
    point, gradient = (precisions @ one / np.sum(precisions) for one in (points, gradients))
    moves, turns = (points - point) * damping, gradients - gradient
    slopes = _slopes(
        loss,
        (mean, spread),
        reach=evidence.clip / max(rows.signal, 1e-9),
        shown=float(precisions @ np.sum(moves * turns, axis=1)),
        precision=float(precisions @ np.sum(moves**2, axis=1)),
    )
    bend = slopes.curvature * damping
    signal = bend * point - gradient
    noise = 1.0 / np.sum(precisions) + (slopes.deviation * damping * point) ** 2
    along = rows.axes[rule.constant] * np.sqrt(rows.scale)  # a move along it shifts all predictions
    across = signal - damping * along * (along @ signal) / (along @ (damping * along))
    strength = damping**2 * rows.scale
    bent = BENT if isinstance(loss, Logistic) else 0.0
    doubt = (bent * bend * point) ** 2 + slopes.largest * damping / public.n
    _, likely = _likelihoods(across, noise + doubt, strength)
    noise = noise + slopes.variance * damping / public.n
    reached = np.sqrt(rows.scale) * (rows.axes.T @ found)  # v, since w = U (h + f)^-1/2 U^T v
    drawn = _shares(signal, across, reached, bend, noise, strength, along)
    low, middle, high = (float(one) for one in np.quantile(drawn, (0.05, 0.5, 0.95)))
    return ImprovementShare(
        low=1.0 - (1.0 - low) * WIDENED,
        middle=middle,
        high=1.0 - (1.0 - high) / WIDENED,
        evidence=0.0 if slopes.vanished else likely,
    )


def _slopes(
    loss: GLMLoss, predictions: tuple[float, float], *, reach: float, shown: float, precision: float
) -> _Slopes:
    """What the loss, its clip and the path say of the slopes.

    Args:
        loss: of two classes, or the squared one.
        predictions: their mean and standard deviation.
        reach: the slope beyond which the gradient of a typical row is clipped.
        shown: precision times the a that the path shows.
        precision: of that.
    """
    mean, spread = predictions
    if isinstance(loss, Logistic):
        usual = clipped_curvature(loss, mean, min(spread, WIDEST), reach) or 0.25
        width, least = 0.3 * usual, LEAST_CURVED * usual
    else:
        usual, width, least = float(2.0 * ndtr(reach / RESIDUAL) - 1.0), 0.5, 0.02
    total = LINEAR * precision + width**-2.0
    shown_curvature, deviation = (LINEAR * shown + usual * width**-2.0) / total, total**-0.5
    curvature, vanished = max(shown_curvature, least), shown_curvature + 2.0 * deviation < VANISHED * usual
    if isinstance(loss, Logistic):
        variance = curvature * min(1.0, reach / float(expit(abs(mean))))  # p (1 - p), and the clip once more
        return _Slopes(
            curvature=curvature, deviation=deviation, vanished=vanished, variance=variance, largest=variance
        )
    return _Slopes(
        curvature=curvature,
        deviation=deviation,
        vanished=vanished,
        variance=min(reach, RESIDUAL) ** 2,
        largest=min(reach, 1.0) ** 2,
    )


def _likelihoods(signal: Floats, noise: Floats, strength: Floats) -> tuple[Floats, float]:
    """The chance of each of `SCALES`, (73,), and the largest log-likelihood over that of noise alone."""
    variances = _variances(noise, strength)
    logs = -0.5 * np.sum(np.log(variances) + signal**2 / variances, axis=1)
    best = float(np.max(logs))
    chances = np.exp(logs - best)
    return chances / np.sum(chances), best + 0.5 * float(np.sum(np.log(noise) + signal**2 / noise))


def _variances(noise: Floats, strength: Floats) -> Floats:
    """Of the signal in each direction, for each of `SCALES`, (73, d)."""
    even = strength / np.exp(np.mean(np.log(strength)))
    return SCALES[:, None] * even * np.mean(noise) + noise


def _shares(
    signal: Floats,
    across: Floats,
    reached: Floats,
    bend: Floats,
    noise: Floats,
    strength: Floats,
    along: Floats,
) -> Floats:
    """Draws of the share, (`DRAWS`,): what it is for the optima that the releases leave possible.

    Args:
        signal: b, (d,).
        across: b without the direction along which all predictions move alike.
        reached: v.
        bend: a D.
        noise: N_j.
        strength: D^2 (h + f).
        along: q over D.
    """
    chances, _ = _likelihoods(across, noise, strength)
    public_draw = np.random.default_rng(SEED)
    scales = public_draw.choice(len(SCALES), DRAWS, p=chances)
    kept = 1.0 - noise / _variances(noise, strength)[scales]
    optima = (kept * across + np.sqrt(kept * noise) * public_draw.standard_normal(kept.shape)) / bend
    pull = bend * along
    stiff = float(pull @ along)
    shift = float(pull @ reached) / stiff
    best_shift = (along @ signal + np.sqrt(along**2 @ noise) * public_draw.standard_normal(DRAWS)) / stiff
    missed = (reached - shift * along - optima) ** 2 @ bend + stiff * (shift - best_shift) ** 2
    return 1.0 - missed / np.maximum(optima**2 @ bend, 1e-300)


# ------------------------------------------------------------------------------------------------------------
# Sentences on the share of the achievable improvement over a constant prediction, before a run and after
# it.


GOAL = 0.9  # where a share cannot double, it is said what would bring it here
ENOUGH = 0.95 * GOAL  # a share from which on more is not worth saying
LEAST_SHARE = 0.01  # from which what would help is said
MOST_TIMES = 100.0  # as many records: more is not spelled out
MOST_EPSILON = 30.0
OF = "of the improvement that a model without privacy makes over a constant prediction"
NOTHING_FOUND = "nothing was found: the released gradients show no more than noise would"


def expected(noise: float, spread: float, public: Public, budget: Budget) -> str:
    """What a plan says where the share is 1 / (1 + x) of a noise x, on most data within a factor of the odds.

    Where most data leave little to gain, it is said what would help where less is reached, at the lower end.

    Args:
        noise: x; falls as one over the number of records, and over mu.
        spread: the factor.
        public: of the data.
        budget: of the run.
    """
    share, low, high = (1.0 / (1.0 + noise * times) for times in (1.0, spread, 1.0 / spread))
    at_low = share >= ENOUGH > low
    least, x = (low, noise * spread) if at_low else (share, noise)
    what = "the lower end" if at_low else "it"
    gain = more(least, lambda wanted: x * wanted / (1.0 - wanted), public, budget, what=what)
    return f"{between(low, share, high)} {OF}{gain}"


def findings(found: ImprovementShare, public: Public, budget: Budget) -> dict[str, Finding]:
    """By name, what a run says of its result: the share, and the range that it lies in."""
    said = reached(found, public, budget)
    if not found.is_found:
        return {IMPROVEMENT_SHARE: Finding(0.0, said)}
    ends = (found.low, "the share is seldom below"), (found.high, "the share is seldom above")
    return {IMPROVEMENT_SHARE: Finding(found.middle, said)} | {
        name: Finding(end, meaning) for name, (end, meaning) in zip(IMPROVEMENT_ENDS, ends, strict=True)
    }


def reached(found: ImprovementShare, public: Public, budget: Budget) -> str:
    """What the releases of a run say of its result; what would help only where something was found."""
    if not found.is_found:
        return NOTHING_FOUND
    share = min(max(found.middle, LEAST_SHARE), 1.0)
    odds = (1.0 - share) / share
    gain = more(share, lambda wanted: odds * wanted / (1.0 - wanted), public, budget)
    return f"{between(found.low, found.middle, found.high)} {OF}{gain}"


def more(
    share: float, times_for: Callable[[float], float], public: Public, budget: Budget, *, what: str = "it"
) -> str:
    """Which number of records, or which epsilon, would double a share or bring it to `GOAL`; begins with a semicolon.

    Args:
        share: the share.
        times_for: how many times as many records, or how many times the mu, another share takes.
        public: of the data.
        budget: of the run.
        what: is brought there.
    """
    if share >= ENOUGH:
        return f"; more {public.unit}s or a larger epsilon would add little"
    wanted = min(2.0 * share, GOAL)
    does = f"double {what}" if wanted < GOAL else f"bring {what} to {percent(GOAL)}"
    times = max(times_for(wanted), 1.0)
    if times > MOST_TIMES:
        return f"; more than {figure(int(MOST_TIMES))} times as many {public.unit}s would {does}"
    epsilon = gaussian_epsilon(times * gaussian_mu(budget.epsilon, budget.delta), budget.delta)
    units = f"; about {figure(int(two_digits(times * public.n)))} {public.unit}s at the same epsilon"
    if epsilon > MOST_EPSILON:
        return f"{units} would {does}"
    return f"{units}, or epsilon {two_digits(epsilon):.2g} with the same {public.unit}s, would {does}"


def between(low: float, share: float, high: float) -> str:
    """A range of shares in words; that of the middle where both ends round to the same. Shares below 0 are 0."""
    ends = percent(low), percent(high)
    if ends[0] == ends[1]:
        return about(share)
    if ends[0] == percent(0.0):
        return f"at most {ends[1]}"
    return f"between {ends[0]} and {'nearly all' if ends[1] == percent(1.0) else ends[1]}"


def about(share: float) -> str:
    """A share in words, as exactly as it is known."""
    if share < 0.075:
        return "less than 10 %"
    return f"about {percent(share)}" if share <= 0.925 else "more than 90 %"


def percent(share: float) -> str:
    """A share to the nearest five per cent."""
    return f"{5 * round(20 * min(max(share, 0.0), 1.0))} %"


def two_digits(value: float) -> float:
    """A number rounded to two digits."""
    return float(f"{value:.1e}") if math.isfinite(value) and value else value
