"""The non-private optimum that excess losses are measured from, found once to high accuracy and kept on disk."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import OptimizeResult, minimize
from scipy.special import expit, logsumexp, softmax
from threadpoolctl import threadpool_limits

from benchmarks.encoded import Encoded
from benchmarks.results import Record

BLOCK_ROWS = 8192
TINY_PENALTY = 1e-7  # of all weights, the intercept too, so that an optimum exists


def scores(model: Any, features: Any) -> NDArray[np.float64]:
    """A fitted classifier's scores, (rows, outputs), in blocks that leave the features in float32."""
    blocks = [
        np.asarray(model.decision_function(features[start : start + BLOCK_ROWS]))
        for start in range(0, features.shape[0], BLOCK_ROWS)
    ]
    found = np.concatenate(blocks)
    return found[:, None] if found.ndim == 1 else found


def unit_rows(features: Any) -> Any:
    """Rows with a constant 1 appended, divided by their lengths: what the private classifiers see. Float64."""
    ones = np.ones((features.shape[0], 1))
    if sparse.issparse(features):
        rows = sparse.csr_array(sparse.hstack([features.astype(np.float64), ones]))
        squares = np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
        return sparse.csr_array(sparse.diags_array(1.0 / np.sqrt(squares)) @ rows)
    rows = np.concatenate([features, ones], axis=1)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def mean_loss(predictions: NDArray[np.float64], codes: NDArray[np.int64]) -> float:
    """The mean logistic loss (one output, codes 0 and 1) or cross entropy (an output a class)."""
    if predictions.shape[1] == 1:
        return float(np.mean(np.logaddexp(0.0, -(2.0 * codes - 1.0) * predictions[:, 0])))
    chosen = np.take_along_axis(predictions, codes[:, None], axis=1)[:, 0]
    return float(np.mean(logsumexp(predictions, axis=1) - chosen))


def accuracy(predictions: NDArray[np.float64], codes: NDArray[np.int64]) -> float:
    """The share of rows whose class has the largest score."""
    if predictions.shape[1] == 1:
        return float(np.mean((predictions[:, 0] > 0) == (codes == 1)))
    return float(np.mean(np.argmax(predictions, axis=1) == codes))


def optimum(data: Encoded, alpha: float | None, folder: Path) -> Record:
    """The smallest mean loss on the training rows, seen as the private classifiers see them, computed once.

    Args:
        data: the data set.
        alpha: strength of the penalty `alpha / 2 ||w||^2` with a free intercept, which then belongs to the objective;
            None for `TINY_PENALTY` on everything, which does not.
        folder: where optima are kept.
    Returns:
        `objective` (with its penalty), `loss` (without), `gradient_norm`, `test_accuracy`, `iterations`, `seconds`.
    """
    path = (
        folder
        / f"optimum-{data.name}-{data.fingerprint}-{'tiny' if alpha is None else format(alpha, '.6g')}.json"
    )
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    found = _solve(data, alpha)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found), encoding="utf-8")
    return found


def minimised(
    rows: Any,
    codes: NDArray[np.int64],
    classes: int,
    penalty: float | NDArray[np.float64],
    **options: float,
) -> OptimizeResult:
    """The least of `mean_loss + sum(penalty w^2) / 2` over linear models, by L-BFGS in float64.

    Args:
        rows: features, dense or sparse.
        codes: class codes.
        classes: how many classes there are; two have one output.
        penalty: one number, or one a feature, (features, 1).
        options: of SciPy's L-BFGS-B.
    Returns:
        SciPy's result: `x` of shape (features, outputs), value `fun`, gradient `jac`, iterations `nit`.
    """
    count, width = rows.shape
    outputs = 1 if classes == 2 else classes
    transposed = rows.T.tocsr() if sparse.issparse(rows) else rows.T
    wanted = np.zeros((count, outputs))
    if outputs == 1:
        wanted[:, 0] = codes
    else:
        wanted[np.arange(count), codes] = 1.0

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = flat.reshape(width, outputs)
        predictions = np.asarray(rows @ weights)
        means = expit(predictions) if outputs == 1 else softmax(predictions, axis=1)
        gradient = np.asarray(transposed @ (means - wanted)) / count + penalty * weights
        return mean_loss(predictions, codes) + 0.5 * float(np.sum(penalty * weights**2)), gradient.ravel()

    with threadpool_limits(1):  # threads that wait for one another cost more than they save on a busy machine
        solved = minimize(objective, np.zeros(width * outputs), jac=True, method="L-BFGS-B", options=options)
    solved.x = solved.x.reshape(width, outputs)
    return solved


def _solve(data: Encoded, alpha: float | None) -> Record:
    features, codes = unit_rows(data.train), data.train_targets
    penalty = np.full((features.shape[1], 1), TINY_PENALTY if alpha is None else alpha)
    if alpha is not None:
        penalty[-1] = 0.0
    begun = time.perf_counter()
    solved = minimised(
        features,
        codes,
        len(data.classes),
        penalty,
        maxcor=60,
        maxiter=3000,
        maxfun=4000,
        gtol=1e-9,
        ftol=1e-12,
    )
    weights = solved.x
    return {
        "objective": float(solved.fun),
        "loss": mean_loss(np.asarray(features @ weights), codes),
        "gradient_norm": float(np.linalg.norm(solved.jac)),
        "weights_norm": float(np.linalg.norm(weights)),
        "test_accuracy": accuracy(np.asarray(unit_rows(data.test) @ weights), data.test_targets),
        "iterations": int(solved.nit),
        "seconds": time.perf_counter() - begun,
    }
