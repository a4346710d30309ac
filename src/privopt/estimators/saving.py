"""A fitted model with its encoder and its report as a folder, and back. Public and released values only."""

# pyright: reportPrivateUsage=none
# A model's steps are hidden from its users, not from what writes and reads it.

import hashlib
import importlib
import platform
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from sklearn.utils.validation import check_is_fitted

from privopt.errors import ArgumentError
from privopt.estimators.arguments import FROM_Y
from privopt.estimators.records import Shape
from privopt.estimators.stages import GIVEN
from privopt.planning.plan import Plan, usable_in
from privopt.replays.recipes import ESTIMATOR, UNRECORDED, read, without_tuples, written
from privopt.report import stored
from privopt.report.kept import MOST_KEPT_BYTES, RELEASES_FILE, KeptReleases, Recipe
from privopt.report.model import ModelSummary
from privopt.report.report import PrivacyReport
from privopt.tables.encoder import TabularEncoder
from privopt.tables.errors import TableError
from privopt.tables.model_files import load_model, save_model
from privopt.untrusted import UntrustedFile, read_regular
from privopt.verification.signatures import SIGNATURE_FILE

if TYPE_CHECKING:
    from privopt.estimators.base import PrivateLinearModel

SAVED = (  # of `privopt`
    "HuberRegressor",
    "LassoClassifier",
    "LassoRegressor",
    "LinearRegression",
    "LinearSVC",
    "LogisticRegression",
    "PoissonRegressor",
    "QuantileRegressor",
    "Ridge",
    "RobustClassifier",
    "RobustRegressor",
)
PAIRS = ("bounds", "loose_bounds", "target_bounds")  # arguments that JSON turns from tuples into lists
MOST_OUTPUTS = 10_000
RENAMED = {"scale_budget": "scale_share"}  # arguments in folders that were written before


def save(model: "PrivateLinearModel", folder: str | Path, *, overwrite: bool = False) -> Path:
    """See `PrivateLinearModel.save`."""
    check_is_fitted(model)
    directory = free_folder(Path(folder), overwrite=overwrite)
    write(model, directory)
    stored.write(report_of(model), directory)
    return directory


def free_folder(folder: Path, *, overwrite: bool, name: str = "folder", way: str = "overwrite=True") -> Path:
    """A folder, given as `name`, that holds nothing, or a model that may be replaced; `way` says how to allow that.

    Raises:
        ArgumentError: it holds something, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{name} {str(folder)!r} is a file: give a directory.")
    if not overwrite and folder.is_dir() and any(folder.iterdir()):
        raise ArgumentError(
            f"{name} {str(folder)!r} is not empty: give another directory, or {way} to replace its model."
        )
    return folder


def write(model: "PrivateLinearModel", folder: Path) -> None:
    """Write `model.safetensors` and `model.json`; what was written about a model that stood there before goes.

    Raises:
        ArgumentError: the model is of a class, or has an argument, that no folder holds.
        TableError: the folder cannot be written.
    """
    kind, asked = type(model).__name__, model._asked
    if kind not in SAVED or asked.obstacle:
        why = f": {asked.obstacle}" if asked.obstacle else f", only a {', '.join(SAVED[:-1])} or {SAVED[-1]}"
        raise ArgumentError(
            f"a {kind} is not saved{why}. Keep its coef_ and intercept_, and its report with privacy_.save(...)."
        )
    given, report, encoder = asked.values, model.privacy_, model.encoder_
    seed = model.random_state if report.seeded else None
    estimator: dict[str, Any] = {
        "class": kind,
        "arguments": without_tuples(given["arguments"]) | {"random_state": written(seed)},
        "n": given["n"],
        "sparse": given["sparse"],
    }
    if given["arguments"].get("classes") == FROM_Y:
        estimator["labels"] = given["labels"]
    if encoder is None and given["names"] is not None:
        estimator["names"] = given["names"]
    document = {
        "versions": {
            "privopt": metadata.version("privopt"),
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("jax", "numpy", "scikit-learn")},
        },
        "target": None if encoder is None else encoder.target,
        "encoder": None if encoder is None else encoder.to_document(),
        "estimator": estimator,
        "plan": model.plan_.to_dict(),
        "report": replace(report, model=None).to_dict(),  # the arrays are the model
    }
    arrays = {"coef": np.asarray(model.coef_), "intercept": np.asarray(model.intercept_)}
    if given["arguments"].get("loose_bounds") is not None:  # those within them were released
        arrays |= {"low": model.bounds_[0], "high": model.bounds_[1]}
    if folder.is_dir():
        for name in (SIGNATURE_FILE, RELEASES_FILE):
            (folder / name).unlink(missing_ok=True)
    save_model(folder, arrays=arrays, document=document)


def report_of(model: "PrivateLinearModel") -> PrivacyReport:
    """The model's report, in the words of the table where there was one."""
    report, told = model.privacy_, model.privacy_.model
    if told is None or model.encoder_ is None:
        return report
    return replace(
        report, model=replace(told, meaning=told.meaning.replace(GIVEN, model.encoder_.describe_units()))
    )


def load(folder: str | Path) -> Any:
    """A fitted model from the folder that `save` or `privopt fit` wrote.

    It predicts as the one that was saved, for a `Table` or for features, and has its arguments and its attributes: of
    `privacy_` all that the report holds, and `encoder_`, where the model was fitted to a table. It has no `n_iter_`, no
    account and no seed of a private fit.

    Args:
        folder: may come from anywhere: no part of it is executed.
    Raises:
        TableError: it is no such folder, or one that this version cannot read.
    """
    directory = Path(folder)
    arrays, document = load_model(directory)
    _require_numbers(arrays, directory)
    try:
        return _rebuilt(document, arrays, _kept_in(directory))
    except stored.UNREADABLE:
        raise TableError(
            f"The model directory {str(directory)!r} was written by another version of privopt, or altered: fit it "
            "again."
        ) from None


def _kept_in(folder: Path) -> bytes:
    """The file of the released values; empty where none lies there."""
    try:
        return read_regular(folder / RELEASES_FILE, MOST_KEPT_BYTES + 2**20)
    except UntrustedFile:
        return b""


def _rebuilt(document: Mapping[str, Any], arrays: Mapping[str, Any], packed: bytes) -> "PrivateLinearModel":
    """The fitted estimator, from its public arguments, released numbers and report."""
    stored, coef, intercept = document["estimator"], arrays["coef"], arrays["intercept"]
    report = PrivacyReport.from_dict(document["report"])
    encoder = None if document["encoder"] is None else TabularEncoder.from_document(document["encoder"])
    arguments: dict[str, Any] = {
        RENAMED.get(str(name), str(name)): read(value) for name, value in stored["arguments"].items()
    }
    arguments |= {name: tuple(arguments[name]) for name in PAIRS if arguments.get(name) is not None}
    if stored["class"] not in SAVED:
        raise LookupError
    model = getattr(importlib.import_module("privopt"), stored["class"])(**arguments)
    shape = Shape(
        width=coef.shape[-1],
        n=stored["n"],
        by_user=report.unit == "user",
        is_sparse=stored["sparse"],
        names=stored.get("names"),
        budget=report.budget,
    )
    labels = read(stored["labels"]) if "labels" in stored else None
    bounds = None if model.loose_bounds is None else (arrays["low"], arrays["high"])
    # Of older reports one that names a typical length was fitted to rows as they were.
    divided = bool(document["report"]["divided_rows"]) and document["report"].get("typical_length") is None
    model.encoder_ = encoder
    model._restore(
        shape, coef, intercept if intercept.ndim else float(intercept), labels, bounds, divided=divided
    )
    kept = report.kept
    if kept is not None and packed and hashlib.sha256(packed).hexdigest() == kept.index.get("sha256"):
        kept = KeptReleases(kept.index, safetensors.numpy.load(packed))
    asked = {
        "arguments": {name: written(value) for name, value in arguments.items() if name not in UNRECORDED},
        **{name: stored.get(name) for name in ("n", "sparse", "labels", "names")},
    }
    found = {"plan_": Plan.from_dict(document["plan"]), "usable_": usable_in(report.findings)}
    vars(model).update(found, privacy_=replace(report, kept=kept), _asked=Recipe(ESTIMATOR, asked))
    vars(model).update(privacy_=replace(model.privacy_, model=_summary(model)))
    if (encoder is not None and coef.shape[-1] != encoder.n_features_out_) or not _fits(model):
        raise ValueError
    return model


def _require_numbers(arrays: Mapping[str, Any], folder: Path) -> None:
    """Refuse numbers with which every prediction would be the same, or none."""
    try:
        finite = all(bool(np.all(np.isfinite(array))) for array in arrays.values())
    except TypeError:
        finite = False
    if not finite:
        raise TableError(
            f"The model directory {str(folder)!r} holds a number that is not finite: it predicts nothing. Fit it "
            "again."
        )
    if arrays.get("coef") is not None and np.atleast_2d(arrays["coef"]).shape[0] > MOST_OUTPUTS:
        raise TableError(f"The model directory {str(folder)!r} has more than {MOST_OUTPUTS:,} outputs.")


def _fits(model: Any) -> bool:
    """Whether there are as many rows of coefficients, and intercepts, as outputs."""
    classes, shape = getattr(model, "classes_", None), np.shape(model.coef_)
    if classes is None:
        return len(shape) == 1 and np.size(model.intercept_) == 1
    outputs = 1 if len(classes) == 2 else len(classes)
    return shape[:-1] == (outputs,) and np.size(model.intercept_) == outputs


def _summary(model: "PrivateLinearModel") -> ModelSummary:
    """The released numbers, with the names of the features, in the words of the table where there was one."""
    return ModelSummary.of(
        type(model).__name__,
        model.coef_,
        features=model._names(),
        intercept=model.intercept_ if model.fit_intercept else None,
        classes=getattr(model, "classes_", None),
        meaning=model._meaning(GIVEN if model.encoder_ is None else model.encoder_.describe_units()),
    )
