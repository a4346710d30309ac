"""The worst of several groups: FairClassifier beside LogisticRegression, with and without privacy.

    python -m benchmarks groups

    generated, d = 50 and 600   n = 20000 records of random signs, shares .5, .3, .15, .05: the weights of a group are
                                0.6 R / 6 on a common support of 6 (random signs) plus 0.8 R / 6 on 6 coordinates of its
                                own, R = 4; labels logistic; 20000 more records for the test; on the l1 ball of radius
                                R, delta = 1e-6
    covertype by wilderness     200 000 training rows, and 16 000 of them
    adult by sex x race, compas by race x sex

Shares are those of the training rows, taken as public (a census would know them). Reported are the largest mean
logistic loss of a group of the test records among groups with at least 50 of them, the mean loss over all, the largest
error rate of these groups, and the group that is worst, at delta = 1 / n^1.5 but where said otherwise, replace-one.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.bars import Verdict
from benchmarks.datasets import load
from benchmarks.results import Record, select
from privopt import FairClassifier, LogisticRegression

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks-groups.md"
HEAD = ("data", "epsilon", "method", "worst loss", "mean loss", "worst error", "worst group")
SHARES, RADIUS, SUPPORT = (0.5, 0.3, 0.15, 0.05), 4.0, 6
LEAST_TESTED = 50
EPSILONS = (0.3, 1.0, 3.0)
PLAIN, FAIR = "LogisticRegression", "FairClassifier"
TABLES: dict[str, tuple[str, tuple[str, ...], int | None]] = {
    "covertype": ("covertype", ("wilderness",), None),
    "covertype, 16 000 rows": ("covertype", ("wilderness",), 16_000),
    "adult": ("adult", ("sex", "race"), None),
    "compas": ("compas", ("race", "sex"), None),
}
GENERATED = {"generated, d = 50": 50, "generated, d = 600": 600}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Grouped:
    """A data set whose records are in groups.

    Attributes:
        name: the data set's name.
        train, test: features, labels -1 and +1, and group numbers.
        names: of the groups.
        shares: of the training records, by group.
        delta: of the guarantee.
        options: of both estimators.
    """

    name: str
    train: tuple[Any, NDArray[np.float64], NDArray[np.int64]]
    test: tuple[Any, NDArray[np.float64], NDArray[np.int64]]
    names: tuple[str, ...]
    shares: NDArray[np.float64]
    delta: float
    options: dict[str, Any]


def generated(name: str, seed: int, rows: int = 20_000) -> Grouped:
    """Records whose labels follow partly common, partly own weights in each group."""
    width = GENERATED[name]
    rng = np.random.default_rng(seed)
    weights = np.zeros((len(SHARES), width))
    common = rng.choice(width, SUPPORT, replace=False)
    weights[:, common] = 0.6 * RADIUS / SUPPORT * rng.choice([-1, 1], SUPPORT)
    for own in weights:
        own[rng.choice(width, SUPPORT, replace=False)] += (
            0.8 * RADIUS / SUPPORT * rng.choice([-1, 1], SUPPORT)
        )

    def draw(count: int) -> tuple[Any, NDArray[np.float64], NDArray[np.int64]]:
        groups = rng.choice(len(SHARES), count, p=SHARES)
        features = rng.choice([-1.0, 1.0], (count, width)).astype(np.float32)
        scores = np.sum(features * weights[groups], axis=1)
        return features, np.where(rng.random(count) < expit(scores), 1.0, -1.0), groups

    return Grouped(
        name=name,
        train=draw(rows),
        test=draw(rows),
        names=("1st", "2nd", "3rd", "4th"),
        shares=np.asarray(SHARES),
        delta=1e-6,
        options={
            "l1_radius": RADIUS,
            "penalty": None,
            "fit_intercept": False,
            "row_bound": math.sqrt(width) * (1.0 + 1e-6),
        },
    )


def tabular(name: str, shared: Path, rows: int | None = None) -> Grouped:
    """A shared table, by the levels of its sensitive columns."""
    table, columns, most = TABLES[name]
    X, y, X_test, y_test, info = load(table, shared, train=rows or most)
    groups, names = groups_of(X, info.feature_names, columns)
    tested, _ = groups_of(X_test, info.feature_names, columns)
    counts = np.maximum(np.bincount(groups, minlength=len(names)), 1.0)
    return Grouped(
        name=name,
        train=(X, 2.0 * y - 1.0, groups),
        test=(X_test, 2.0 * y_test - 1.0, tested),
        names=names,
        shares=counts / np.sum(counts),
        delta=len(y) ** -1.5,
        options={},
    )


def groups_of(
    X: Any, features: Sequence[str], columns: Sequence[str]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The group of each record, from the one-hot columns of the encoder, and the groups' names."""
    codes, names = np.zeros(X.shape[0], np.int64), ("",)
    for column in columns:
        places = [at for at, name in enumerate(features) if name.startswith(f"{column}=")]
        levels = [features[at].partition("=")[2] for at in places]
        block = X[:, places]
        dense = np.asarray(block.todense() if hasattr(block, "todense") else block)
        codes = codes * len(levels) + np.argmax(dense, axis=1)
        names = tuple(f"{before} {level}".strip() for before in names for level in levels)
    return codes, names


def fitted(data: Grouped, method: str, epsilon: float, seed: int) -> Any:
    """One fit."""
    X, y, groups = data.train
    options = {
        "epsilon": epsilon,
        "delta": data.delta,
        "bounds": (-1.0, 1.0),
        "classes": [-1, 1],
        "random_state": seed,
        "row_bound": "unit",
        **data.options,
    }
    if method == PLAIN:
        return LogisticRegression(**options).fit(X, y)
    values = list(range(len(data.names)))
    model = FairClassifier(sensitive_values=values, shares=data.shares, **options)
    return model.fit(X, y, sensitive_features=groups)


def quality(model: Any, data: Grouped) -> dict[str, Any]:
    """The losses of the groups on the test records."""
    X, y, groups = data.test
    yes = model.predict_proba(X)[:, 1]
    each = -np.log(np.clip(np.where(y > 0, yes, 1.0 - yes), 1e-12, None))
    wrong = (yes > 0.5) != (y > 0)
    known = [at for at in range(len(data.names)) if np.sum(groups == at) >= LEAST_TESTED]
    losses = [float(np.mean(each[groups == at])) for at in known]
    return {
        "worst_loss": max(losses),
        "mean_loss": float(np.mean(each)),
        "worst_error": max(float(np.mean(wrong[groups == at])) for at in known),
        "worst_group": data.names[known[int(np.argmax(losses))]],
    }


def measure(shared: Path, *, seeds: int, quick: bool) -> Iterator[Record]:
    """One record a data set, epsilon and method."""
    for name in (*GENERATED, *TABLES):
        rows = 2_000 if quick else None
        sets = (
            [generated(name, seed, rows or 20_000) for seed in range(seeds)]
            if name in GENERATED
            else [tabular(name, shared, rows)] * seeds
        )
        for method in (PLAIN, FAIR):
            for epsilon in (math.inf, *((1.0,) if quick else EPSILONS)):
                yield measured(sets, method, epsilon)


def measured(sets: Sequence[Grouped], method: str, epsilon: float) -> Record:
    """One cell; without privacy every fit of the same data is the same."""
    kept = sets if math.isfinite(epsilon) or sets[0].name in GENERATED else sets[:1]
    begun = time.perf_counter()
    found = [
        quality(fitted(data, method, epsilon, seed), data) | {"n": len(data.train[1])}
        for seed, data in enumerate(kept)
    ]
    seconds = (time.perf_counter() - begun) / len(kept)
    worst = [one["worst_loss"] for one in found]
    groups = [one["worst_group"] for one in found]
    return {
        "benchmark": "groups",
        "data": sets[0].name,
        "method": method,
        "relation": "replace-one",
        "epsilon": epsilon if math.isfinite(epsilon) else "none",
        "delta": sets[0].delta,
        "n": found[0]["n"],
        "seeds": len(kept),
        "worst_loss": float(np.mean(worst)),
        "worst_loss_error": float(np.std(worst, ddof=1) / math.sqrt(len(worst))) if len(worst) > 1 else 0.0,
        "mean_loss": float(np.mean([one["mean_loss"] for one in found])),
        "worst_error": float(np.mean([one["worst_error"] for one in found])),
        "worst_group": max(set(groups), key=groups.count),
        "fit_s": seconds,
    }


def table_rows(records: Sequence[Record]) -> list[list[str]]:
    """One row a data set, epsilon and method."""
    order = [*GENERATED, *TABLES]
    kept = sorted(
        select(records, benchmark="groups"),
        key=lambda one: (order.index(one["data"]), str(one["epsilon"]), one["method"]),
    )
    return [
        [
            one["data"],
            "no privacy" if one["epsilon"] == "none" else f"{one['epsilon']:g}",
            one["method"],
            f"{one['worst_loss']:.4f} +- {one['worst_loss_error']:.4f}",
            f"{one['mean_loss']:.4f}",
            f"{one['worst_error']:.4f}",
            one["worst_group"],
        ]
        for one in kept
    ]


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """What was asked for and what was reached."""
    worst = {
        (one["data"], one["method"], one["epsilon"]): one["worst_loss"]
        for one in select(records, benchmark="groups")
    }
    found: list[Verdict] = []

    def add(what: str, value: float | None, most: float | None) -> None:
        if value is not None and most is not None:
            found.append(Verdict(what, value, f"at most {most:.4g}", value <= most))

    for name, most in (("generated, d = 50", 0.632), ("generated, d = 600", 0.650)):
        add(f"worst loss, {name}, epsilon 1", worst.get((name, FAIR, 1.0)), most)
    ends = [worst.get(("covertype", method, "none")) for method in (PLAIN, FAIR)]
    if None not in ends:
        half = 0.5 * math.fsum(end for end in ends if end is not None)
        what = "worst loss, covertype, epsilon 1 (half of the gain without privacy)"
        add(what, worst.get(("covertype", FAIR, 1.0)), half)
    for name in ("adult", "compas"):
        plain = worst.get((name, PLAIN, 1.0))
        if plain is not None:
            what = f"worst loss, {name}, epsilon 1 (private LogisticRegression's + 0.01)"
            add(what, worst.get((name, FAIR, 1.0)), plain + 0.01)
    return found
