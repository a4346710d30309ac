"""An inventory policy by values alone: directions, sensitivities and starts, on made-up demands.

Every method has the same (epsilon, delta = 1e-6), replace-one, n = 2000 products, 8 parameters, values over a radius of
1.5 and the clip 0.3 (unless it says otherwise), and of its descent the best of three rates, which nobody who protects
the data can know: what is compared are estimates, not rules. Reported is the mean cost of the products themselves.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from benchmarks.results import Record, select
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems.ball import haar_block
from privopt.problems.black_box import BlackBox
from privopt.problems.problem import Problem
from privopt.public import Relation
from privopt.queries.values import CandidateValues, ValueGradient
from privopt.solvers.warm_start import CANDIDATES, SHARE, candidates
from privopt.zoo.problem import Inventory, inventory

DELTA = 1e-6
EPSILONS = (0.1, 1.0)
UNITS = 2_000
SMOOTHING, CLIP, STEPS = 1.5, 0.3, 50
RATES = (1.0, 4.0, 16.0)
REACH = 6.0  # half the box of candidates
ROW_BOUND = 400.0
HEAD = ("method", "releases", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS))

Directions = Callable[[Array, int], Any]


def independent(key: Array, dimension: int) -> Array:
    """As many independent directions as parameters, uniform on the sphere."""
    drawn = jax.random.normal(key, (dimension, dimension), jnp.float64)
    return drawn / jnp.linalg.norm(drawn, axis=1, keepdims=True)


@dataclass(frozen=True)
class Method:
    """A descent by values.

    Attributes:
        name: in the table.
        directions: of a step, from a public key and the number of parameters.
        steps: T.
        clip: C.
        warm: part of rho for a choice of the start.
    """

    name: str
    directions: Directions = lambda key, dimension: haar_block(key, dimension, dimension)
    steps: int = STEPS
    clip: float = CLIP
    warm: float = 0.0


METHODS = (
    Method("orthonormal directions"),
    Method("independent directions", independent),
    Method("one direction, 8 times as many steps", lambda key, d: haar_block(key, 1, d), 8 * STEPS),
    Method("independent directions, the worst case for a clip", independent, clip=8 * CLIP),
    Method("orthonormal directions, warm start", warm=SHARE),
    Method("choice among 1024 candidates", steps=0, warm=1.0),
)


def traced_cost(problem: Inventory) -> Callable[[Any, Any, Any], Any]:
    """The simulator in JAX, which takes a benchmark's thousands of passes sooner."""

    def cost(params: Any, features: Any, target: Any) -> Any:
        q = problem.seasons
        low, high = params[:q], params[:q] + jnp.abs(params[q:])
        stock, total = high[0], 0.0 * target
        for period in range(problem.periods):
            k = period * q // problem.periods
            orders = stock < low[k]
            left = jnp.where(orders, high[k], stock) - features[period]
            stock = jnp.maximum(left, 0.0)
            total += jnp.where(orders, problem.order_cost, 0.0) + problem.holding_cost * stock
            total += problem.shortage_cost * jnp.maximum(-left, 0.0)
        return total / problem.periods

    return cost


def posed(problem: Inventory) -> Problem:
    """The policy's problem, in its own units."""
    loss = BlackBox(traced_cost(problem), value_range=problem.value_range, scale=1.0, host=False)
    return Problem.of_values(loss, problem.start)


def run(
    posed_as: Problem,
    start: NDArray[Any],
    units: Units,
    method: Method,
    epsilon: float,
    rate: float,
    seed: int,
) -> NDArray[np.float64]:
    """The policy that one run releases, at exactly this epsilon or a little less."""
    mu = gaussian_mu(epsilon, DELTA)  # a choice with rho = share mu^2 / 2 counted as so much Gaussian
    loss: Any = posed_as.loss
    with double_precision():
        curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE), noise=NoiseSource(seed))
        at = jnp.asarray(start, float)
        if method.warm:
            points = candidates(np.asarray(start), REACH, CANDIDATES, seed)
            values = CandidateValues(loss=loss, candidates=jnp.asarray(points), low=loss.low, high=loss.high)
            choice = ExponentialMechanism(2.0 * mu * math.sqrt(method.warm))
            at = jnp.asarray(points[int(curator.release(values, choice))])
        if not method.steps:
            return np.asarray(at)
        noise = Gaussian(math.sqrt(method.steps / (1.0 - method.warm)) / mu)
        public = jax.random.key(curator.public_seed("directions"))
        for t in range(method.steps):
            rows = method.directions(jax.random.fold_in(public, t), len(start))
            query = ValueGradient(loss=loss, at=at, directions=rows, smoothing=SMOOTHING, clip=method.clip)
            slope = query.gradient(curator.release(query, noise))
            at = at - rate * STEPS / method.steps * (1.0 - t / method.steps) * slope
        return np.asarray(at)


def measure(*, seeds: int, quick: bool) -> Iterator[Record]:
    """One record a method and epsilon: the mean cost over made-up data sets, one run each."""
    problem = inventory(4)
    posed_as = posed(problem)
    tables = [problem.demands(UNITS // 10 if quick else UNITS, seed) for seed in range(seeds)]
    units = [Units.from_arrays(one, np.zeros(len(one)), row_bound=ROW_BOUND) for one in tables]
    for epsilon in EPSILONS:
        for method in METHODS:
            begun, found = time.perf_counter(), {}
            for rate in RATES if method.steps else (0.0,):
                found[rate] = [
                    problem.mean_cost(run(posed_as, problem.start, data, method, epsilon, rate, seed), table)
                    for seed, (data, table) in enumerate(zip(units, tables, strict=True))
                ]
            rate = min(found, key=lambda one: float(np.mean(found[one])))
            loss = found[rate]
            yield {
                "benchmark": "nonsmooth",
                "data": "inventory",
                "method": method.name,
                "relation": "replace-one",
                "epsilon": epsilon,
                "delta": DELTA,
                "n": len(tables[0]),
                "d": problem.dimension,
                "runs": len(loss),
                "loss": float(np.mean(loss)),
                "loss_error": float(np.std(loss, ddof=1) / math.sqrt(len(loss)))
                if len(loss) > 1
                else math.nan,
                "loss_at_start": float(np.mean([problem.mean_cost(problem.start, one) for one in tables])),
                "spent": epsilon,
                "releases": method.steps + (1 if method.warm else 0),
                "passes": float(method.steps + (1 if method.warm else 0)),
                "settings": {"rate": rate, "clip": method.clip, "smoothing": SMOOTHING},
                "fit_s": (time.perf_counter() - begun) / sum(map(len, found.values())),
            }


def table_rows(records: Sequence[Record]) -> list[list[str]]:
    """One row a method: its cost at every epsilon."""
    ours = select(records, benchmark="nonsmooth", data="inventory")
    keyed = {(one["method"], one["epsilon"]): one for one in ours}
    rows = []
    for method in dict.fromkeys(one["method"] for one in ours):
        cells = [keyed.get((method, epsilon)) for epsilon in EPSILONS]
        releases = next(one["releases"] for one in cells if one)
        rows.append([method, str(releases), *("" if one is None else _cost(one) for one in cells)])
    if ours:
        rows.append(["the start", "0", *(f"{ours[0]['loss_at_start']:.3f}" for _ in EPSILONS)])
    return rows


def _cost(record: Record) -> str:
    loss, error = record["loss"], record["loss_error"]
    return f"{loss:.3f}" if math.isnan(error) else f"{loss:.3f} +- {error:.1g}"
