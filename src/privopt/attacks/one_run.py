"""Attacks on the coefficients of fitted models, from a single fit: planted canaries, and membership by loss.

Fair coins decide which of two records goes into the data, for many pairs at once. Somebody who sees the model and knows
the pairs guesses, for those that he is surest of, which one it was: the one of smaller loss. A run that is
(epsilon, delta)-private under replace-one keeps the number of right guesses down. Canaries are pairs made to be told
apart: the same features, and targets at opposite ends of their range. Membership takes pairs of ordinary records.

Source:
    Steinke, Nasr, Jagielski 2023 (many coins in one run); Yeom et al. 2018 (the loss as evidence).
"""

import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privopt.attacks.confidence import CONFIDENCE, one_run_epsilon
from privopt.attacks.optimal import Attack
from privopt.errors import ArgumentError
from privopt.ledger.default_account import nothing_private

Kind = Literal["canaries", "membership"]
Values = NDArray[np.float64]
FEWEST_PAIRS = 16  # 1 / 16 of them is one guess
_SHARES = (1 / 16, 1 / 4, 1.0)  # of the pairs that are guessed: the surest ones


def one_run_attack(
    make: Callable[..., Any],
    kind: Kind,
    *,
    name: str,
    epsilon: float,
    delta: float,
    of_classes: bool,
    pairs: int = 200,
    others: int = 200,
    width: int = 400,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Attack:
    """Fit a model once and guess which records it has seen.

    Args:
        make: an estimator with its defaults, called with epsilon, delta, bounds and classes or target bounds.
        kind: what the pairs are made of.
        name: what the attack calls it.
        epsilon: the claim.
        delta: the claim.
        of_classes: whether it predicts classes 0 and 1; else numbers in [0, 1].
        pairs: how many coins.
        others: records that are the same whatever the coins say.
        width: features, each in [-1, 1].
        confidence: the probability with which the bound holds.
        seed: of the made-up records and the coins; the noise is the operating system's.

    Raises:
        ArgumentError: there are too few pairs to tell anything.
    """
    if pairs < FEWEST_PAIRS or others < 0 or width < 1:
        raise ArgumentError(
            f"one run needs at least {FEWEST_PAIRS} pairs and a feature, got {pairs} and {width}."
        )
    began = time.perf_counter()
    generator = np.random.default_rng(seed)
    first, second = _pairs(generator, kind, pairs, width, of_classes)
    coins = generator.random(pairs) < 0.5
    rest = _ordinary(generator, others, width, of_classes)
    chosen = [
        np.where(coins[:, None] if a.ndim == 2 else coins, a, b) for a, b in zip(first, second, strict=True)
    ]
    rows, targets = (np.concatenate([part, more]) for part, more in zip(chosen, rest, strict=True))
    range_ = {"classes": [0, 1]} if of_classes else {"target_bounds": (0.0, 1.0)}
    model = make(epsilon=epsilon, delta=delta, bounds=(-1.0, 1.0), **range_)
    with nothing_private():  # the records are made up: no account pays for them
        model.fit(rows, targets.astype(np.int64) if of_classes else targets)
    evidence = _loss(model, *second, of_classes) - _loss(model, *first, of_classes)
    surest = np.argsort(-np.abs(evidence), kind="stable")
    guessed = [int(share * pairs) for share in _SHARES]
    right = [int(np.sum((evidence[surest[:count]] > 0) == coins[surest[:count]])) for count in guessed]
    each = 1 - (1 - confidence) / len(_SHARES)
    bounds = [
        one_run_epsilon(pairs, count, good, delta, each) for count, good in zip(guessed, right, strict=True)
    ]
    best = int(np.argmax(bounds))
    return Attack(
        name=f"{kind}, {name}",
        claim=epsilon,
        lower_bound=bounds[best],
        faults=(),
        detail=f"one fit, {right[best]} of {guessed[best]} guesses right, {pairs} coins",
        seconds=time.perf_counter() - began,
    )


def _pairs(
    generator: np.random.Generator, kind: Kind, count: int, width: int, of_classes: bool
) -> tuple[tuple[Values, Values], tuple[Values, Values]]:
    if kind == "membership":
        return _ordinary(generator, count, width, of_classes), _ordinary(generator, count, width, of_classes)
    rows = generator.choice([-1.0, 1.0], (count, width))
    return (rows, np.ones(count)), (rows, np.zeros(count))


def _ordinary(
    generator: np.random.Generator, count: int, width: int, of_classes: bool
) -> tuple[Values, Values]:
    rows = generator.uniform(-1, 1, (count, width))
    targets = 1 / (1 + np.exp(-2 * rows[:, 0]))
    return rows, (generator.random(count) < targets).astype(np.float64) if of_classes else targets


def _loss(model: Any, rows: Values, targets: Values, of_classes: bool) -> Values:
    """The logistic loss of a class, or the absolute error of a number."""
    if of_classes:
        return np.logaddexp(0.0, -(2 * targets - 1) * np.asarray(model.decision_function(rows), np.float64))
    return np.abs(np.asarray(model.predict(rows), np.float64) - targets)
