"""The verdict on a report."""

import enum
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from privopt.verification.agreement import checks_of, guess
from privopt.verification.checks import NOISE, REPLAY, Check, Outcome, held, priced
from privopt.verification.price import RELATIONS, NotChecked, price
from privopt.verification.tree import Fields, Malformed, layout_free, limited_work, ways_through

REPORT_FORMAT = "privopt-report"
FORMATS = {REPORT_FORMAT: (1, 2), "privopt-reports": (1, 2)}
MOST_RUNS = 1000
_OF_RUNS = {"format", "format_version", "title", "joint_price", "summary", "runs"}
UNITS = ("record", "user", "unit")  # the last of a run by hand, which does not say
_LEAST_SHARE = 0.05  # of the claimed epsilon, below which a grid tells nothing of a point of the curve
_CLOSED_POINTS = 100  # of a closed curve, that are priced a second time, about
_CURVE_POINTS = 5  # of a curve, that are priced a second time
_GUESS_CLOSE = 1e-3  # probability, within which a grid's best guess is told
_NEAR_ZERO = 1e-3  # of the claimed epsilon: the least that a guess is priced at on a grid
NOT_LOOKED_AT = (
    "A report holds no data: that the released values came from data and from secret noise, and that each query has "
    "the sensitivity it states, rests on the program that ran (its contract tests, `privopt audit-map`)."
)
# A verdict does not wait for these; where they fail it is refuted.
_WITHOUT_EFFECT = ("bounds", REPLAY, "signature")


class Finding(enum.Enum):
    """A verdict; only the first says that the report and the model follow from the released values."""

    VERIFIED = "VERIFIED: the guarantee, the report and the model follow from the released values."
    PRICED = (
        "PRICED: the guarantee follows from the recorded events. The run was not replayed: that the rest of the "
        "report, and a model, follow from it was not checked."
    )
    NOT_PRIVATE = (
        "NOT PRIVATE: the report agrees with itself, and says itself that the guarantee does not hold."
    )
    INCOMPLETE = "NOT VERIFIED: nothing contradicts the guarantee, but not all of it could be checked."
    UNTRUSTED = "NOT TRUSTED: it is not what a trusted key has signed."
    REFUTED = "REFUTED: the report contradicts itself."


@dataclass(frozen=True)
class Verdict:
    """What came of verifying a report.

    Attributes:
        title: the report's own heading.
        checks: every check in order.
        private: whether the report claims a guarantee that holds.
        digest: SHA-256 of the report's content, whatever its layout.
        claim: what the report says it guarantees.
        declared: what the caller declared, which no check looks at.
    """

    title: str
    checks: tuple[Check, ...]
    private: bool
    digest: str
    claim: str
    declared: tuple[str, ...] = ()

    @property
    def finding(self) -> Finding:
        """The verdict in a sentence."""
        outcomes = {check.outcome for check in self.checks if check.subject not in _WITHOUT_EFFECT}
        if Outcome.FAILS in outcomes or self._fails("bounds") or self._fails(REPLAY):
            return Finding.REFUTED
        if self._fails("signature"):
            return Finding.UNTRUSTED
        if not self.private:
            return Finding.NOT_PRIVATE
        replayed = any(check.subject == REPLAY and check.outcome is Outcome.HOLDS for check in self.checks)
        # A replay states every sensitivity and every scale again, and where there is none, as at the start of a stream.
        without = (NOISE,) if replayed else ()
        unchecked = {check.subject for check in self.checks if check.outcome is Outcome.UNCHECKED}
        if unchecked - {*_WITHOUT_EFFECT, *without}:
            return Finding.INCOMPLETE
        return Finding.VERIFIED if replayed else Finding.PRICED

    def _fails(self, subject: str) -> bool:
        return any(check.subject == subject and check.outcome is Outcome.FAILS for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return {
            "title": self.title,
            "verdict": self.finding.name.lower().replace("_", "-"),
            "sentence": self.finding.value,
            "claim": self.claim,
            "declared_not_checked": list(self.declared),
            "digest": self.digest,
            "checks": [
                {"subject": check.subject, "outcome": check.outcome.value, "sentence": check.sentence}
                for check in self.checks
            ],
            "not_looked_at": NOT_LOOKED_AT,
        }


def verdicts_on(document: dict[str, Any]) -> list[Verdict]:
    """Verify a report, or each run of several in one file.

    Args:
        document: JSON values from `privopt.untrusted.read_json`.

    Raises:
        Malformed: it is no report, or one of a version that is not known here.
    """
    fields = Fields(document, "report")
    kind = fields.text("format")
    if kind not in FORMATS:
        raise Malformed("the file is no report of privopt.")
    version = fields.whole("format_version", 1, 10**6)
    if version not in FORMATS[kind]:
        raise Malformed(
            f"the report has format version {version}, which this privopt does not know: update it."
        )
    with limited_work():
        return _verdicts(fields, kind)


def _verdicts(fields: Fields, kind: str) -> list[Verdict]:
    if kind == REPORT_FORMAT:
        return [_verdict(fields)]
    if set(fields.values) - _OF_RUNS:
        raise Malformed("the file has a member that a report of several runs has not.")
    runs = fields.each("runs")
    if not runs:
        raise Malformed("the file holds no run.")
    if len(runs) > MOST_RUNS:
        raise Malformed(
            f"the file holds {len(runs):,} runs, more than the {MOST_RUNS:,} that are verified at once."
        )
    verdicts = [_verdict(run) for run in runs]
    return [*verdicts, *_joint(fields, runs)]


def digest_of(document: Any) -> str:
    """SHA-256 of JSON values in a form that does not depend on layout or on the order of members."""
    return hashlib.sha256(layout_free(document)).hexdigest()


def _verdict(report: Fields) -> Verdict:
    require_shape(report.values, complete=report.whole("format_version", 1, 10**6) > 1)
    guarantee, event = report.fields("guarantee"), report.fields("event")
    epsilon, delta = guarantee.number("epsilon", 0.0), guarantee.number("delta", 0.0, 1.0)
    relation = guarantee.text("relation")
    if relation not in RELATIONS:
        raise Malformed(f"{guarantee.place}.relation must be one of {', '.join(RELATIONS)}.")
    if guarantee.text("unit") not in UNITS:
        raise Malformed(f"{guarantee.place}.unit must be one of {', '.join(UNITS)}.")
    checks = [*checks_of(report), *_prices(report, event, relation, epsilon, delta)]
    sure = guarantee.truth("holds")
    return Verdict(
        title=report.text("title"),
        checks=tuple(checks),
        private=sure and math.isfinite(epsilon),
        digest=digest_of(report.values),
        claim=f"epsilon {epsilon:.6g} at delta {delta:.4g}, {relation}" + ("" if sure else ", not private"),
        declared=_declared(report),
    )


def _declared(report: Fields) -> tuple[str, ...]:
    """What the caller of a run declared, which follows from no event and from no released value."""
    said = ["title"]
    if "declared" in report:
        said.append(f"{len(report.items('declared'))} sentences on what is public")
    if report.values.get("metrics"):
        said.append(f"metrics ({', '.join(report.fields('metrics').values)})")
    if "account" in report:
        said.append(f"who paid (payment {report.fields('account').raw('payment')})")
    if "model" in report:
        said.append("names and units of the model's columns")
    return tuple(said)


def _prices(report: Fields, event: Fields, relation: str, epsilon: float, delta: float) -> Iterator[Check]:
    if not math.isfinite(epsilon):
        yield held("price", True, "no finite epsilon is claimed", "")
        return
    yield priced("price", event, relation, epsilon, delta)
    points = [(p.number("epsilon", 0.0), p.number("delta", 0.0, 1.0)) for p in report.each("curve")]
    closed = all(not way.leaves for way in ways_through(event)[0])
    step = max(1, len(points) // (_CLOSED_POINTS if closed else _CURVE_POINTS))
    telling = min(points, key=lambda point: guess(*point), default=None)  # what the best guess follows from
    looked = points[::step]
    if not closed:
        looked = [point for point in looked if point[0] > _LEAST_SHARE * epsilon]
    elif telling is not None and telling not in looked:
        looked.append(telling)
    answers = [priced("curve", event, relation, *point) for point in looked]
    bad = next((check for check in answers if check.outcome is not Outcome.HOLDS), None)
    if bad is not None:
        yield bad
    elif answers:
        said = f"{len(answers)} of {len(points)} points of the curve hold by the second accountant"
        yield Check("curve", Outcome.HOLDS, said)
    if telling is not None and not closed:
        yield _guessed(event, relation, telling, epsilon)


def _guessed(event: Fields, relation: str, point: tuple[float, float], claimed: float) -> Check:
    """Whether the point of a curve that the best guess follows from is no better than the second accountant's there."""
    epsilon, stated = max(point[0], _NEAR_ZERO * claimed), guess(*point)
    try:
        found = guess(epsilon, price(event, relation, epsilon, max(point[1], 1e-12)).delta)
    except NotChecked as error:
        return Check("guess", Outcome.UNCHECKED, f"the best guess was not found a second time: {error}")
    if found <= stated + _GUESS_CLOSE:
        return Check(
            "guess", Outcome.HOLDS, f"the best guess, right with probability {stated:.4g}, is confirmed"
        )
    sentence = f"the best guess may be right with probability {found:.4g}, where the curve says {stated:.4g}"
    return Check("guess", Outcome.UNCHECKED, sentence)


def _joint(fields: Fields, runs: list[Fields]) -> Iterator[Verdict]:
    """The price of all runs together, where one is stated."""
    if "joint_price" not in fields or not runs:
        return
    stated = fields.fields("joint_price")
    epsilon, delta = stated.number("epsilon", 0.0), stated.number("delta", 0.0, 1.0)
    guarantees = [run.fields("guarantee") for run in runs]
    relations = {guarantee.text("relation") for guarantee in guarantees}
    together = Fields({"event": "Sequence", "of": [run.raw("event") for run in runs]}, "report.runs")
    if not math.isfinite(epsilon):
        checks = (held("price", True, "no finite epsilon is claimed", ""),)
    elif len(relations) > 1:
        checks = (Check("price", Outcome.FAILS, "runs under different relations have no joint price"),)
    elif len({guarantee.text("unit") for guarantee in guarantees}) > 1:
        checks = (Check("price", Outcome.FAILS, "runs that protect different units have no joint price"),)
    else:
        checks = (priced("price", together, relations.pop(), epsilon, delta),)
    yield Verdict(
        title="All runs together",
        checks=checks,
        private=math.isfinite(epsilon) and all(guarantee.truth("holds") for guarantee in guarantees),
        digest=digest_of(fields.values),
        claim=f"epsilon {epsilon:.6g} at delta {delta:.4g}",
    )


# ---- Which members a report has, and of which type each is: `docs/report.schema.json`, as far as types go --
# A member that is missing, surplus or of another type is refused, whether or not a check reads it: whoever reads the
# report after a verdict may.
#
# A text names a type. [x] is a list of x, (x, y) either of them, a mapping an object with these members, of which those
# that end in "?" may be missing; "*" stands for members of any other name.
_NULL_OR_NUMBER, _NULL_OR_NUMBERS = ("null", "number"), ("null", ["number"])
_FOUND = {"*": {"value": ("null", "number", "text", "truth", ["any"]), "meaning": "text"}}
_LOOSE = {"*": ("null", "number", "text", "truth")}
_RELEASE = {
    "name": "text",
    "count": "whole",
    "events": [
        {"event": "any", "count": "whole", "sensitivity?": _NULL_OR_NUMBERS, "scale?": _NULL_OR_NUMBERS}
    ],
    "noise": "text",
    "sampling": {"kind": "text", "rate": "number", "batch?": "whole", "n?": "whole"},
    "sensitivity": _NULL_OR_NUMBERS,
    "scale": _NULL_OR_NUMBERS,
    "schedule": [["number"]],
    "filter": ("null", {"number": "whole", "event": "any", "used": _NULL_OR_NUMBER, "depth?": "whole"}),
    "exact": "truth",
    "blocks?": [{"event": "whole", "of": [["whole"]], "count": "whole"}],
}
_PUBLIC = {
    "n": "whole",
    "d": "whole",
    "relation": "text",
    "row_bound": "number",
    "entry_bound": _NULL_OR_NUMBER,
    "unit": "text",
    "records_per_unit": "whole",
    "weighting": "text",
    "typical_records": "number",
    "sparse": "truth",
    "outputs": "whole",
    "drawn": "truth",
    "levels": ["whole"],
    "storage?": "text",
    "row_entries?": ("null", "whole"),
}
_PLAN = {
    "solver": "text",
    "settings": _LOOSE,
    "event": "any",
    "budget": {"epsilon": "number", "delta": "number"},
    "public": _PUBLIC,
    "epsilon": "number",
    "delta": "number",
    "relation": "text",
    "unit": "text",
    "n": "whole",
    "d": "whole",
    "releases": "whole",
    "passes": "number",
    "adaptive": "truth",
    "memory_bytes": "number",
    "seconds": "number",
    "predicted_excess": _NULL_OR_NUMBER,
    "predicted_range": _NULL_OR_NUMBERS,
    "prediction": "text",
    "bound": ("null", {"value": "number", "probability": _NULL_OR_NUMBER, "condition": "text", "of": "text"}),
    "indicators": _FOUND,
    "notices": ["text"],
    "reason": "text",
    "measure": "text",
    "evaluations": "number",
    "black_box": ["text"],
}
_REPLAY = {
    "obstacle": "null",
    "recipe": {"kind": "text", "*": "any"},
    "eager": "truth",
    "exact": "truth",
    "releases": [{"name": "text", "array": "text"}],
    "sha256": "text",
}
_SERIES = {"name": "text", "xs": ["number"], "ys": ["number"], "errors": ["number"]}
REPORT: Mapping[str, Any] = {
    "format": "text",
    "format_version": "whole",
    "privopt": "text",
    "title": "text",
    "guarantee": {
        "epsilon": "number",
        "delta": "number",
        "relation": "text",
        "unit": "text",
        "n": ("null", "whole"),
        "holds": "truth",
        "seeded": "truth",
        "noise": "text",
        "best_guess": "number",
    },
    "summary": ["text"],
    "not_covered": [{"title": "text", "text": "text"}],
    "status": "text",
    "curve": [{"delta": "number", "epsilon": "number"}],
    "event": "any",
    "releases": [_RELEASE],
    "plan": ("null", _PLAN),
    "findings": _FOUND,
    "pictures": [
        {
            "title": "text",
            "caption": "text",
            "x": "text",
            "y": "text",
            "categories": ["text"],
            "series": [_SERIES],
        }
    ],
    "utility_assumptions": ["text"],
    "declared": ["text"],
    "divided_rows": "truth",
    "typical_length?": _NULL_OR_NUMBER,  # of older reports
    "selection": ("null", {"sentence": "text", "private": "truth"}),
    "metrics": _LOOSE,
    "account": (
        "null",
        {
            "data_set": "text",
            "payment": "whole",
            "epsilon": "number",
            "delta": "number",
            "used": "number",
            "remaining": "number",
            "left": "number",
        },
    ),
    "notices": ["text"],
    "model": (
        "null",
        {
            "name": "text",
            "features": ["text"],
            "coefficients": [["number"]],
            "intercepts": ["number"],
            "outputs": ["text"],
            "meaning": "text",
            "details": {"*": "any"},
        },
    ),
    "replay?": ("null", {"obstacle": "text"}, _REPLAY),
}
_NUMBERS = ("infinity", "-infinity", "nan")


def require_shape(document: Any, *, complete: bool) -> None:
    """Refuse a report with a member that is of another type, or of no name that is known.

    Args:
        document: its JSON values.
        complete: whether members that are missing are refused too, as of reports since version 2.

    Raises:
        Malformed: it says where.
    """
    place = _wrong(document, REPORT, "report", complete)
    if place is not None:
        raise Malformed(f"{place[:200]} is not what a report has there.")


def _wrong(value: Any, shape: Any, place: str, complete: bool) -> str | None:
    """Where a value is not of a shape; None if it is everywhere."""
    if isinstance(shape, tuple):
        found = [_wrong(value, one, place, complete) for one in cast("tuple[Any, ...]", shape)]
        return None if None in found else max((one or place for one in found), key=len)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return place
        inner = cast("list[Any]", shape)[0]
        for index, one in enumerate(cast("list[Any]", value)):
            found_at = _wrong(one, inner, f"{place}[{index}]", complete)
            if found_at is not None:
                return found_at
        return None
    if isinstance(shape, Mapping):
        return _wrong_member(value, cast("Mapping[str, Any]", shape), place, complete)
    return None if _is_of(value, shape) else place


def _wrong_member(value: Any, shape: Mapping[str, Any], place: str, complete: bool) -> str | None:
    if not isinstance(value, dict):
        return place
    members = cast("dict[str, Any]", value)
    for name in shape if complete else ():
        if name[-1] not in "?*" and name not in members:
            return f"{place}.{name}"
    for name, one in members.items():
        inner = shape.get(name, shape.get(f"{name}?", shape.get("*")))
        where = f"{place}.{name if inner is not None else '(a member of another name)'}"
        if inner is None:
            return where
        found_at = _wrong(one, inner, where, complete)
        if found_at is not None:
            return found_at
    return None


def _is_of(value: Any, kind: str) -> bool:
    if kind == "any":
        return True
    if kind == "null":
        return value is None
    if kind == "text":
        return isinstance(value, str)
    if kind == "truth":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (kind == "number" and (isinstance(value, float) or value in _NUMBERS))
