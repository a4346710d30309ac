"""One problem of the panel at one budget, for all seeds at once: releases are those of the library, run as one batch.

A rule sees what a solver sees: the public numbers, and releases with the noise that their prices ask for. Rows,
targets, penalty and public numbers are made by the estimator itself, so that a rule that is good here is good there.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.panel_problems import SEED, PanelArrays, PanelProblem
from benchmarks.results import SCRATCH
from privopt.data.units import Units
from privopt.estimators.linear import (
    HuberRegressor,
    LinearSVC,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
)
from privopt.estimators.records import HeldRecords, Shape
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.planning.whitening import WhiteningRule, signal_ridge
from privopt.precision import double_precision
from privopt.problems.losses import GLMLoss, Logistic, Squared
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge as RidgePenalty
from privopt.queries.slopes import glm_slopes

Model = Literal["logistic", "hinge", "squared", "huber", "quantile", "poisson"]
EPSILONS = (0.1, 0.3, 1.0, 3.0)
TINY_PENALTY = 1e-7
Floats = NDArray[np.float64]
Rule = Callable[["Cell"], Floats]


@dataclass(frozen=True, kw_only=True, eq=False)
class Mapped:
    """Coordinates w = B v, one a seed.

    Attributes:
        matrix: B, (seeds, p, k); k is p but for a few numbers of a result.
        norms: lengths of the mapped rows, float32, (n, seeds).
        longest: a bound on them, one a seed: (seeds,).
    """

    matrix: Floats
    norms: Any
    longest: Floats


@dataclass(eq=False)
class Cell:
    """A problem, a budget, several seeds.

    Attributes:
        problem: the problem.
        arrays: its arrays.
        epsilon: privacy budget; delta is 1 / n^2, under replace-one.
        seeds: how many runs there are.
        model: which loss.
        options: further arguments of the estimator, such as `row_bound`, which for classes is "unit" here: the training
            excess that the panel measures is that of rows of length 1.
    """

    problem: PanelProblem
    arrays: PanelArrays
    epsilon: float
    seeds: int = 10
    model: Model | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        self._maps: dict[Any, Mapped] = {}
        self._moments: dict[float, Floats] = {}

    # What is public --------------------------------------------------------------------------------------------------
    @cached_property
    def estimator(self) -> Any:
        """The estimator of this budget."""
        arrays, n = self.arrays, len(self.arrays.targets)
        usual = {"classes": "logistic", "two classes": "logistic", "numbers": "squared", "counts": "poisson"}
        common = {"epsilon": self.epsilon, "delta": 1.0 / n**2, "bounds": (-1.0, 1.0), **dict(self.options)}
        match self.model or usual[self.problem.kind]:
            case "logistic":
                return LogisticRegression(
                    classes=list(range(arrays.classes)), **{"row_bound": "unit", **common}
                )
            case "hinge":
                return LinearSVC(classes=list(range(arrays.classes)), **{"row_bound": "unit", **common})
            case "poisson":
                return PoissonRegressor(target_bounds=(0.0, arrays.most), **common)
            case kind:
                models: Any = {"squared": Ridge, "huber": HuberRegressor, "quantile": QuantileRegressor}
                return models[kind](target_bounds=(-1.0, 1.0), **common)

    @cached_property
    def _setup(self) -> Any:
        arrays = self.arrays
        n, width = arrays.features.shape
        shape = Shape(width=width, n=n, by_user=False, budget=Budget(self.epsilon, 1.0 / n**2))
        setup = self.estimator._setup(shape, None)
        if not (isinstance(setup.problem.loss, Logistic) and "alpha" not in dict(self.options)):
            return setup
        # All rules begin with the ridge of before; a rule that wants another one says so.
        alone = Instance(Problem(setup.problem.loss), setup.public, Budget(self.epsilon, 1.0 / n**2))
        return self.estimator.set_params(alpha=signal_ridge(alone))._setup(shape, None)

    @cached_property
    def units(self) -> Units:
        """The rows and targets as the library stores them."""
        nothing = NoiseSource(0)
        records = HeldRecords(
            private_features=self.arrays.features,
            private_targets=self.arrays.targets,
            groups=None,
            noise=nothing,
            choice=nothing,
        )
        return self._setup.units(records)

    @cached_property
    def instance(self) -> Instance:
        """What a solver plans for."""
        n = len(self.arrays.targets)
        return Instance(self._setup.problem, self.units.public, Budget(self.epsilon, 1.0 / n**2))

    @property
    def loss(self) -> GLMLoss:
        """The loss."""
        loss = self.instance.problem.loss
        assert isinstance(loss, GLMLoss)
        return loss

    @property
    def outputs(self) -> int:
        """K."""
        return self.loss.outputs

    @cached_property
    def mu(self) -> float:
        """The budget as the parameter of Gaussian differential privacy."""
        return self.instance.mu

    @property
    def n(self) -> int:
        """Records."""
        return self.instance.public.n

    @property
    def d(self) -> int:
        """Columns, the constant included."""
        return self.instance.public.d

    @cached_property
    def ridge(self) -> Floats:
        """Strength of the ridge on each column, (d,)."""
        penalty = self.instance.problem.regulariser
        if not isinstance(penalty, RidgePenalty):
            return np.zeros(self.d)
        return penalty.strength * np.asarray(penalty.weights or (1.0,) * self.d)

    def generator(self, *purpose: Any) -> np.random.Generator:
        """Noise of a purpose: the same for every rule that asks for it."""
        words = repr((self.problem.name, self.epsilon, *purpose))
        return np.random.default_rng([SEED, int(hashlib.sha256(words.encode()).hexdigest()[:12], 16)])

    # What is private: rows on the device ------------------------------------------------------------------------------
    @cached_property
    def rows(self) -> Any:
        """(n, d), float32."""
        return jnp.asarray(np.asarray(self.units.private_features, np.float32))

    @cached_property
    def targets(self) -> Any:
        """(n,), as the loss takes them."""
        return jnp.asarray(self.units.private_targets, jnp.float32)

    @cached_property
    def exact_moment(self) -> Floats:
        """The mean of a a^T; private."""
        return np.asarray(self.rows.T @ self.rows, np.float64) / self.n

    @cached_property
    def divided_moment(self) -> Floats:
        """The mean of a a^T / |a|^2; private."""
        divided = self.rows / self._lengths
        return np.asarray(divided.T @ divided, np.float64) / self.n

    # Releases ---------------------------------------------------------------------------------------------------------
    def moment(self, share: float) -> Floats:
        """The second moment released for a share of mu^2, (seeds, d, d)."""
        if share not in self._moments:
            generator, rule = self.generator("moment", share), WhiteningRule.of(self.instance, share)
            scale, exact = rule.gram_noise, self.divided_moment if rule.divided else self.exact_moment
            drawn = generator.standard_normal((self.seeds, self.d, self.d)) * scale
            upper = np.triu(drawn, 1) / math.sqrt(2.0)
            noise = upper + np.swapaxes(upper, 1, 2) + np.einsum("sij,ij->sij", drawn, np.eye(self.d))
            self._moments[share] = exact + noise
        return self._moments[share]

    def mapped(self, key: Any, matrix: Callable[[], Floats]) -> Mapped:
        """Coordinates, made once for each key, from symmetric matrices."""
        if key not in self._maps:
            self._maps[key] = self.onto(matrix())
        return self._maps[key]

    def onto(self, matrix: Floats) -> Mapped:
        """Coordinates w = B v from matrices B, (seeds, d, k)."""
        largest = np.linalg.norm(matrix, ord=2, axis=(1, 2))
        stretch = largest * self.instance.public.row_bound * (1.0 + 1e-6)
        norms = [_norms(self.rows, jnp.asarray(one, jnp.float32)) for one in matrix]
        return Mapped(matrix=matrix, norms=jnp.stack(norms, axis=1), longest=2.0 ** np.ceil(np.log2(stretch)))

    def gradients(
        self, mapped: Mapped | None, points: Floats, clip: Floats | float, *, balanced: bool = False
    ) -> Floats:
        """Clipped mean gradients at (seeds, d) or (seeds, d, K) points, exact: add noise before use.

        Args:
            mapped: the coordinates; None for the rows as they are.
            points: in those coordinates, whose number may be another than d.
            clip: C, one number or one a seed.
            balanced: as in `ClippedGradient`.
        """
        seeds, outputs = len(points), self.outputs
        at = points.reshape(seeds, -1, outputs)
        outward = at if mapped is None else np.einsum("sij,sjk->sik", mapped.matrix, at)
        columns = jnp.asarray(outward.transpose(1, 0, 2).reshape(self.d, -1), jnp.float32)
        norms = self._lengths if mapped is None else mapped.norms
        limits = jnp.asarray(np.broadcast_to(np.asarray(clip, float), (seeds,)), jnp.float32)
        sums = np.asarray(
            _gradient_sums(
                self.rows, self.targets, columns, norms, limits, loss=self.loss, balanced=balanced
            ),
            np.float64,
        )
        found = sums.reshape(self.d, seeds, outputs).transpose(1, 0, 2) / self.n
        if mapped is not None:
            found = np.einsum("sji,sjk->sik", mapped.matrix, found)
        return found.reshape(points.shape)

    @cached_property
    def _lengths(self) -> Any:
        return jnp.linalg.norm(self.rows, axis=1, keepdims=True)

    def noise_of_one(self, clip: Floats | float, share: float) -> Floats:
        """The noise of one gradient that gets a share of mu^2, one a seed."""
        scale = self.instance.public.relation.factor / (self.n * self.mu * math.sqrt(share))
        return np.broadcast_to(np.asarray(clip, float) * scale, (self.seeds,))

    def ridge_gradient(self, mapped: Mapped, points: Floats) -> Floats:
        """Of the ridge, in v."""
        outward = np.einsum("sij,sj...->si...", mapped.matrix, points)
        weighted = outward * (self.ridge[:, None] if points.ndim == 3 else self.ridge)
        return np.einsum("sji,sj...->si...", mapped.matrix, weighted)

    # How good a result is ---------------------------------------------------------------------------------------------
    def start(self) -> Floats:
        """Zeros, (seeds, d) or (seeds, d, K)."""
        return np.zeros((self.seeds, self.d, self.outputs) if self.outputs > 1 else (self.seeds, self.d))

    def losses(self, params: Floats) -> Floats:
        """Mean loss on the training rows, without the penalty, (seeds,)."""
        columns = params.reshape(len(params), self.d, -1).transpose(1, 0, 2).reshape(self.d, -1)
        predictions = np.asarray(self.rows @ jnp.asarray(columns, jnp.float32), np.float64)
        return self.mean_losses(predictions.reshape(self.n, len(params), -1))

    def mean_losses(self, predictions: Floats) -> Floats:
        """Mean loss of predictions (n, runs, K), (runs,)."""
        with double_precision():
            targets = jnp.asarray(self.units.private_targets)
            found = []
            for k in range(predictions.shape[1]):
                at = predictions[:, k] if self.outputs > 1 else predictions[:, k, 0]
                values = np.asarray(self.loss.value(jnp.asarray(at), targets))
                found.append(float(np.mean(np.where(np.isfinite(values), values, 1e3))))
        return np.asarray(found)

    @cached_property
    def best(self) -> float:
        """The least mean loss on the training rows, found without privacy; kept on disk."""
        words = repr((self.problem, self.model, self.options))
        path = SCRATCH / f"panel-best-{hashlib.sha256(words.encode()).hexdigest()[:16]}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"words": words, "best": self._least()}), encoding="utf-8")
        return float(json.loads(path.read_text(encoding="utf-8"))["best"])

    def _least(self) -> float:
        with double_precision():
            rows, targets = jnp.asarray(self.rows, jnp.float64), jnp.asarray(self.units.private_targets)
            loss, width, outputs = self.loss, self.d, self.outputs
            if outputs == 1:
                return _newton(rows, targets, loss)

            @jax.jit
            def objective(flat: Any) -> Any:
                predictions = rows @ flat.reshape(width, outputs)
                return jnp.mean(loss.value(predictions, targets)) + 0.5 * TINY_PENALTY * jnp.sum(flat * flat)

            both = jax.jit(jax.value_and_grad(objective))

            def at(flat: Floats) -> tuple[float, Floats]:
                value, slope = both(jnp.asarray(flat))
                return float(value), np.asarray(slope)

            options = {"maxiter": 600, "maxcor": 40, "ftol": 1e-12, "gtol": 1e-8}
            solved = minimize(at, np.zeros(width * outputs), jac=True, method="L-BFGS-B", options=options)
            return float(solved.fun - 0.5 * TINY_PENALTY * np.sum(solved.x**2))

    def excess(self, params: Floats) -> Floats:
        """Of the mean training loss over the least one, (seeds,)."""
        return self.losses(params) - self.best

    @cached_property
    def constant_excess(self) -> Floats:
        """Of the model that predicts one number and knows the released shares of the targets alone.

        Numbers are counted in 101 bins; the prediction is the best one for the released shares. Squared loss and
        counts need only the released mean.
        """
        generator, targets = self.generator("constant"), self.arrays.targets
        unit = math.sqrt(2.0) / (self.n * self.mu)
        noise = generator.standard_normal((self.seeds, max(self.outputs, 1))) * unit
        if self.outputs > 1:
            shares = np.bincount(targets.astype(int), minlength=self.outputs) / self.n
            at = np.log(np.maximum(shares + noise, 0.5 / self.n))
        elif self.problem.kind == "two classes":
            share = np.clip(np.mean(targets == 1) + noise, 0.5 / self.n, 1.0 - 0.5 / self.n)
            at = np.log(share / (1.0 - share))
            if not isinstance(self.loss, Logistic):
                at = self._best_constants(
                    np.asarray([-1.0, 1.0]), np.concatenate([1.0 - share, share], axis=1)
                )
        elif self.problem.kind == "counts":
            at = np.log(np.maximum(np.mean(targets) + noise * self.arrays.most, 1e-3))
        elif isinstance(self.loss, Squared):
            at = np.mean(targets) + 2.0 * noise
        else:
            counts, edges = np.histogram(targets, bins=101, range=(-1.0, 1.0))
            shares = counts / self.n + generator.standard_normal((self.seeds, len(counts))) * unit
            at = self._best_constants(0.5 * (edges[1:] + edges[:-1]), shares)
        predictions = np.broadcast_to(at, (self.n, *at.shape))
        return self.mean_losses(predictions) - self.best

    def _best_constants(self, targets: Floats, shares: Floats) -> Floats:
        """Of 401 predictions the best for targets (k,) with shares (seeds, k); (seeds, 1)."""
        candidates = np.linspace(-2.0, 2.0, 401)
        values = np.asarray(self.loss.value(jnp.asarray(candidates[:, None]), jnp.asarray(targets[None, :])))
        return candidates[np.argmin(shares @ values.T, axis=1)][:, None]


@jax.jit
def _norms(rows: Any, matrix: Any) -> Any:
    mapped = rows @ matrix
    return jnp.sqrt(jnp.sum(mapped * mapped, axis=1))


@partial(jax.jit, static_argnames=("loss", "balanced"))
def _gradient_sums(
    rows: Any, targets: Any, columns: Any, norms: Any, clips: Any, *, loss: GLMLoss, balanced: bool
) -> Any:
    """Sums of clipped gradients (d, seeds * K), of points side by side (d, seeds * K)."""
    n, seeds, outputs = rows.shape[0], clips.shape[0], loss.outputs
    predictions = (rows @ columns).reshape(n, seeds, outputs)
    wide = jnp.broadcast_to(targets[:, None], (n, seeds)).reshape(-1)
    lengths = jnp.broadcast_to(norms, (n, seeds)).reshape(-1)
    limits = jnp.broadcast_to(clips[None, :], (n, seeds)).reshape(-1)
    flat = predictions.reshape(-1, outputs)
    slopes = glm_slopes(loss, flat, wide)
    if balanced:
        steepest = loss.steepest_slope(flat[:, 0] if outputs == 1 else flat) * lengths
        slopes = slopes * jnp.minimum(1.0, limits / jnp.where(steepest > 0, steepest, 1.0))[:, None]
    long = jnp.sqrt(jnp.sum(slopes * slopes, axis=1)) * lengths
    slopes = slopes * jnp.where(long > limits, limits / jnp.where(long > 0, long, 1.0), 1.0)[:, None]
    return rows.T @ slopes.reshape(n, seeds * outputs)


@partial(jax.jit, static_argnames="loss")
def _penalised(weights: Any, rows: Any, targets: Any, *, loss: GLMLoss) -> Any:
    return jnp.mean(loss.value(rows @ weights, targets)) + 0.5 * TINY_PENALTY * jnp.sum(weights * weights)


@partial(jax.jit, static_argnames="loss")
def _newton_step(weights: Any, rows: Any, targets: Any, damping: Any, *, loss: GLMLoss) -> tuple[Any, Any]:
    """The step of curvatures that are at least `damping`, and how fast the objective falls along it."""
    n, width = rows.shape
    predictions = rows @ weights
    slope = rows.T @ loss.slope(predictions, targets) / n + TINY_PENALTY * weights
    bend = jnp.maximum(loss.second_derivative(predictions, targets), damping)
    matrix = (rows * bend[:, None]).T @ rows / n + TINY_PENALTY * jnp.eye(width)
    move = jnp.linalg.solve(matrix, slope)
    return move, slope @ move


def _newton(rows: Any, targets: Any, loss: GLMLoss) -> float:
    """The least mean loss of one output with a tiny ridge, by Newton steps.

    A loss may be straight over most of the rows, so curvatures have a floor: the full one's step always descends where
    curvature is bounded; the floor falls with steps that succeed and rises with those that do not.
    """
    full = min(loss.curvature, 10.0)
    weights, damping = jnp.zeros(rows.shape[1]), 1e-3 * full
    value = float(_penalised(weights, rows, targets, loss=loss))
    for _ in range(400):
        move, decrement = _newton_step(weights, rows, targets, damping, loss=loss)
        reached = math.inf
        for size in (1.0, 0.5, 0.25):
            candidate = weights - size * move
            reached = float(_penalised(candidate, rows, targets, loss=loss))
            if math.isfinite(reached) and reached <= value - 1e-4 * size * float(decrement):
                break
        else:
            if damping > 1e3 * full or float(decrement) < 1e-12:
                break
            damping *= 10.0
            continue
        gained, weights, value = value - reached, candidate, reached
        if gained < 1e-11 and float(decrement) < 1e-9:
            break
        damping = max(0.3 * damping, 1e-9)
    return float(value - 0.5 * TINY_PENALTY * float(jnp.sum(weights * weights)))
