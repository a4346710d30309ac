"""A fitted model with its encoder and its report as a directory, and back. Public and released values only."""

import dataclasses
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from privopt.commands.task import MODELS, ROBUST_REGRESSION, Estimator, Task
from privopt.estimators.records import Shape
from privopt.report.kept import RELEASES_FILE
from privopt.report.model import ModelSummary
from privopt.report.report import PrivacyReport
from privopt.report.stored import REPORT_DATA, UNREADABLE
from privopt.tables import TableError, TabularEncoder, load_model, save_model
from privopt.tables.model_files import ARRAYS_FILE, DOCUMENT_FILE
from privopt.untrusted import MOST_ARRAY_BYTES, read_regular
from privopt.verification.signatures import SIGNATURE_FILE, sign

CLASSES = {kind.estimator.__name__: kind.estimator for kind in (*MODELS.values(), ROBUST_REGRESSION)}
PAIRS = ("bounds", "target_bounds")  # arguments that JSON turns from tuples into lists
MOST_OUTPUTS = 10_000
RENAMED = {"scale_budget": "scale_share"}  # arguments in directories that were written before


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """What a model directory holds.

    Attributes:
        encoder: raw columns to features.
        estimator: the fitted model.
        target: the name of the column that was predicted.
        report: the privacy report.
        sparse: whether the features were sparse.
    """

    encoder: TabularEncoder
    estimator: Estimator
    target: str
    report: PrivacyReport
    sparse: bool

    @classmethod
    def of(cls, task: Task, estimator: Estimator, *, sparse: bool) -> "SavedModel":
        """The model that a task has fitted, its report in the words of the table."""
        declared = (
            *estimator.privacy_.declared,
            "Ranges and levels of the columns, as given by the schema; cells outside were moved to the nearer end, "
            "unknown levels left out.",
            *(
                ("The number of units n, by the choice of delta = 1 / n^2.",)
                if task.options.delta == "auto"
                else ()
            ),
        )
        report = dataclasses.replace(
            estimator.privacy_,
            title=f"{task.model.title[:1].upper()}{task.model.title[1:]} of {task.target.column}",
            declared=declared,
            model=_summary(estimator, task.encoder),
        )
        target = task.target.column
        return cls(encoder=task.encoder, estimator=estimator, target=target, report=report, sparse=sparse)

    def write(self, directory: Path) -> None:
        """Write `model.safetensors` and `model.json`; a signature of what stood there before goes."""
        (directory / SIGNATURE_FILE).unlink(missing_ok=True)
        estimator = self.estimator
        arguments = {
            key: value for key, value in estimator.get_params(deep=False).items() if key != "account"
        }
        document = {
            "versions": {
                "privopt": metadata.version("privopt"),
                "python": platform.python_version(),
                **{name: metadata.version(name) for name in ("jax", "numpy", "scikit-learn")},
            },
            "target": self.target,
            "encoder": self.encoder.to_document(),
            "estimator": {
                "class": type(estimator).__name__,
                "arguments": arguments,
                "n": self.report.n,
                "sparse": self.sparse,
            },
            "plan": estimator.plan_.to_dict(),
            "report": dataclasses.replace(self.report, model=None).to_dict(),  # the arrays are the model
        }
        arrays = {"coef": np.asarray(estimator.coef_), "intercept": np.asarray(estimator.intercept_)}
        save_model(directory, arrays=arrays, document=document)

    @staticmethod
    def sign(directory: Path, key: Path) -> Path:
        """Sign what lies in a directory, and write the signature.

        Raises:
            KeyProblem: the key cannot sign.
            UntrustedFile: a file is a link, which may lead to another one when it is verified.
        """
        names = {
            "model": DOCUMENT_FILE,
            "arrays": ARRAYS_FILE,
            "report": REPORT_DATA,
            "releases": RELEASES_FILE,
        }
        files = {
            role: read_regular(directory / name, MOST_ARRAY_BYTES)
            for role, name in names.items()
            if (directory / name).is_file()
        }
        return sign(directory / SIGNATURE_FILE, files, key)

    @classmethod
    def read(cls, directory: Path) -> "SavedModel":
        """Read a model directory.

        Raises:
            TableError: it is no model directory, or one that this version cannot read.
        """
        arrays, document = load_model(directory)
        _require_numbers(arrays, directory)
        try:
            encoder = TabularEncoder.from_document(document["encoder"])
            estimator = _rebuilt(document["estimator"], arrays, divided=_divides(document["report"]))
            estimator.encoder_ = encoder
            report = PrivacyReport.from_dict(document["report"])
            target, sparse = str(document["target"]), bool(document["estimator"]["sparse"])
            report = dataclasses.replace(report, model=_summary(estimator, encoder))
            if estimator.coef_.shape[-1] != encoder.n_features_out_ or not _fits(estimator):
                raise ValueError
        except UNREADABLE:
            raise TableError(
                f"The model directory {str(directory)!r} was written by another version of privopt, or altered: fit "
                "it again."
            ) from None
        return cls(encoder=encoder, estimator=estimator, target=target, report=report, sparse=sparse)


def _divides(report: Mapping[str, Any]) -> bool:
    """Whether scores are divided by each row's length: as the fit divided rows, if no older report names a length."""
    return bool(report["divided_rows"]) and report.get("typical_length") is None


def _require_numbers(arrays: Mapping[str, Any], directory: Path) -> None:
    """Refuse numbers with which every prediction would be the same, or none."""
    try:
        finite = all(bool(np.all(np.isfinite(array))) for array in arrays.values())
    except TypeError:
        finite = False
    if not finite:
        raise TableError(
            f"The model directory {str(directory)!r} holds a number that is not finite: it predicts nothing. Fit it "
            "again."
        )
    if arrays.get("coef") is not None and np.atleast_2d(arrays["coef"]).shape[0] > MOST_OUTPUTS:
        raise TableError(f"The model directory {str(directory)!r} has more than {MOST_OUTPUTS:,} outputs.")


def _fits(estimator: Estimator) -> bool:
    """Whether there are as many rows of coefficients, and intercepts, as outputs."""
    classes, shape = getattr(estimator, "classes_", None), np.shape(estimator.coef_)
    if classes is None:
        return len(shape) == 1 and np.size(estimator.intercept_) == 1
    outputs = 1 if len(classes) == 2 else len(classes)
    return shape[:-1] == (outputs,) and np.size(estimator.intercept_) == outputs


def _rebuilt(document: Mapping[str, Any], arrays: Mapping[str, Any], *, divided: bool) -> Estimator:
    """The fitted estimator, from its public arguments and released numbers."""
    coef, intercept = arrays["coef"], arrays["intercept"]
    stored: Mapping[str, Any] = document["arguments"]
    arguments = {RENAMED.get(name, name): value for name, value in stored.items()}
    arguments |= {name: tuple(arguments[name]) for name in PAIRS if arguments.get(name) is not None}
    estimator = CLASSES[document["class"]](**arguments)
    shape = Shape(width=coef.shape[-1], n=document["n"], by_user=False, is_sparse=document["sparse"])
    estimator._restore(shape, coef, intercept if intercept.ndim else float(intercept), divided=divided)
    return estimator


def _summary(estimator: Estimator, encoder: TabularEncoder) -> ModelSummary:
    """The released numbers, with the names of the encoded features."""
    return ModelSummary.of(
        type(estimator).__name__,
        estimator.coef_,
        features=[str(name) for name in encoder.get_feature_names_out()],
        intercept=estimator.intercept_,
        classes=getattr(estimator, "classes_", None),
        meaning=estimator._meaning(encoder.describe_units()),
    )
