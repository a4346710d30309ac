"""What `privopt verify` is pointed at: a report in JSON, or a saved model with the report in it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from privopt.untrusted import MOST_ARRAY_BYTES, MOST_JSON_BYTES, UntrustedFile, parse_json, read_regular
from privopt.verification.checks import Check, Outcome, held
from privopt.verification.signatures import signature_of, signed
from privopt.verification.tree import Fields, Malformed, layout_free
from privopt.verification.verdict import REPORT_FORMAT, Verdict, verdicts_on

MODEL_FORMAT, MODEL_VERSIONS = "privopt-model", (1,)
DOCUMENT_FILE, ARRAYS_FILE, REPORT_FILE = "model.json", "model.safetensors", "report.json"
RELEASES_FILE, PAGE_SUFFIX = "releases.safetensors", ".html"
MOST_RELEASES_BYTES = 17 * 2**20


class Numbers(NamedTuple):
    """What a model's directory holds besides its report.

    Attributes:
        arrays: the released numbers, by name.
        estimator: its class and arguments, as JSON values.
        versions: of what the model was made with.
        summary: what the report beside the model says of the numbers; None where none lies there.
    """

    arrays: Mapping[str, NDArray[Any]]
    estimator: Mapping[str, Any]
    versions: Mapping[str, Any]
    summary: Mapping[str, Any] | None


_MEMBERS = {"format", "format_version", "arrays_sha256", "document"}
_DOCUMENT = {"versions", "target", "encoder", "estimator", "plan", "report"}
# From a report, the file of its released values, and the numbers of a model (None where a report stands alone).
Replay = Callable[[Mapping[str, Any], Path, Numbers | None], Check | None]


def verify(
    path: Path,
    replay: Replay | None = None,
    releases: Path | None = None,
    trusted: Sequence[Path] = (),
) -> list[Verdict]:
    """Verify a report or a model directory.

    Args:
        path: a JSON file that `PrivacyReport.save` wrote, or a directory that `privopt fit` wrote.
        replay: runs the solver again on the released values, where they are kept; `privopt.replays.check.replayed`.
            It is no part of the second accountant: it runs the program that made the report. Without it, a verdict is
            at most `Finding.PRICED`.
        releases: the file of the released values; default: the one beside the report.
        trusted: files of public keys, one of which must have signed.

    Raises:
        UntrustedFile: it is neither, or beyond what is read.
        KeyProblem: a file holds no public key.
    """
    if path.is_symlink():
        raise UntrustedFile(
            f"{str(path)!r} is a symbolic link, which is not followed: give what it leads to."
        )
    if path.is_dir():
        return [_model(path, replay, releases, trusted)]
    content = read_regular(path, MOST_JSON_BYTES)
    document = parse_json(content, repr(str(path)))
    verdicts = [_with_page(verdict, path.with_suffix(PAGE_SUFFIX)) for verdict in verdicts_on(document)]
    values = releases or _releases_beside(path, document)
    seal = _sealed(path, {"report": content}, values, trusted)
    if len(verdicts) == 1 and "runs" not in document:
        return [_with(verdicts[0], [*_replayed(replay, verdicts[0].checks, document, values, None), *seal])]
    return [_with(verdict, seal) for verdict in verdicts]


def _replayed(
    replay: Replay | None,
    checks: Sequence[Check],
    report: Mapping[str, Any],
    releases: Path,
    numbers: Numbers | None,
) -> list[Check]:
    """What comes of a replay; none where nothing could change the verdict any more."""
    if replay is None or any(check.outcome is Outcome.FAILS for check in checks):
        return []
    check = replay(report, releases, numbers)
    return [] if check is None else [check]


def _sealed(path: Path, files: Mapping[str, bytes], releases: Path, trusted: Sequence[Path]) -> list[Check]:
    """Whether files, and the released values where there are any, are what somebody has signed."""
    signature = signature_of(path)
    if releases.is_file() and signature.exists():
        files = {**files, "releases": read_regular(releases, MOST_RELEASES_BYTES)}
    check = signed(signature, files, trusted)
    return [] if check is None else [check]


def _releases_beside(path: Path, report: dict[str, Any]) -> Path:
    """The file of released values that lies beside a report: of its own name, or that of a model's directory."""
    own, of_a_model = path.with_name(f"{path.stem}.{RELEASES_FILE}"), path.with_name(RELEASES_FILE)
    if own.exists() or own.is_symlink() or not of_a_model.is_file():
        return own
    index = report.get("replay")
    digest = cast("dict[str, Any]", index).get("sha256") if isinstance(index, dict) else None
    packed = read_regular(of_a_model, MOST_RELEASES_BYTES)
    return of_a_model if hashlib.sha256(packed).hexdigest() == digest else own


def released_values(report: Mapping[str, Any], releases: Path) -> bytes | str | None:
    """The content of the file of released values, or why there is none; None of a report of version 1.

    Raises:
        UntrustedFile: the file is beyond what is read.
    """
    index = report.get("replay")
    if not isinstance(index, dict) or report.get("format_version") == 1:
        return None
    obstacle = cast("dict[str, Any]", index).get("obstacle")
    if obstacle is not None:
        return str(obstacle)[:200]
    if not releases.exists() and not releases.is_symlink():
        return f"the released values, {releases.name}, do not lie beside it"
    return read_regular(releases, MOST_RELEASES_BYTES)


def _with(verdict: Verdict, checks: list[Check]) -> Verdict:
    return replace(verdict, checks=(*verdict.checks, *checks))


def _model(folder: Path, replay: Replay | None, releases: Path | None, trusted: Sequence[Path]) -> Verdict:
    files = {"model": read_regular(folder / DOCUMENT_FILE, MOST_JSON_BYTES)}
    content = Fields(parse_json(files["model"], repr(str(folder / DOCUMENT_FILE))), DOCUMENT_FILE)
    if (
        content.text("format") != MODEL_FORMAT
        or content.whole("format_version", 1, 10**6) not in MODEL_VERSIONS
    ):
        raise Malformed(f"{DOCUMENT_FILE} is no model of privopt, or of a version that is not known here.")
    document = content.fields("document")
    if set(content.values) - _MEMBERS or set(document.values) - _DOCUMENT:
        raise Malformed(f"{DOCUMENT_FILE} has a member that a model has not.")
    report = cast("dict[str, Any]", _plain(document.fields("report").values))
    if report.get("format") != REPORT_FORMAT:
        raise Malformed(f"{DOCUMENT_FILE} holds no report of one run.")
    verdict = verdicts_on(report)[0]
    packed = files["arrays"] = read_regular(folder / ARRAYS_FILE, MOST_ARRAY_BYTES)
    arrays = _loaded(packed)
    checks = [
        held(
            "arrays",
            hashlib.sha256(packed).hexdigest() == content.text("arrays_sha256"),
            f"{ARRAYS_FILE} is the file that {DOCUMENT_FILE} was written with",
            f"{ARRAYS_FILE} is not the file that {DOCUMENT_FILE} was written with",
        ),
        _finite(arrays),
        held(
            "plan",
            layout_free(_plain(document.raw("plan"))) == layout_free(report.get("plan")),
            "the model's plan is that of its report",
            "the model's plan is not that of its report",
        ),
    ]
    summary: dict[str, Any] | None = None
    if (folder / REPORT_FILE).exists() or (folder / REPORT_FILE).is_symlink():
        files["report"] = read_regular(folder / REPORT_FILE, MOST_JSON_BYTES)
        other = parse_json(files["report"], repr(str(folder / REPORT_FILE)))
        checks.append(_beside(other, report, arrays))
        beside = other.get("model")
        summary = cast("dict[str, Any]", beside) if isinstance(beside, dict) else {}
    estimator, versions = (
        cast("dict[str, Any]", _plain(document.values.get(name) or {})) for name in ("estimator", "versions")
    )
    values = releases or folder / RELEASES_FILE
    numbers = Numbers(arrays, estimator, versions, summary)
    checks += _replayed(replay, [*verdict.checks, *checks], report, values, numbers)
    checks += _sealed(folder, files, values, trusted)
    said = ("name of the target", "how tables become features (schema)", "versions of other packages")
    found = replace(_with(verdict, checks), declared=(*verdict.declared, *said))
    return _with_page(found, (folder / REPORT_FILE).with_suffix(PAGE_SUFFIX))


def _with_page(verdict: Verdict, page: Path) -> Verdict:
    """A verdict that names the page beside the report, where there is one: nothing looks at it."""
    if not page.exists() and not page.is_symlink():
        return verdict
    said = f"what {page.name} says, which may be another than this report: `privopt report` writes it anew"
    return replace(verdict, declared=(*verdict.declared, said))


def _beside(other: dict[str, Any], report: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Check:
    """Whether the report that lies beside the model is the one inside it, with the model's numbers."""
    mine, theirs = ({key: one[key] for key in one if key != "model"} for one in (report, other))
    same = layout_free(mine) == layout_free(theirs)
    summary = other.get("model")
    if isinstance(summary, dict) and "coef" in arrays:
        stated, intercept = cast("dict[str, Any]", summary), arrays.get("intercept")
        same = same and stated.get("coefficients") == np.atleast_2d(arrays["coef"]).tolist()
        same = same and (
            intercept is None or stated.get("intercepts") in ([], np.atleast_1d(intercept).tolist())
        )
    return held(
        "copy",
        same,
        f"{REPORT_FILE} says the same",
        f"{REPORT_FILE} is not the report of this model: write it anew",
    )


def _loaded(packed: bytes) -> dict[str, NDArray[Any]]:
    header = packed[8 : 8 + int.from_bytes(packed[:8], "little")]
    if b"__metadata__" in header or b"\\" in header:
        raise UntrustedFile(f"{ARRAYS_FILE} holds more than arrays, which are all that a model has there.")
    try:
        return safetensors.numpy.load(packed)
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError):
        raise UntrustedFile(f"{ARRAYS_FILE} is not a safetensors file of numbers.") from None


def _finite(arrays: Mapping[str, NDArray[Any]]) -> Check:
    try:
        finite = all(bool(np.all(np.isfinite(array))) for array in arrays.values())
    except TypeError:
        raise UntrustedFile(f"{ARRAYS_FILE} is not a safetensors file of numbers.") from None
    return held("numbers", finite, "every released number is finite", "a released number is not finite")


def _plain(value: Any) -> Any:
    """JSON values without the form that model files have for numbers that JSON lacks."""
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        if set(members) == {"$float"}:
            named = {"inf": "infinity", "-inf": "-infinity"}.get(str(members["$float"]))
            if named is None:
                raise Malformed(f"{DOCUMENT_FILE} holds a number that is none.")
            return named
        return {key: _plain(member) for key, member in members.items()}
    return value
