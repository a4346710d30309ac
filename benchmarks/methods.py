"""What is compared: the library's default, its baselines under the same accounting, scikit-learn without privacy."""

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression as PlainLogisticRegression
from threadpoolctl import threadpool_limits

from benchmarks.encoded import Encoded
from privopt.estimators.linear import LogisticRegression
from privopt.solvers.base import Solver
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent

DEFAULT = "default"
SAMPLED = "dp-sgd"
TUNED = "dp-gd, oracle-tuned"
DESCENT = "gradient-descent"
PLAIN = "scikit-learn"
PRIVATE = (DEFAULT, SAMPLED, TUNED)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One private setting: everything about a fit but the data and the seed.

    Attributes:
        relation: the neighbouring relation.
        epsilon: privacy budget.
        delta: privacy budget.
    """

    relation: str
    epsilon: float
    delta: float

    def model(self, data: Encoded, solver: Solver | str, seed: int) -> LogisticRegression:
        """The estimator with its default settings but for the solver.

        Scores are divided by the lengths of rows, as the fit divides rows: the excess is that of what was minimised.
        """
        return LogisticRegression(
            row_bound="unit",
            epsilon=self.epsilon,
            delta=self.delta,
            bounds=(-1.0, 1.0),
            classes=list(data.classes),
            relation=self.relation,
            n=data.rows,
            solver=solver,
            random_state=seed,
        )


def solvers(method: str, data: Encoded, *, quick: bool) -> list[tuple[dict[str, float], Solver | str]]:
    """The candidates of a method, with what distinguishes them; more than one means that an oracle chooses."""
    if method == DEFAULT:
        return [({}, "auto")]
    if method == DESCENT:
        return [({}, GradientDescent())]
    if method == SAMPLED:
        return [({}, StochasticGradientDescent())]
    return list(_plain_descents(data, quick=quick))


def _plain_descents(data: Encoded, *, quick: bool) -> Iterator[tuple[dict[str, float], Solver]]:
    """Gradient descent as it is usually written: constant noise and step size, no momentum, the last iterate."""
    smoothness = 0.25 if len(data.classes) == 2 else 0.5  # of rows of length 1
    large = data.train.shape[0] * data.train.shape[1] > 2**24
    steps = (30, 100) if large or quick else (30, 100, 300)
    clips = (0.3, 1.0) if large else (0.1, 0.3, 1.0)
    for count, clip, factor in itertools.product(steps, clips, (4.0, 16.0)):
        solver = GradientDescent(
            steps=count, clip=clip, step_size=factor / smoothness, momentum=0.0, returns="last"
        )
        yield {"steps": count, "clip": clip, "step_size": factor / smoothness}, solver


def plain(data: Encoded, threads: int | None = 1) -> Any:
    """scikit-learn's model with its default settings, fitted; it may stop at its default limit of iterations.

    Args:
        data: the data set.
        threads: of its matrix products; None leaves the default. One is faster wherever other processes run, because
            several wait for one another.
    """
    with warnings.catch_warnings(), threadpool_limits(threads):
        warnings.simplefilter("ignore", ConvergenceWarning)
        return PlainLogisticRegression().fit(data.train, data.train_targets)
