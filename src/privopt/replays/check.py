"""Whether a report, and the model it is about, follow from the released values that are kept beside it.

The solver is run again without data, on the kept values. Everything that the report says of the run must come out
again, and the model's numbers, bit for bit or within what another processor rounds; what the caller declared cannot.
"""

import enum
import functools
import hashlib
import json
import math
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from privopt.curator.transcript import Release, Transcript
from privopt.errors import ReplayMismatch
from privopt.estimators.stages import GIVEN
from privopt.json_values import json_value
from privopt.ledger.events import EveryUnit, NoEvent
from privopt.precision import in_float64
from privopt.public import Relation
from privopt.replays.recipes import ESTIMATOR, without_tuples
from privopt.replays.rerun import MOST_WORK, Again, Unreplayable, rebuilt
from privopt.report.kept import INDEX, MOST_KEPT_BYTES, digest_of_index
from privopt.report.model import is_burn_down
from privopt.report.report import PrivacyReport
from privopt.tables.encoder import is_units_sentence
from privopt.verification.checks import REPLAY, Check, Outcome, unreplayed
from privopt.verification.files import Numbers, Replay, released_values
from privopt.verification.tree import layout_free

# ---- How far two JSON values, or two arrays, are alike: another processor may round differently ------------
CLOSE = 1e-6  # of a number: what another processor may round otherwise
_TINY = 1e-12  # below which a number may be what rounding left of zero
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


class Likeness(enum.IntEnum):
    """How far two values are alike.

    Attributes:
        FAR: they differ.
        ROUGH: they differ by what rounding may do, and a change of that size may be one that somebody made.
        CLOSE: every number is within 1e-6 of itself.
        EQUAL: they are equal, bit for bit.
    """

    FAR = 0
    ROUGH = 1
    CLOSE = 2
    EQUAL = 3


def alike(one: Any, other: Any, *, words: bool = True) -> Likeness:
    """Compare two JSON values.

    Args:
        one: a value.
        other: another.
        words: whether texts count.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        mine, theirs = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        if set(mine) != set(theirs):
            return Likeness.FAR
        return _least(alike(mine[name], theirs[name], words=words) for name in mine)
    if isinstance(one, list) and isinstance(other, list):
        return _alike_lists(cast("list[Any]", one), cast("list[Any]", other), words=words)
    if isinstance(one, str) and isinstance(other, str):
        return _alike_texts(one, other) if words else Likeness.EQUAL
    if _is_number(one) and _is_number(other):
        return _alike_numbers(cast("float", one), cast("float", other))
    return Likeness.EQUAL if type(one) is type(other) and one == other else Likeness.FAR


def alike_arrays(one: NDArray[np.float64], other: NDArray[np.float64]) -> Likeness:
    """Compare two arrays, entry by entry."""
    if one.shape != other.shape:
        return Likeness.FAR
    if np.array_equal(one, other):
        return Likeness.EQUAL
    away, sizes = np.abs(one - other), np.maximum(np.abs(one), np.abs(other))
    if bool(np.all(away <= CLOSE * sizes)):
        return Likeness.CLOSE
    return Likeness.ROUGH if bool(np.all(away <= CLOSE * np.max(sizes))) else Likeness.FAR


def _alike_lists(one: list[Any], other: list[Any], *, words: bool) -> Likeness:
    if len(one) != len(other):
        return Likeness.FAR
    if one and all(type(value) is float for value in (*one, *other)):
        return alike_arrays(np.asarray(one, np.float64), np.asarray(other, np.float64))
    return _least(alike(*pair, words=words) for pair in zip(one, other, strict=True))


def _alike_numbers(one: float, other: float) -> Likeness:
    if one == other:
        return Likeness.EQUAL
    if isinstance(one, int) and isinstance(other, int):
        return Likeness.FAR  # nothing rounds a whole number
    if abs(one - other) <= CLOSE * max(abs(one), abs(other)):
        return Likeness.CLOSE
    return Likeness.ROUGH if abs(one - other) <= _TINY else Likeness.FAR


def _alike_texts(one: str, other: str) -> Likeness:
    """Equal, or but for a unit in the last place of printed numbers of three digits or more."""
    if one == other:
        return Likeness.EQUAL
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return Likeness.FAR
    printed = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return Likeness.ROUGH if all(_same_printed(*pair) for pair in printed) else Likeness.FAR


def _same_printed(one: str, other: str) -> bool:
    if one == other:
        return True
    digits = [re.sub(r"[.,]", "", text.partition("e")[0]) for text in (one, other)]
    same_form = len(one) == len(other) and one.partition("e")[2] == other.partition("e")[2]
    return same_form and len(digits[0].lstrip("0")) >= 3 and abs(int(digits[0]) - int(digits[1])) == 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _least(found: Iterable[Likeness]) -> Likeness:
    least = Likeness.EQUAL
    for one in found:
        least = min(least, one)
        if least is Likeness.FAR:
            break
    return least


def differences(pairs: Mapping[str, Likeness]) -> tuple[list[str], Likeness]:
    """The names of what differs most, and how far."""
    worst = min(pairs.values(), default=Likeness.EQUAL)
    return [name for name, found in pairs.items() if found is worst], worst


MOST_LINES = 10**6
# Members of a report that its caller declared; that which a replay knows of them is compared by itself.
_DECLARED = ("title", "declared", "metrics", "account", "pictures", "model", "replay", "privopt")
# Members in words, which depend on the version of privopt.
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
    found = released_values(report, releases)
    if isinstance(found, bytes):
        return replayed_from(report, found, model)
    return None if found is None else unreplayed(found)


def replayed_from(report: Mapping[str, Any], packed: bytes, model: Numbers | None = None) -> Check:
    """Replay the run of a report from the content of the file of its released values.

    Args:
        report: its JSON values, with an index of the values.
        packed: the content.
        model: of a model's directory.
    """
    index = cast("Mapping[str, Any]", report["replay"])
    if hashlib.sha256(packed).hexdigest() != index.get("sha256"):
        wrong = "nothing was replayed: the released values are not those that the report was written with"
        return Check(REPLAY, Outcome.FAILS, wrong)
    try:
        return _replayed(report, index, packed, model)
    except Unreplayable as error:
        return unreplayed(str(error))


def _replayed(
    report: Mapping[str, Any], index: Mapping[str, Any], packed: bytes, model: Numbers | None
) -> Check:
    recorded, made = _recorded(index, packed, report)
    recipe = index.get("recipe")
    again = rebuilt(cast("Mapping[str, Any]", recipe) if isinstance(recipe, dict) else {})
    wrong = _wrong_plan(again, made, report)
    if wrong is not None:
        return _wrong(report, wrong)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"), in_float64():
            warnings.simplefilter("ignore")
            found, numbers = again.run(recorded)
            pairs = _worst_by_name(_pairs(report, found, numbers, model))
    except ReplayMismatch as error:
        return _wrong(report, f"the releases are not those of its solver: {error}")
    except MemoryError:
        raise Unreplayable("it needs more memory than there is") from None
    except Exception as error:  # whatever a solver makes of values that are not its own
        if "RESOURCE_EXHAUSTED" in str(error):  # how jax says it
            raise Unreplayable("it needs more memory than there is") from None
        return _wrong(report, f"its solver cannot work on the releases ({type(error).__name__})")
    return _verdict(report, pairs, made)


def _verdict(report: Mapping[str, Any], pairs: Mapping[str, Likeness], made: int) -> Check:
    names, worst = differences(pairs)
    if worst is Likeness.FAR:
        return _wrong(report, f"it gives another {', '.join(names)}")
    if not _same_version(report):
        raise Unreplayable("another version of privopt made it, though every number comes out again")
    if worst is Likeness.ROUGH:
        sentence = f"replayed: {made:,} releases; {', '.join(names)} may differ by more than rounding"
        return Check(REPLAY, Outcome.UNCHECKED, sentence)
    how = "bit for bit" if worst is Likeness.EQUAL else f"up to the last digits of {', '.join(names)}"
    sentence = f"replayed: {made:,} releases lead to this report and to its model, {how}"
    return Check(REPLAY, Outcome.HOLDS, sentence)


def _wrong(report: Mapping[str, Any], what: str) -> Check:
    """What a replay by the version that ran refutes; another version may ask, and compute, otherwise.

    Raises:
        Unreplayable: the report is of another version.
    """
    if not _same_version(report):
        raise Unreplayable(f"it was made by another version of privopt, and with this one {what}")
    return Check(REPLAY, Outcome.FAILS, f"the run was replayed, and {what}")


def _recorded(index: Mapping[str, Any], packed: bytes, report: Mapping[str, Any]) -> tuple[Transcript, int]:
    """The transcript to replay, and how many releases it holds."""
    try:
        arrays = safetensors.numpy.load(packed)
        lines = [(str(line["name"]), arrays[str(line["array"])]) for line in index["releases"]]
        relation = Relation.parse(report["guarantee"]["relation"])
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError, AttributeError):
        raise Unreplayable("its index does not describe the file of released values") from None
    if _digest_in(packed) != digest_of_index(index):
        raise Unreplayable("the file of released values was written with another index")
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
    return _filled(empty, lines), made


def _filled(empty: Transcript, lines: Iterable[tuple[str, NDArray[Any]]]) -> Transcript:
    """A transcript that holds names and values alone, to be replayed.

    Args:
        empty: the transcript to fill.
        lines: each name, and the values (lines, count, ...) of as many lines.
    """
    for name, values in lines:
        for released in values:
            count = len(released)
            empty.append(
                Release(
                    name=name,
                    event=NoEvent(),
                    count=count,
                    sensitivity=np.full(count, np.nan),
                    noise="as recorded",
                    scale=None,
                    sampling=EveryUnit(),
                    released=released,
                )
            )
    return empty


def _digest_in(packed: bytes) -> Any:
    """The digest of the index that a file of released values was written with; the file has been read as one before."""
    size = int.from_bytes(packed[:8], "little")
    header: Any = json.loads(packed[8 : 8 + size])
    marks: Any = header.get("__metadata__")
    return cast("dict[str, Any]", marks).get(INDEX) if isinstance(marks, dict) else None


def _wrong_plan(again: Again, made: int, report: Mapping[str, Any]) -> str | None:
    """What is wrong with a plan that does not follow from its recipe, or asks for more than was released.

    Raises:
        Unreplayable: a run of that plan would take too long.
    """
    plan = again.plan
    if alike(json_value(plan.to_dict()), report.get("plan"), words=_same_version(report)) is Likeness.FAR:
        return "its plan is not the one that follows from its recipe"
    if not plan.adaptive and plan.releases > made:
        return "fewer releases were kept than were planned"
    if made * again.parameters > MOST_WORK:
        raise Unreplayable(
            f"its releases times its parameters are more than the {MOST_WORK:,} that are replayed"
        )
    return None


def _same_version(report: Mapping[str, Any]) -> bool:
    return report.get("privopt") == _installed()


@functools.cache
def _installed() -> str:
    return metadata.version("privopt")


def _pairs(
    report: Mapping[str, Any], found: PrivacyReport, numbers: tuple[Any, ...], model: Numbers | None
) -> Iterator[tuple[str, Likeness]]:
    """How far each part of a report, and of a model, is what the replay gives."""
    again, words = found.to_dict(), _same_version(report)
    for name in dict.fromkeys((*again, *report)):
        if name not in _DECLARED and (words or name not in _WORDS):
            if name not in again or name not in report:
                yield name, Likeness.FAR
            else:
                yield name, alike(again[name], report[name], words=words)
    yield "declarations", _alike_declared(again["declared"], report.get("declared"), words=words)
    yield "pictures", _alike_pictures(again["pictures"], report, words=words)
    if words:
        yield "recipe", alike(json_value(again["replay"]), report["replay"])
    if model is None or report.get("model") is not None:
        yield "model", _alike_models(again["model"], report.get("model"), words=words)
    if model is None:
        return
    if model.summary is not None:
        yield "model in the report beside it", _alike_models(again["model"], model.summary, words=words)
    names = ("coef", "intercept", "low", "high")[: len(numbers)]
    if set(model.arrays) != set(names):
        yield "set of arrays", Likeness.FAR
        return
    for name, one in zip(names, numbers, strict=True):
        mine, theirs = np.asarray(one, np.float64), model.arrays[name]
        yield f"array {name!r}", alike_arrays(mine, theirs) if theirs.dtype == mine.dtype else Likeness.FAR
    if not _same_estimator(report, model.estimator):
        yield "class or argument of the model", Likeness.FAR
    if model.versions.get("privopt") != report.get("privopt"):
        yield "version of the model", Likeness.FAR


def _worst_by_name(pairs: Iterable[tuple[str, Likeness]]) -> dict[str, Likeness]:
    worst: dict[str, Likeness] = {}
    for name, found in pairs:
        worst[name] = min(found, worst.get(name, found))
    return worst


def _alike_declared(mine: Sequence[str], theirs: Any, *, words: bool) -> Likeness:
    """Whether a report declares first what follows from the arguments; the rest is the caller's."""
    if not words:
        return Likeness.EQUAL
    stated = cast("list[Any]", theirs) if isinstance(theirs, list) else []
    return alike(list(mine), stated[: len(mine)])


def _alike_pictures(mine: list[Any], report: Mapping[str, Any], *, words: bool) -> Likeness:
    """Pictures of the run; one more shows what an account had left, where one paid."""
    theirs = cast("list[Any]", report.get("pictures"))
    account = report.get("account")
    if account is not None and len(theirs) == len(mine) + 1 and is_burn_down(theirs[-1], account):
        theirs = theirs[:-1]
    return alike(mine, theirs, words=words)


def _alike_models(mine: Any, theirs: Any, *, words: bool) -> Likeness:
    """A model's numbers and names; in which units an encoder made the columns is declared."""
    if not (isinstance(mine, dict) and isinstance(theirs, dict)) or not words:
        return alike(mine, theirs, words=words)
    one, other = cast("dict[str, Any]", mine), cast("dict[str, Any]", theirs)
    said, stated = one.get("meaning"), other.get("meaning")
    if isinstance(stated, str) and isinstance(said, str) and said != stated:
        before, given, after = said.partition(GIVEN)
        fits = given and stated.startswith(before) and stated.endswith(after)
        if fits and is_units_sentence(stated[len(before) : len(stated) - len(after)]):
            other = other | {"meaning": said}
    return alike(one, other)


def _same_estimator(report: Mapping[str, Any], estimator: Mapping[str, Any]) -> bool:
    """Whether the directory's estimator is the one that was replayed."""
    recipe = report["replay"]["recipe"]
    if recipe.get("kind") != ESTIMATOR:
        return False
    given: dict[str, Any] = dict(estimator.get("arguments", {}))
    if given.pop("random_state", 0) is not None and not report["guarantee"]["seeded"]:
        return False
    sizes = {"class": "estimator", "arguments": "arguments", "n": "n", "sparse": "sparse"}
    named = {name: name for name in ("labels", "names") if name in estimator}
    if set(estimator) != {*sizes, *named}:
        return False
    stated = without_tuples({**estimator, "arguments": given})
    asked = without_tuples({name: recipe[known] for name, known in (sizes | named).items()})
    return layout_free(stated) == layout_free(asked)


# ------------------------------------------------------------------------------------------------------------
# A replay in a process of its own, which is ended when it takes more processor time or memory than it may.
# A recipe comes from anywhere, and compiled code answers to no signal handler: only the system can end it. The parent
# needs none of what a replay imports.


MOST_MEMORY = 640 * 2**20  # bytes, beyond what the imports took: a gigabyte in all
MODULE = "privopt.replays.check"  # what the child runs
_PATIENCE = 20  # times as long by the clock as by the processor, on a busy machine
_IMPORTS = 600.0  # seconds by the clock


def within(seconds: float) -> Replay:
    """A replay of at most so much processor time, counted from now on; beyond it, nothing counts as replayed."""
    return functools.partial(_replayed_here, seconds, time.process_time())


def _replayed_here(
    seconds: float, begun: float, report: Mapping[str, Any], releases: Path, model: Numbers | None = None
) -> Check | None:
    packed = released_values(report, releases)
    if not isinstance(packed, bytes):
        return None if packed is None else unreplayed(packed)
    arrays = b"" if model is None else safetensors.numpy.save(dict(model.arrays))
    left = seconds - (time.process_time() - begun)
    content = {
        "seconds": left,
        "report": report,
        "model": None if model is None else model._replace(arrays={})._asdict(),
        "sizes": [len(packed), len(arrays)],
    }
    if left < 1:
        return _ended(seconds)
    asked = json.dumps(content).encode() + b"\n" + packed + arrays
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", MODULE],
            input=asked,
            capture_output=True,
            timeout=_IMPORTS + _PATIENCE * seconds,
            check=False,
        )
        said = json.loads(done.stdout.decode()) if done.returncode == 0 else None
        return Check(REPLAY, Outcome(said["outcome"]), str(said["sentence"])) if said else _ended(seconds)
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return _ended(seconds)


def _ended(seconds: float) -> Check:
    return unreplayed(
        f"it takes more than {seconds:g} s of processor time, or more memory than is given to it (--work)"
    )


def main() -> None:
    """Answer one request, on the standard streams."""
    content = cast("dict[str, Any]", json.loads(sys.stdin.buffer.readline()))
    of_packed, of_arrays = content["sizes"]
    packed = sys.stdin.buffer.read(of_packed)
    arrays = sys.stdin.buffer.read(of_arrays)

    model = content["model"]
    numbers = None
    if model is not None:
        loaded = {name: np.asarray(one) for name, one in safetensors.numpy.load(arrays).items()}
        numbers = Numbers(**(model | {"arrays": loaded}))
    _limit(content["seconds"])
    check = replayed_from(content["report"], packed, numbers)
    sys.stdout.write(json.dumps({"outcome": check.outcome.value, "sentence": check.sentence}))


def _limit(seconds: float) -> None:
    """Have the system end this process after so much more processor time, and allow it so much more memory."""
    try:
        import resource
    except ImportError:  # Windows: the parent's clock alone
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    status = Path("/proc/self/status")
    if status.exists():  # of addresses, threads reserve far more than they use
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
        most = int(line.split()[1]) * 1024 + MOST_MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    main()
