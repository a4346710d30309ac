"""Whether a report, and the model it is about, follow from the released values that are kept beside it.

The solver is run again without data, on the kept values. Everything that the report says of the run must come out
again: plan, releases, sensitivities, events, price, curve, status, findings; and the model's numbers, bit for bit.
"""

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from privopt.curator.transcript import Transcript
from privopt.errors import ReplayMismatch
from privopt.json_values import json_value
from privopt.precision import double_precision
from privopt.public import Relation
from privopt.replays.recipes import ESTIMATOR, UNRECORDED
from privopt.replays.rerun import MOST_WORK, Again, Unreplayable, rebuilt
from privopt.replays.values import Unwritten, written
from privopt.report.kept import MOST_KEPT_BYTES, transcript_of
from privopt.report.report import PrivacyReport
from privopt.untrusted import read_regular
from privopt.verification.checks import Check, Outcome
from privopt.verification.files import Numbers

SUBJECT = "replay"
MOST_LINES = 10**6
_CLOSE = 1e-6  # of the largest number: another machine may round differently
_HEADER = 2**20  # bytes of a file of releases that are no numbers
# Members of a report that a replay brings out again; those in words depend on the version of privopt.
_FACTS = ("status", "curve", "event", "releases", "divided_rows")
_WORDS = ("summary", "not_covered", "utility_assumptions", "notices")


def replayed(report: Mapping[str, Any], releases: Path, model: Numbers | None = None) -> Check | None:
    """Replay the run of a report.

    Args:
        report: its JSON values.
        releases: the file of the released values.
        model: of a model's directory.

    Returns:
        What came of it; None of a report that says nothing of a replay (version 1).

    Raises:
        UntrustedFile: the file is beyond what is read.
    """
    stated = report.get("replay")
    if not isinstance(stated, dict):
        return None
    index = cast("Mapping[str, Any]", stated)
    try:
        return _replayed(report, index, releases, model)
    except Unreplayable as error:
        return Check(SUBJECT, Outcome.UNCHECKED, f"nothing was replayed: {error}")


def _replayed(
    report: Mapping[str, Any], index: Mapping[str, Any], releases: Path, model: Numbers | None
) -> Check:
    if index.get("obstacle") is not None:
        raise Unreplayable(str(index["obstacle"])[:200])
    if not releases.exists() and not releases.is_symlink():
        raise Unreplayable(f"the released values, {releases.name}, do not lie beside it")
    packed = read_regular(releases, MOST_KEPT_BYTES + _HEADER)
    if hashlib.sha256(packed).hexdigest() != index.get("sha256"):
        wrong = f"nothing was replayed: {releases.name} is not the file that the report was written with"
        return Check(SUBJECT, Outcome.FAILS, wrong)
    recorded, made = _recorded(index, packed, report)
    recipe = index.get("recipe")
    again = rebuilt(cast("Mapping[str, Any]", recipe) if isinstance(recipe, dict) else {})
    _require_plan(again, made, report)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"), double_precision():
            warnings.simplefilter("ignore")
            found, numbers = again.run(recorded)
            differences = list(_differences(report, found, numbers, model))
    except ReplayMismatch as error:
        return _wrong(report, f"the releases are not those of its solver: {error}")
    except MemoryError:
        raise Unreplayable("it needs more memory than there is") from None
    except Exception as error:  # whatever a solver makes of values that are not its own
        return _wrong(report, f"its solver cannot work on the releases ({type(error).__name__})")
    return _verdict(report, differences, made)


def _verdict(report: Mapping[str, Any], differences: Sequence[tuple[str, bool]], made: int) -> Check:
    what = "this report" if _same_version(report) else "every number of this report"
    far = [name for name, close in differences if not close]
    if far:
        return _wrong(report, f"it gives another {', '.join(dict.fromkeys(far))}")
    if differences:
        names = ", ".join(dict.fromkeys(name for name, _ in differences))
        sentence = (
            f"replayed: {made:,} releases, up to the last digits of {names}: another machine may round so"
        )
        return Check(SUBJECT, Outcome.UNCHECKED, sentence)
    sentence = f"replayed: {made:,} releases lead to {what} and to its model, bit for bit"
    return Check(SUBJECT, Outcome.HOLDS, sentence)


def _wrong(report: Mapping[str, Any], what: str) -> Check:
    """What a replay by the version that ran refutes; another version may ask, and compute, otherwise.

    Raises:
        Unreplayable: the report is of another version.
    """
    if not _same_version(report):
        raise Unreplayable(f"it was made by another version of privopt, and with this one {what}")
    return Check(SUBJECT, Outcome.FAILS, f"the run was replayed, and {what}")


def _recorded(index: Mapping[str, Any], packed: bytes, report: Mapping[str, Any]) -> tuple[Transcript, int]:
    """The transcript to replay, and how many releases it holds."""
    try:
        arrays = safetensors.numpy.load(packed)
        lines = [(str(line["name"]), arrays[str(line["array"])]) for line in index["releases"]]
        relation = Relation.parse(report["guarantee"]["relation"])
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError, AttributeError):
        raise Unreplayable("its index does not describe the file of released values") from None
    shapes = all(values.ndim >= 2 and values.dtype.kind in "biuf" for _, values in lines)
    named = {str(line["array"]) for line in index["releases"]}  # each array once, so that none is left over
    made = sum(math.prod(values.shape[:2]) for _, values in lines) if shapes else 0
    if not shapes or named != set(arrays) or len(lines) != len(arrays):
        raise Unreplayable("its released values are not laid out as they are written")
    if sum(len(values) for _, values in lines) > MOST_LINES or made > MOST_KEPT_BYTES:  # some have no bytes
        raise Unreplayable("it has more releases than are replayed")
    empty = Transcript(
        relation,
        seeded=report["guarantee"].get("seeded") is True,
        eager=index.get("eager") is True,
        exact_noise=index.get("exact") is True,
    )
    return transcript_of(iter(lines), empty), made


def _require_plan(again: Again, made: int, report: Mapping[str, Any]) -> None:
    """Refuse a recipe whose plan is not the report's, or asks for more than was released.

    Raises:
        Unreplayable: it says which.
    """
    plan, same_version = again.plan, _same_version(report)
    if _same(json_value(plan.to_dict()), report.get("plan"), words=same_version) is None:
        if same_version:
            raise Unreplayable("its plan is not the one that follows from its recipe")
        raise Unreplayable("it was made by another version of privopt, which planned differently")
    if not plan.adaptive and plan.releases > made:
        raise Unreplayable("fewer releases were kept than were planned")
    if made * again.parameters > MOST_WORK:
        raise Unreplayable(
            f"its releases times its parameters are more than the {MOST_WORK:,} that are replayed"
        )


def _same_version(report: Mapping[str, Any]) -> bool:
    return report.get("privopt") == metadata.version("privopt")


def _differences(
    report: Mapping[str, Any], found: PrivacyReport, numbers: tuple[Any, ...], model: Numbers | None
) -> Iterator[tuple[str, bool]]:
    """What the replay gives otherwise: its name, and whether it is but for rounding."""
    again = found.to_dict()
    words = _same_version(report)
    pairs: list[tuple[str, Any, Any]] = [(name, again[name], report.get(name)) for name in _FACTS]
    pairs.append(("guarantee", again["guarantee"], report.get("guarantee")))
    pairs.append(("findings", again["findings"], report.get("findings")))
    pairs += [(name, again[name], report.get(name)) for name in _WORDS if words]
    pictures: Any = report.get("pictures")
    mine = again["pictures"]
    pairs.append(("pictures", mine, pictures[: len(mine)] if isinstance(pictures, list) else None))
    for name, one, other in pairs:
        same = _same(one, other, words=words)
        if same is not True:
            yield name, same is False
    if model is None:
        same = _same(again["model"], report.get("model"), words=words)
        if same is not True:
            yield "model", same is False
        return
    stored = [model.arrays.get(name) for name in ("coef", "intercept")]
    kept = [values for values in stored if values is not None]
    if len(kept) != len(numbers):
        yield "model", False
    for one, other in zip(numbers, kept, strict=False):
        same = _same_numbers(np.asarray(one, np.float64), np.asarray(other, np.float64))
        if same is not True:
            yield "model", same is False
    if not _same_estimator(report, model.estimator):
        yield "class or argument of the model", False


def _same_estimator(report: Mapping[str, Any], estimator: Mapping[str, Any]) -> bool:
    """Whether the directory's estimator is the one that was replayed."""
    recipe = report["replay"]["recipe"]
    if recipe.get("kind") != ESTIMATOR:
        return False
    given: Mapping[str, Any] = estimator.get("arguments", {})
    try:
        mine = {name: written(value) for name, value in given.items() if name not in UNRECORDED}
    except Unwritten:
        return False
    same = _without_tuples(mine) == _without_tuples(recipe["arguments"])
    sizes = {"class": "estimator", "n": "n", "sparse": "sparse"}
    return same and all(estimator.get(mine) == recipe[theirs] for mine, theirs in sizes.items())


def _without_tuples(form: Any) -> Any:
    """A written value with lists in place of tuples, at any depth: as JSON has them, and so the model's directory."""
    if isinstance(form, list):
        return [_without_tuples(one) for one in cast("list[Any]", form)]
    if not isinstance(form, dict):
        return form
    members = cast("dict[str, Any]", form)
    if set(members) == {"$tuple"}:
        return _without_tuples(members["$tuple"])
    return {name: _without_tuples(one) for name, one in members.items()}


def _same(one: Any, other: Any, *, words: bool) -> bool | None:
    """Whether two JSON values are equal: True, or False but for rounding, or None.

    Args:
        one: a value.
        other: another.
        words: whether texts count.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        mine, theirs = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        if set(mine) != set(theirs):
            return None
        return _least(_same(mine[name], theirs[name], words=words) for name in mine)
    if isinstance(one, list) and isinstance(other, list):
        first, second = cast("list[Any]", one), cast("list[Any]", other)
        if len(first) != len(second):
            return None
        return _least(_same(*pair, words=words) for pair in zip(first, second, strict=True))
    if isinstance(one, str) and isinstance(other, str):
        return True if one == other or not words else None
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return True if one is other else None
    if not (isinstance(one, int | float) and isinstance(other, int | float)):
        return None
    if one == other:
        return True
    return False if abs(one - other) <= _CLOSE * max(abs(one), abs(other)) else None


def _least(found: Iterator[bool | None]) -> bool | None:
    least: bool | None = True
    for same in found:
        if same is None:
            return None
        least = least and same
    return least


def _same_numbers(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool | None:
    if one.shape != other.shape:
        return None
    if np.array_equal(one, other):
        return True
    scale = float(np.max(np.abs(one), initial=0.0))
    return False if bool(np.all(np.abs(one - other) <= _CLOSE * scale)) else None
