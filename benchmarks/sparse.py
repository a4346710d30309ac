"""Sparse models beside dense ones: test losses, features used, seconds and memory.

    python -m benchmarks sparse

Every model has the same epsilon and delta = 1e-6, replace-one, five seeds of the noise. Classifiers: the problems of
`sparse_data` (features are signs), and clickbait, 65 536 words as a sparse matrix, each in a process of its own whose
memory is measured; reported is the mean logistic loss of the test rows. Regressors: california and randhie; reported is
the share of the variance of the test targets that is explained.
"""

import json
import math
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import Lasso
from sklearn.linear_model import LogisticRegression as PlainLogisticRegression
from sklearn.metrics import log_loss, r2_score

from benchmarks.datasets import SHARED_DATA, load
from benchmarks.lasso import optimum_on_ball
from benchmarks.processes import lines_of
from benchmarks.results import Record, select
from benchmarks.sparse_data import generated, parities
from privopt import LassoClassifier, LassoRegressor, LogisticRegression, Ridge

HEAD = ("data", "epsilon", "model", "test loss, or R2", "features", "fit s", "peak MB")
DELTA = 1e-6
DATA = ("generated 500", "generated 3000", "parities", "clickbait", "california", "randhie")
EPSILONS = {"generated 500": (0.5, 1.0, 3.0), "generated 3000": (1.0,), "parities": (0.25, 1.0, 3.0)}
USUAL_EPSILONS = (0.3, 1.0, 3.0)
RADII = {"clickbait": 30.0, "california": 2.0, "randhie": 1.0}
PLAIN = "no privacy"
Rows = Any


class Problem:
    """Training and test rows with their targets, public bounds, and the radius of the ball."""

    def __init__(self, name: str, *, quick: bool) -> None:
        self.name, self.target_bounds, self.radius = name, None, RADII.get(name, 4.0)
        if name.startswith("generated") or name == "parities":
            width = 100 if quick else int(name.split()[-1]) if name != "parities" else 0
            rows = 2_000 if quick else 20_000 if width == 500 else 15_000
            data = parities() if name == "parities" else generated(rows, width)
            self.rows, self.test_rows = data.rows.astype(np.float32), data.test_rows.astype(np.float32)
            self.targets, self.test_targets = data.labels, data.test_labels
            self.radius, self.classes = data.radius, (-1, 1)
        else:
            train = 2_000 if quick else None
            self.rows, self.targets, self.test_rows, self.test_targets, info = load(
                name, SHARED_DATA, train=train
            )
            self.classes, self.target_bounds, self.row_bound = info.classes, info.bounds, info.row_norm_bound

    def models(self, epsilon: float, seed: int) -> dict[str, Callable[[], Any]]:
        """The private models by name."""
        given: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "bounds": (-1, 1), "random_state": seed}
        if self.classes is None:
            given["target_bounds"] = self.target_bounds
            return {
                "LassoRegressor": lambda: LassoRegressor(radius=self.radius, **given),
                "LassoRegressor, refit": lambda: LassoRegressor(radius=self.radius, refit=True, **given),
                "LassoRegressor, one pass": lambda: LassoRegressor(
                    radius=self.radius, single_pass=True, **given
                ),
                "Ridge": lambda: Ridge(row_bound=self.row_bound, **given),
            }
        given["classes"] = self.classes
        return {
            "LassoClassifier": lambda: LassoClassifier(radius=self.radius, **given),
            "LassoClassifier, refit": lambda: LassoClassifier(radius=self.radius, refit=True, **given),
            "LassoClassifier, one pass": lambda: LassoClassifier(
                radius=self.radius, single_pass=True, **given
            ),
            "LogisticRegression": lambda: LogisticRegression(row_bound="unit", **given),
        }

    def score(self, model: Any) -> float:
        """The loss of the test rows, or what is explained of their targets."""
        if self.classes is None:
            return float(r2_score(self.test_targets, model.predict(self.test_rows)))
        return float(log_loss(self.test_targets, model.predict_proba(self.test_rows)[:, 1]))

    def plain_score(self) -> float:
        """The same without privacy: on the ball of signs, or scikit-learn's models with an l1 penalty."""
        if self.classes is None:
            return self.score(Lasso(alpha=1e-3).fit(self.rows, self.targets))
        if sparse.issparse(self.rows):
            model = PlainLogisticRegression(C=1.0, l1_ratio=1.0, solver="liblinear")
            return self.score(model.fit(self.rows, self.targets))
        weights: NDArray[np.float64] = optimum_on_ball(self.rows, self.targets, self.radius)
        return float(np.mean(np.logaddexp(0.0, -self.test_targets * (self.test_rows @ weights))))


def measure(*, seeds: int, quick: bool, data: Sequence[str] | None = None) -> Iterator[Record]:
    """One record a data set, epsilon and model; every model in a process of its own."""
    for name in data or (DATA[:1] if quick else DATA):
        models = (
            PLAIN,
            *(Problem(name, quick=True).models(1.0, 0) if name in RADII else _classifiers()),
        )
        for model in models:
            if model == "LogisticRegression" and name == "generated 3000":
                continue  # its whitening is for 2000 features
            asked = {"data": name, "model": model, "seeds": seeds, "quick": quick}
            yield from lines_of(["-m", "benchmarks.sparse", json.dumps(asked)])


def _classifiers() -> tuple[str, ...]:
    return (
        "LassoClassifier",
        "LassoClassifier, refit",
        "LassoClassifier, one pass",
        "LogisticRegression",
    )


def compare(name: str, model: str, seeds: int, *, quick: bool) -> Iterator[Record]:
    """The records of one model on one data set."""
    problem = Problem(name, quick=quick)
    base: Record = {
        "benchmark": "sparse",
        "data": name,
        "method": model,
        "relation": "replace-one",
        "delta": DELTA,
        "n": int(problem.rows.shape[0]),
        "d": int(problem.rows.shape[1]),
        "radius": problem.radius,
    }
    if model == PLAIN:
        yield base | {"score": problem.plain_score(), "seeds": 1}
        return
    for epsilon in EPSILONS.get(name, USUAL_EPSILONS):
        scores, used, seconds = [], [], []
        for seed in range(seeds):
            made = problem.models(epsilon, seed)[model]()
            begun = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made.fit(problem.rows, problem.targets)
            seconds.append(time.perf_counter() - begun)
            scores.append(problem.score(made))
            used.append(int(np.count_nonzero(np.any(np.atleast_2d(made.coef_) != 0, axis=0))))
        yield base | {
            "epsilon": epsilon,
            "seeds": seeds,
            "score": float(np.mean(scores)),
            "score_error": float(np.std(scores, ddof=1) / math.sqrt(seeds)) if seeds > 1 else math.nan,
            "features": float(np.mean(used)),
            "solver": made.plan_.solver,
            "passes": made.plan_.passes,
            "fit_s": float(np.median(seconds)),
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def table_rows(records: Sequence[Record]) -> list[list[str]]:
    """One row a data set, epsilon and model."""
    order = {name: place for place, name in enumerate(DATA)}
    found = select(records, benchmark="sparse")
    return [
        [
            one["data"],
            f"{one['epsilon']:g}" if "epsilon" in one else "",
            one["method"],
            f"{one['score']:.4f}" + (f" +- {one['score_error']:.1g}" if "score_error" in one else ""),
            f"{one['features']:.0f}" if "features" in one else "",
            f"{one['fit_s']:.1f}" if "fit_s" in one else "",
            f"{one['memory_mb']:.0f}" if "memory_mb" in one else "",
        ]
        for one in sorted(found, key=lambda one: (order[one["data"]], one.get("epsilon", math.inf)))
    ]


def main(arguments: Sequence[str]) -> None:
    """Measure what a JSON object asks for, a line a record."""
    asked = json.loads(arguments[0])
    for record in compare(asked["data"], asked["model"], asked["seeds"], quick=asked["quick"]):
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
