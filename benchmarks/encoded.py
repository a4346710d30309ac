"""Encoded data sets kept on disk, so that a measuring process loads arrays and nothing else."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.datasets import load

PARTS = ("train", "test")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Encoded:
    """A data set as the models see it.

    Attributes:
        name: the data set's name.
        train: float32 features, an array or CSR.
        train_targets: class codes.
        test: features of the test rows.
        test_targets: class codes.
        classes: the labels.
        fingerprint: names this very content.
    """

    name: str
    train: Any
    train_targets: NDArray[np.int64]
    test: Any
    test_targets: NDArray[np.int64]
    classes: tuple[int, ...]
    fingerprint: str

    @property
    def rows(self) -> int:
        """The number of training rows."""
        return self.train.shape[0]


def encode(name: str, shared: Path, folder: Path, rows: int | None = None) -> Path:
    """Encode a data set by its public schema and keep the arrays.

    Args:
        name: one of the benchmark's classification sets.
        shared: the folder of the shared data.
        folder: where to keep the arrays.
        rows: at most this many training rows.
    Returns:
        The folder to give to `open_encoded`.
    """
    train, train_targets, test, test_targets, info = load(name, shared, train=rows)
    digest = hashlib.sha256()
    place = folder / f"encoded-{name}-{rows or 'all'}"
    place.mkdir(parents=True, exist_ok=True)
    for part, features, targets in zip(PARTS, (train, test), (train_targets, test_targets), strict=True):
        arrays = (
            (features.data, features.indices, features.indptr) if sparse.issparse(features) else (features,)
        )
        for array in (*arrays, targets):
            digest.update(np.ascontiguousarray(array).data)
        if sparse.issparse(features):
            sparse.save_npz(place / f"{part}.npz", sparse.csr_matrix(features), compressed=False)
        else:
            np.save(place / f"{part}.npy", features)
        np.save(place / f"{part}_targets.npy", targets)
    facts = {
        "name": name,
        "classes": info.classes,
        "fingerprint": digest.hexdigest()[:16],
        "sparse": bool(sparse.issparse(train)),
    }
    (place / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    return place


def open_encoded(place: Path) -> Encoded:
    """The arrays that `encode` kept."""
    facts = json.loads((place / "facts.json").read_text(encoding="utf-8"))

    def features(part: str) -> Any:
        if facts["sparse"]:
            return sparse.csr_array(sparse.load_npz(place / f"{part}.npz"))
        return np.load(place / f"{part}.npy")

    return Encoded(
        name=facts["name"],
        train=features("train"),
        train_targets=np.load(place / "train_targets.npy"),
        test=features("test"),
        test_targets=np.load(place / "test_targets.npy"),
        classes=tuple(facts["classes"]),
        fingerprint=facts["fingerprint"],
    )
