"""The report in a model's directory: written and signed beside the model, and read without building the model."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privopt.atomic_files import replace_file
from privopt.report.kept import RELEASES_FILE
from privopt.report.model import ModelSummary
from privopt.report.report import PrivacyReport
from privopt.tables.model_files import ARRAYS_FILE, DOCUMENT_FILE, load_model
from privopt.untrusted import MOST_ARRAY_BYTES, UntrustedFile, read_json, read_regular
from privopt.verification.signatures import SIGNATURE_FILE, sign

REPORT_PAGE, REPORT_DATA = "report.html", "report.json"
# What the parts of a model raise when a document that nobody vouches for does not describe them.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def write(report: PrivacyReport, directory: Path) -> Path:
    """Write a report as a page and as JSON, and the released values it can be replayed on; the page's path.

    A report that is signed is not written anew. Of a model that was read from a directory the values are not at hand:
    what lies there stays. Of a run that is not private none are written: they would show what noise, had it been
    secret, would have hidden. A link that came with the directory is replaced, not followed.
    """
    if not (directory / SIGNATURE_FILE).exists():  # what is signed stays as it is
        replace_file(directory / REPORT_DATA, report.to_json().encode())
    packed = None if report.kept is None else report.kept.packed
    if packed is not None and report.is_private:
        report.save_releases(directory / RELEASES_FILE)
    elif packed is not None or report.kept is None or report.kept.index.get("obstacle") is not None:
        (directory / RELEASES_FILE).unlink(missing_ok=True)  # of a model that stood here before
    replace_file(directory / REPORT_PAGE, report.to_html().encode())
    return directory / REPORT_PAGE


def sign_folder(folder: Path, key: Path) -> Path:
    """Sign what lies in a model's directory, and write the signature.

    Raises:
        KeyProblem: the key cannot sign.
        UntrustedFile: a file is a link, which may lead to another one when it is verified.
    """
    names = {"model": DOCUMENT_FILE, "arrays": ARRAYS_FILE, "report": REPORT_DATA, "releases": RELEASES_FILE}
    files = {
        role: read_regular(folder / name, MOST_ARRAY_BYTES)
        for role, name in names.items()
        if (folder / name).is_file()
    }
    return sign(folder / SIGNATURE_FILE, files, key)


def read(directory: Path) -> PrivacyReport | None:
    """The report that lies beside a model, if it says what `model.json` and the model's numbers say.

    Neither the encoder nor the estimator is built for it: the names of the features are those of the report. Its words
    are made anew. None where there is no such report.

    Raises:
        TableError: it is no model directory, or a damaged one.
    """
    arrays, document = load_model(directory)
    try:
        report = PrivacyReport.from_dict(document["report"])
        beside = PrivacyReport.from_dict(read_json(directory / REPORT_DATA))
        model = beside.model
        if model is None or replace(report, model=model) != beside or not _shows(model, arrays):
            return None
    except (UntrustedFile, *UNREADABLE):
        return None
    return beside


def _shows(model: ModelSummary, arrays: Mapping[str, Any]) -> bool:
    """Whether a table of coefficients has a model's numbers, all of them finite, each under a name."""
    coef, intercept = np.atleast_2d(arrays["coef"]), np.ravel(arrays["intercept"])
    shown = np.asarray(model.intercepts) if model.intercepts else np.zeros_like(intercept)
    names: tuple[Any, ...] = (model.name, model.meaning, *model.features, *model.outputs)
    return (
        np.array_equal(coef, np.asarray(model.coefficients))
        and np.array_equal(intercept, shown)
        and bool(np.all(np.isfinite(coef)) and np.all(np.isfinite(intercept)))
        and len(model.features) == coef.shape[1]
        and len(model.outputs) in (0, len(coef))
        and all(isinstance(name, str) for name in names)
        and not model.details
    )
