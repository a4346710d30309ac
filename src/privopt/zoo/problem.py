"""What a problem of the zoo is: an objective whose constants and minimum are known in closed form.

There are two kinds: a function that every record tilts (`zoo_tilted`), and linear models over a table of records that
are repeated as often as wanted (`zoo_linear_models`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.later import Array, Float, jax, jnp
from privopt.precision import in_float64
from privopt.problems.glm import GLMLoss
from privopt.problems.growth import KL
from privopt.problems.problem import Problem

Vector = NDArray[np.float64]
Records = Callable[[int, int], tuple[Vector, Vector]]


@dataclass(frozen=True, kw_only=True, eq=False)
class ZooProblem:
    """A problem with a known minimum and known constants, for studying solvers.

    Attributes:
        name: the problem and its parameters.
        problem: loss, constraint set and growth, as a solver takes them.
        start: where the constants suppose that a run begins.
        region: where the constants hold, in words.
        lipschitz: L0, a bound on the norm of one record's gradient on the region.
        smoothness: L1, a bound on the curvature of one record's loss on the region; infinite if it is not smooth.
        minimum: F*, the least value of the objective.
        minimiser: a point where it is attained, the nearest to the start if there are several; None if there is none.
        row_bound: the largest norm of a record's features.
        round: the records come in multiples of so many, of which the others are copies; 1 if there is no such table.
        objective: F at some parameters.
        gradient: the gradient of F.
        excess_of: F minus F* at some parameters, computed without a difference of near equals where that is possible.
        records_of: see `records`.
    """

    name: str
    problem: Problem
    start: Vector
    region: str
    lipschitz: float
    smoothness: float
    minimum: float
    minimiser: Vector | None
    row_bound: float
    round: int
    objective: Callable[[ArrayLike], float]
    gradient: Callable[[ArrayLike], Vector]
    excess_of: Callable[[ArrayLike], float]
    records_of: Records

    @property
    def growth(self) -> KL:
        """The KL condition that the objective satisfies on the region."""
        assert self.problem.growth is not None
        return self.problem.growth

    @property
    def shared_gradient(self) -> bool:
        """Whether the gradients of all records differ by constants only: that of x is `grad F(w) + x`."""
        return self.round == 1

    @property
    def d(self) -> int:
        """The number of parameters."""
        return len(self.start)

    def excess(self, params: ArrayLike) -> float:
        """The objective at these parameters above its least value."""
        return self.excess_of(params)

    def records(self, n: int, seed: int = 0) -> tuple[Vector, Vector]:
        """Records whose mean loss is the objective exactly, up to rounding.

        Args:
            n: how many.
            seed: of the records that are drawn at random.
        Returns:
            Features of shape (n, k) and targets of shape (n,).
        Raises:
            ValueError: there are no n such records.
        """
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}: it is the number of records.")
        return self.records_of(n, seed)


def vector(params: ArrayLike) -> Vector:
    """Parameters as a flat float64 array."""
    return np.asarray(params, np.float64).reshape(-1)


def require_positive(name: str, number: float, meaning: str) -> None:
    """Refuse a parameter of a problem that is not a positive finite number."""
    if not (0.0 < number < np.inf):
        raise ValueError(f"{name} must be positive and finite, got {number!r}: it is {meaning}.")


def require_dimension(d: int) -> None:
    """Refuse a problem without parameters."""
    if d < 1:
        raise ValueError(f"d must be at least 1, got {d!r}: it is the number of parameters.")


# ------------------------------------------------------------------------------------------------------------
# The growth of a square loss near a start, from the tangent kernel of the model: for studies, not for
# planning.


Network = Callable[[Float[Array, " p"], Float[Array, " d"]], Float[Array, ""]]


def tangent_kernel_floor(
    network: Network, params: Float[Array, " p"], features: Float[Array, "n d"]
) -> float:
    """The smallest eigenvalue of the tangent kernel `J J'`, J the Jacobian of the predictions of these records.

    Args:
        network: the prediction of one record, `network(params, features)`.
        params: where, in practice a start.
        features: public or synthetic records; no more than parameters, or the eigenvalue is 0.
    """
    jacobian = jax.vmap(jax.grad(network), (None, 0))(params, features)
    return float(jnp.linalg.eigvalsh(jacobian @ jacobian.T)[0])


def tangent_kernel_growth(network: Network, params: Float[Array, " p"], features: Float[Array, "n d"]) -> KL:
    """The KL condition of `(1/n) sum (network - y)^2 / 2` at these parameters, whatever the targets: kappa = 2.

    `|grad F|^2 = r' J J' r / n^2 >= (lambda_min / n) 2 F`. It holds at the parameters themselves with F* = 0, and for
    wide networks it changes little on the way to a minimum.

    Args:
        network: the prediction of one record.
        params: where.
        features: public or synthetic records. The kernel is a function of every record, so one of private records is
            private, and it moves along the run: take no bound and no plan from it.
    Raises:
        ValueError: the kernel is singular, as it is when there are more records than parameters.
    """
    floor = tangent_kernel_floor(network, params, features)
    if not floor > 0.0:
        raise ValueError(
            f"the tangent kernel's smallest eigenvalue is {floor:.3g}: the model has no growth here. Take more "
            "parameters than records, and no record twice."
        )
    return KL.of_strong_convexity(floor / len(features))


# ------------------------------------------------------------------------------------------------------------
# The KL condition estimated from public or synthetic records: what a run without privacy shows at its end.


SETTLED = (
    30.0  # an excess counts as known where it is this many times what the last point is short of the minimum
)
DECADES = 2.0
FEWEST_POINTS = 10
SAFETY = 2.0  # on gamma: too small a one makes bounds false, too large a one costs gamma^kappa only
ROUNDING = 1e-13


def fit_growth(
    problem: Problem,
    features: ArrayLike,
    targets: ArrayLike,
    *,
    start: ArrayLike | None = None,
    steps: int = 10_000,
    step_size: float | None = None,
) -> KL:
    """Fit (gamma, kappa) of an objective to public or synthetic records of the same design as the private ones.

    Gradient descent without noise; then log(F - F*) against log |grad F| over the last two decades of the excess that
    rounding and the estimate of F* leave: the slope is kappa, at least 1. gamma is the least that makes the condition
    hold on these points, doubled.

    Args:
        problem: loss, smooth penalty and constraint set; the set should hold the minimum inside.
        features: public records, (n, d).
        targets: their targets, (n,).
        start: default zero.
        steps: how many.
        step_size: default one over five times the curvature bound of the loss at these rows, small enough to follow
            the flow.
    Returns:
        An estimate along one path; no bound that is derived from it is proved.
    Privacy:
        None: the result is a function of the records. For public or synthetic records only.
    Raises:
        ValueError: the path is too short to fit, the penalty is not smooth, or there is no default step size.
    """
    if not problem.regulariser.is_smooth:
        raise ValueError("the growth of an objective is fitted to its gradients: it needs a smooth penalty.")
    if steps < 4 * FEWEST_POINTS:
        raise ValueError(
            f"steps must be at least {4 * FEWEST_POINTS}, got {steps}: the fit needs the end of a path."
        )
    rows, labels = np.asarray(features, np.float64), np.asarray(targets, np.float64)
    eta = _default_step_size(problem, rows) if step_size is None else step_size
    with in_float64():
        width = problem.layout.size if problem.layout is not None else rows.shape[1]
        shape = (width,) if problem.loss.outputs == 1 else (width, problem.loss.outputs)
        first = jnp.zeros(shape) if start is None else jnp.asarray(problem.ravel(start), jnp.float64)
        values, norms = _descent(problem, jnp.asarray(rows), jnp.asarray(labels), first, eta, steps)
        return _fit(np.asarray(values), np.asarray(norms))


def _default_step_size(problem: Problem, rows: NDArray[np.float64]) -> float:
    scale = float(np.max(np.sum(rows * rows, axis=1))) if isinstance(problem.loss, GLMLoss) else 1.0
    smoothness = problem.loss.curvature * scale + problem.regulariser.smoothness
    if not 0.0 < smoothness < math.inf:
        raise ValueError(f"the loss states a curvature of {problem.loss.curvature!r}: give step_size.")
    return 0.2 / smoothness


def _descent(
    problem: Problem,
    rows: Float[Array, "n d"],
    labels: Float[Array, " n"],
    start: Float[Array, "..."],
    step_size: float,
    steps: int,
) -> tuple[Array, Array]:
    """The objective and the gradient's norm at every point of plain descent."""
    objective = jax.value_and_grad(lambda params: problem.objective(params, rows, labels))

    def step(params: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        value, gradient = objective(params)
        moved = problem.constraint.project(params - step_size * gradient)
        return moved, (value, jnp.sqrt(jnp.sum(gradient * gradient)))

    _, path = jax.jit(lambda params: jax.lax.scan(step, params, None, length=steps))(start)
    return path


def _fit(values: NDArray[np.float64], norms: NDArray[np.float64]) -> KL:
    last, remaining = float(values[-1]), _remaining(values)
    excess = values - (last - remaining)
    floor = max(SETTLED * remaining, ROUNDING * max(abs(last), float(values[0])), 1e-300)
    chosen = (excess >= floor) & (excess <= floor * 10.0**DECADES) & (norms > 0.0)
    if np.count_nonzero(chosen) < FEWEST_POINTS or not excess[0] >= 10.0 * floor:
        raise ValueError(
            f"{np.count_nonzero(chosen)} points of the path lie within the two decades that can be fitted, and "
            f"{FEWEST_POINTS} are needed: take more steps, or a smaller step size where the descent ends at once."
        )
    slope, _ = np.polyfit(np.log(norms[chosen]), np.log(excess[chosen]), 1)
    kappa = max(float(slope), 1.0)
    gamma = float(np.max(excess[chosen] ** (1.0 / kappa) / norms[chosen]))
    return KL(gamma=SAFETY * gamma, kappa=kappa, gap=float(excess[0]))


def _remaining(values: NDArray[np.float64]) -> float:
    """How far the last value is above the limit, by the gains of the last half and of the quarter before.

    For an excess that falls like t^-q the gains shrink by 2^-q from one to the next; the rest is a geometric series.
    """
    quarter, half, last = (float(values[len(values) * k // 4 - 1]) for k in (1, 2, 4))
    if not quarter > half > last:
        return 0.0
    ratio = min((half - last) / (quarter - half), 0.99)
    return (half - last) * ratio / (1.0 - ratio)


# ------------------------------------------------------------------------------------------------------------
# An inventory policy whose cost only a simulator knows: a black box in NumPy, and made-up demands for it.
# A unit is one product, its record the demands of its 24 periods. A policy says for every season when to order (stock
# below s) and up to what (S). The cost of a record is that of running the policy through its demands: it jumps where
# one more order is placed, and has no derivative that means anything.


@dataclass(frozen=True)
class Inventory:
    """The cost of an (s, S) policy on one record's demands: `inventory(params, demands, target)`.

    Parameters are s_0, ..., s_{q-1}, x_0, ..., x_{q-1} for q seasons; S_k = s_k + |x_k|. Period w of 24 is in season
    floor(w q / 24). The stock starts at S_0. A period with stock below s_k orders up to S_k at a cost of 4; then the
    demand is met as far as the stock goes, what is short is lost at 3 a unit, and what is left costs 0.2 a unit. The
    value is the mean over periods, at most 12.

    It is a function of the parameters and of one record alone: whatever is random lies in the demands, so all points
    meet the same. Equal when the number of seasons is.

    Attributes:
        seasons: q, a divisor of 24.
    Raises:
        ValueError: the seasons do not divide the periods.
    """

    periods: ClassVar[int] = 24
    order_cost: ClassVar[float] = 4.0
    holding_cost: ClassVar[float] = 0.2
    shortage_cost: ClassVar[float] = 3.0
    value_range: ClassVar[tuple[float, float]] = (0.0, 12.0)
    scale: ClassVar[float] = 15.0  # of a parameter: ten times the radius over which costs are compared

    seasons: int = 4

    def __post_init__(self) -> None:
        require_dimension(self.seasons)
        if self.periods % self.seasons:
            raise ValueError(f"seasons must divide {self.periods} periods, got {self.seasons!r}.")

    @property
    def dimension(self) -> int:
        """How many parameters there are."""
        return 2 * self.seasons

    @property
    def start(self) -> Vector:
        """A policy to begin with: order below 2, up to 5."""
        return np.repeat([2.0, 3.0], self.seasons)

    def __call__(self, params: ArrayLike, features: ArrayLike, target: object = None) -> Vector:
        """The cost of one record.

        Args:
            params: (..., 2 q): one policy, or any number of them at once.
            features: (24,), the demands; or (..., 24) with leading axes that broadcast against those of `params`.
            target: not used.
        Returns:
            The cost of each policy, (...,).
        """
        del target
        points, demands = np.asarray(params, np.float64), np.asarray(features, np.float64)
        low = points[..., : self.seasons]
        high = low + np.abs(points[..., self.seasons :])
        shape = np.broadcast_shapes(points.shape[:-1], demands.shape[:-1])
        stock, cost = np.broadcast_to(high[..., 0], shape), np.zeros(shape)
        for period in range(self.periods):
            season = period * self.seasons // self.periods
            orders = stock < low[..., season]
            left = np.where(orders, high[..., season], stock) - demands[..., period]
            stock = np.maximum(left, 0.0)
            cost = cost + self.order_cost * orders + self.holding_cost * stock
            cost = cost + self.shortage_cost * np.maximum(-left, 0.0)
        return np.minimum(cost / self.periods, self.value_range[1])

    def demands(self, units: int, seed: int) -> Vector:
        """Made-up records, (units, 24): Poisson demands with a season, a size of each unit's own, and rare bursts.

        Args:
            units: how many.
            seed: of NumPy's generator.
        """
        rng = np.random.default_rng(seed)
        size = 2.0 * np.exp(0.3 * rng.normal(size=(units, 1)))
        wave = 1.0 + 0.8 * np.sin(2.0 * np.pi * np.arange(self.periods) / self.periods)
        bursts = (rng.random((units, self.periods)) < 0.05) * rng.poisson(6.0, (units, self.periods))
        return (rng.poisson(size * wave) + bursts).astype(np.float64)

    def mean_cost(self, params: ArrayLike, demands: ArrayLike) -> float:
        """The mean cost of one policy over records."""
        return float(np.mean(self(np.asarray(params, np.float64), demands)))


def inventory(seasons: int = 4) -> Inventory:
    """The inventory problem: cost, made-up demands and a policy to start from.

    Args:
        seasons: q, a divisor of 24; there are 2 q parameters.
    """
    return Inventory(seasons)
