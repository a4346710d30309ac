"""Wrong records: robust models against the usual ones where a tenth of the training targets is wrong.

    python -m benchmarks robust

Classification (adult, covertype; epsilon = 1, delta = 1 / n^1.5, replace-one): scikit-learn's logistic regression is
fitted to the clean training rows, and labels are flipped where its margin y s is largest: of the surest tenth of the
records all of them ("surest tenth"), or every second one, at random, of the surest fifth ("half of the surest fifth").
Reported is the accuracy on test rows with right labels.

Regression (california, randhie; the same budget): a tenth of the training targets, at random, is moved to the upper
bound. Reported is the median absolute error on test rows with right targets.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression as PlainLogisticRegression

from benchmarks.bars import Verdict
from benchmarks.datasets import load
from benchmarks.results import Record, select
from privopt.estimators.linear import HuberRegressor, LogisticRegression, RobustClassifier, RobustRegressor

CLASSIFIED, PREDICTED = ("adult", "covertype"), ("california", "randhie")
CLEAN, SUREST, HALF, MOVED = "clean", "surest tenth", "half of the surest fifth", "a tenth moved up"
LABELS = {"adult": "Adult", "covertype": "Covertype", "california": "California", "randhie": "randhie"}
PAGE = Path(__file__).resolve().parent.parent / "docs" / "robust-models.md"
WRONG, EPSILON = 0.1, 1.0
HEAD = ("data", "wrong targets", "model", "measure", "epsilon 1", "standard error")
Model = type[Any]


def flipped(features: Any, codes: NDArray[np.int64], kind: str, seed: int) -> NDArray[np.int64]:
    """Labels of which a tenth is wrong."""
    if kind == CLEAN:
        return codes
    plain = PlainLogisticRegression(max_iter=1000).fit(features, codes)
    margins = np.where(codes == 1, 1.0, -1.0) * plain.decision_function(features)
    count = round(WRONG * len(codes))
    order = np.argsort(-margins, kind="stable")
    rng = np.random.default_rng(seed)
    chosen = order[:count] if kind == SUREST else rng.choice(order[: 2 * count], count, replace=False)
    wrong = codes.copy()
    wrong[chosen] = 1 - wrong[chosen]
    return wrong


def moved(targets: NDArray[np.float64], kind: str, top: float, seed: int) -> NDArray[np.float64]:
    """Targets of which a tenth is at the upper bound."""
    wrong = targets.copy()
    if kind == MOVED:
        rng = np.random.default_rng(seed)
        wrong[rng.choice(len(targets), round(WRONG * len(targets)), replace=False)] = top
    return wrong


def measure(shared: Path, *, seeds: int, quick: bool = False) -> Iterator[Record]:
    """Every cell."""
    rows = 5_000 if quick else None
    for name in CLASSIFIED:
        common: dict[str, Any] = {"bounds": (-1, 1), "classes": [0, 1]}
        train, codes, test, right, _ = load(name, shared, train=rows, sparse_output=False)
        for kind in (CLEAN, SUREST, HALF):
            wrong = [flipped(train, codes, kind, seed) for seed in range(seeds)]
            for model in (LogisticRegression, RobustClassifier):
                yield _cell(name, kind, model, train, wrong, test, right, common)
    for name in PREDICTED:
        train, targets, test, right, info = load(name, shared, train=rows, sparse_output=False)
        assert info.bounds is not None
        common: dict[str, Any] = {
            "bounds": (-1, 1),
            "target_bounds": info.bounds,
            "row_bound": info.row_norm_bound,
        }
        for kind in (CLEAN, MOVED):
            wrong = [moved(targets, kind, info.bounds[1], seed) for seed in range(seeds)]
            for model in (HuberRegressor, RobustRegressor):
                yield _cell(name, kind, model, train, wrong, test, right, common)


def _cell(
    name: str,
    kind: str,
    model: Model,
    train: Any,
    wrong: Sequence[NDArray[Any]],
    test: Any,
    right: NDArray[Any],
    arguments: dict[str, Any],
) -> Record:
    delta = float(len(wrong[0])) ** -1.5
    begun, found = time.perf_counter(), []
    for seed, targets in enumerate(wrong):
        fitted = model(epsilon=EPSILON, delta=delta, random_state=seed, **arguments).fit(train, targets)
        predicted = fitted.predict(test)
        classes = name in CLASSIFIED
        found.append(float(np.mean(predicted == right) if classes else np.median(np.abs(predicted - right))))
    return {
        "benchmark": "robust",
        "data": name,
        "what": kind,
        "method": model.__name__,
        "relation": "replace-one",
        "epsilon": EPSILON,
        "delta": delta,
        "n": len(wrong[0]),
        "seeds": len(found),
        "quality": float(np.mean(found)),
        "error": float(np.std(found, ddof=1) / np.sqrt(len(found))) if len(found) > 1 else 0.0,
        "fit_s": (time.perf_counter() - begun) / len(found),
    }


def table_rows(records: Sequence[Record]) -> list[list[str]]:
    """One row a data set, kind of wrong targets and model."""
    found = _qualities(records)
    rows: list[list[str]] = []
    for (data, kind, method), one in found.items():
        digits = 4 if data in CLASSIFIED else 0 if data == "california" else 3
        measured = "accuracy" if data in CLASSIFIED else "median absolute error"
        numbers = (f"{one[key]:.{digits}f}" for key in ("quality", "error"))
        rows.append([LABELS[data], kind, method, measured, *numbers])
    return rows


def _qualities(records: Sequence[Record]) -> dict[tuple[Any, ...], Record]:
    return {(one["data"], one["what"], one["method"]): one for one in select(records, benchmark="robust")}


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """What was asked for and what was reached."""
    quality = {key: one["quality"] for key, one in _qualities(records).items()}
    found: list[Verdict] = []

    def at(data: str, kind: str, model: Model) -> float:
        return quality.get((data, kind, model.__name__), float("nan"))

    for data in CLASSIFIED:
        usual, robust = (at(data, CLEAN, model) for model in (LogisticRegression, RobustClassifier))
        if np.isnan(usual) or np.isnan(robust):
            continue
        least = usual - 0.005 if data == "adult" else usual
        found.append(
            Verdict(f"robust, {data}, clean accuracy", robust, f"at least {least:.4f}", robust >= least)
        )
        for kind in (SUREST, HALF):
            dirty = at(data, kind, LogisticRegression)
            closed = (at(data, kind, RobustClassifier) - dirty) / (robust - dirty)
            found.append(
                Verdict(
                    f"robust, {data}, {kind}: share of the gap closed", closed, "at least 0.5", closed >= 0.5
                )
            )
    for data in PREDICTED:
        ratio = at(data, MOVED, RobustRegressor) / at(data, MOVED, HuberRegressor)
        if not np.isnan(ratio):
            found.append(
                Verdict(
                    f"robust, {data}: median absolute error over Huber's", ratio, "at most 0.9", ratio <= 0.9
                )
            )
    return found
