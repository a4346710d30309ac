"""What a report says in sentences: for somebody who is not an expert, and true for somebody who is."""

import math
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from privopt.ledger.events import SelectionsEvent
from privopt.planning.goldstein_certificate import IN_SCALES
from privopt.planning.plan import IMPROVEMENT_ENDS, WARNINGS, Finding, promise
from privopt.public import Relation
from privopt.report import words
from privopt.report.facts import ReportFacts, sure
from privopt.status import Status


class Point(NamedTuple):
    """A short title and a sentence."""

    title: str
    text: str


def banners(report: ReportFacts) -> list[Point]:
    """What must be seen before anything else."""
    found: list[Point] = []
    if report.seeded:
        found.append(
            Point(
                "Seeded: not private",
                "The noise, or the choice of the records that count, was drawn from a seed, so that it can be "
                "repeated. Whoever knows or guesses the seed can subtract the noise and see the exact answers, or "
                "knows whose records were used. The numbers below are what the same run would "
                "promise with secret noise. Do not publish this result; run it again without a seed.",
            )
        )
    if math.isinf(report.epsilon):
        found.append(
            Point(
                "Noise off: not private",
                "Epsilon is infinite: nothing was protected. Such a run is for comparison and testing only.",
            )
        )
    if report.selection is not None and not report.selection.private:
        found.append(Point(report.selection.title, report.selection.sentence))
    return found


def headline(report: ReportFacts) -> str:
    """The report in one sentence."""
    if math.isinf(report.epsilon):
        return "This run is not private: no noise was added."
    if report.seeded:
        return "This run is not private: its random draws can be repeated from a seed."
    strength = f"(ε, δ) = ({words.pretty(report.epsilon)}, {words.pretty(report.delta, 3)})"
    if report.selection is not None and not report.selection.private:
        return (
            f"This fit protects every {report.unit} with {strength}, but the run as a whole is not private: "
            f"{report.selection.title.lower()}."
        )
    every = {"user": "Every user, with everything they contributed,", "record": "Every record"}
    return f"{every.get(report.unit, 'Every unit')} is protected: {strength}."


def protection(report: ReportFacts) -> str:
    """What is protected, for whom and against whom."""
    unit = report.unit
    who = {"user": "each user", "record": "each single record, that is one row of the data,"}.get(
        report.unit, "each single privacy unit"
    )
    if report.n is None:
        among = ""
    elif report.relation is Relation.REPLACE_ONE:
        among = f" among {report.n:,}"
    else:
        among = f" among up to {report.n:,}"
    if report.unit == "user" and report.plan is not None:
        among += f": {promise(report.plan.public)}"
    if report.relation is Relation.REPLACE_ONE:
        secret = (
            f"whether the data of a given {unit} are real or were replaced by something entirely different"
        )
    else:
        secret = f"whether a given {unit} is in the data at all"
    starts = (
        "This run protects" if report.is_noised else "With secret noise switched on, a run like this protects"
    )
    return (
        f"{starts} {who}{among}. This limits how well anybody can tell, from everything that was published, {secret}. "
        f"The limit holds even for somebody who knows every other {unit}, the method and all its settings, and who has "
        "unlimited computing power."
    )


def strength(report: ReportFacts) -> str:
    """How strong the guarantee is, as the success of a guess."""
    if math.isinf(report.epsilon):
        return "There was no noise, so nothing limits what can be learned about anybody."
    if report.epsilon == 0:
        return "Nothing that depends on the data was published: guessing stays blind."
    unit = report.unit
    versions = (
        f"which of two versions of a {unit} is the true one"
        if report.relation is Relation.REPLACE_ONE
        else f"whether a {unit} is in the data"
    )
    best = words.percent(report.curve.best_guess)
    certain = words.percent(sure(report.epsilon))
    surprise = report.curve.surprise(report.epsilon) if report.delta > 0 else 0.0
    condition = "With secret noise, and only then: s" if report.seeded else "S"
    text = (
        f"{condition}uppose that such an attacker must guess {versions}, and finds both equally likely "
        f"beforehand. After reading everything, their best guess is right at most {best} of the time (50 % is blind "
        "guessing, 100 % no protection). "
    )
    if surprise < 0.1:
        how_often = f"with a probability of at most {words.chance(surprise)}" if surprise > 0 else "never"
        text += f"They come to be more than {certain} sure, and right about it, {how_often}. "
    return text + (
        "Smaller ε means stronger protection; as a rule of thumb, ε up to 1 is strong and ε above 10 says little by "
        "itself."
    )


def guess(report: ReportFacts) -> str:
    """The strength in one short sentence."""
    if not report.is_noised:
        return ""
    best = words.percent(report.curve.best_guess)
    return f"A 50:50 guess about one {report.unit} becomes right at most {best} of the time."


def price(report: ReportFacts) -> str:
    """What was released, what it cost and what was predicted of it."""
    plan = report.plan
    noisy = math.isfinite(report.epsilon) and not report.leaves(SelectionsEvent)
    answers = words.several(report.count, "noisy answer" if noisy else "answer")
    passes = "" if plan is None else f" in {words.several_or(plan.passes, 'pass')} over the data"
    if plan is not None and _went_by_itself(report):
        passes = f", of at most {plan.releases:,} planned"
    verb = "was" if report.count == 1 else "were"
    text = f"{answers[:1].upper()}{answers[1:]} {verb} computed{passes}"
    if report.budget is not None and report.budget.is_private:
        text += f", within the budget of ε = {words.pretty(report.budget.epsilon)} that was set beforehand. "
    else:
        text += ". "
    if plan is not None and plan.predicted_excess is not None:
        amount = plan.predicted_amount(partial(words.pretty, digits=2))
        what = f"the training objective ends {amount} above the best value without privacy"
        if plan.measure != "excess":
            what = f"a {plan.measure} of {amount}"
        text += f"The prediction made before the data was read: {what}"
        text += f" ({plan.prediction.rstrip('.')}). " if plan.prediction else ". "
    if plan is not None and plan.bound is not None:
        text += f"The bound known before the data was read: {plan.bound.sentence}. "
    return text + (CHOSEN_STEPS if _ended_early(report) else report.status)


def filters(report: ReportFacts) -> list[str]:
    """What was paid for releases that were chosen as the run went, in sentences."""
    found: list[str] = []
    uses = {group.filter.number: group.filter for group in report.releases if group.filter is not None}
    for use in uses.values():
        count = sum(group.count for group in report.releases if group.filter == use)
        found.append(
            f"{words.several(count, 'answer')} {'was' if count == 1 else 'were'} {use.sentence}. The guarantee is "
            "that of the whole filter: what was left is not given back."
        )
    return found


def findings(report: ReportFacts) -> list[tuple[str, str, str]]:
    """What the releases show about the result: name, number, meaning."""
    return [
        _row(name, found)
        for name, found in report.findings.items()
        if name not in (*WARNINGS, *IMPROVEMENT_ENDS)
    ]


def expectations(report: ReportFacts) -> list[tuple[str, str, str]]:
    """What was known of the result before the data was read: name, number, meaning."""
    plan = report.plan
    if plan is None:
        return []
    rows = [_row(name, found) for name, found in plan.indicators.items()]
    if plan.bound is not None:
        rows.insert(0, ("Bound", words.pretty(plan.bound.value, 3), plan.bound.sentence))
    elif rows:
        rows.insert(0, ("Bound", "none", "no bound on the excess is known for this solver and problem"))
    return rows


def _row(name: str, found: Finding) -> tuple[str, str, str]:
    return words.titled(name), words.pretty(found.value, 3), found.meaning


def _ended_early(report: ReportFacts) -> bool:
    """Whether a run that chose its own steps took all of them, fewer than the most there could be."""
    fewer = report.plan is not None and report.count < report.plan.releases
    return fewer and _went_by_itself(report) and report.status == Status.FINISHED.value


def _went_by_itself(report: ReportFacts) -> bool:
    """Whether the number of releases was chosen as the run went."""
    adaptive = report.plan is not None and report.plan.adaptive
    return adaptive or any(group.filter is not None for group in report.releases)


def noise_source(report: ReportFacts) -> str:
    """Where the randomness came from, and which noise is exact."""
    if math.isinf(report.epsilon):
        return "switched off"
    if report.seeded:
        return f"{arithmetic(report)}; drawn from a seed: reproducible, not private"
    return f"{arithmetic(report)}; operating-system entropy through a cryptographic generator"


def arithmetic(report: ReportFacts) -> str:
    """Whether noise was added as integers, drawn exactly, or in floating point, and where."""
    floats = [group.label for group in report.releases if not group.exact]
    if not floats:
        return "exact, integers"
    if len(floats) == len(report.releases):
        return "64-bit floating point"
    return f"exact, integers, but not for: {', '.join(dict.fromkeys(floats))}"


def not_covered(report: ReportFacts) -> list[Point]:
    """The limits of the guarantee."""
    unit = report.unit
    points = [
        Point(
            "Other uses of the same data",
            "This report is about this run. Every further model, table or statistic from the same data adds to the "
            "price; only runs that share one privopt Account are added up for you.",
        ),
        Point(
            "Choices made by looking at the data",
            "Bounds, levels, scaling, features or settings that were learned or picked on the same data outside this "
            "run reveal something about it, and so do test scores computed on it. This report cannot know of them: it "
            "recognises the searches of scikit-learn that docs/sharp-edges.md lists, but no loop of your own.",
        ),
        Point(
            "What was declared public",
            "The number of "
            + unit
            + "s, bounds, classes and settings listed below are treated as known to everybody.",
        ),
    ]
    if report.unit == "user":
        points.append(
            Point(
                "People with several keys",
                "Whose a record is was declared by the user keys. Somebody who appears under two keys has two shares "
                "in the result and about twice the ε.",
            )
        )
    if report.plan is not None and report.plan.black_box:
        points.append(BLACK_BOX)
    if report.unit == "record":
        points.append(
            Point(
                "People with several records",
                "The promise is for one row. Somebody who owns k rows has about k times the ε, at a larger δ; "
                "protect them whole by giving user ids as groups.",
            )
        )
    return [
        *points,
        Point(
            "What is true of everybody",
            "A model reveals general patterns. They may say something about a person whether or not "
            "their data were used.",
        ),
        Point(
            "Floating point and the machine",
            _of_the_noise(report)
            + " Running time, memory use and access to this computer are not covered either.",
        ),
        Point(
            "Seeds",
            "A run with a fixed seed is not private. "
            + (
                "Random draws of this run came from a seed."
                if report.seeded
                else "The noise here came from secret randomness."
            ),
        ),
    ]


def _of_the_noise(report: ReportFacts) -> str:
    """What the arithmetic of the noise leaves open."""
    if all(group.exact for group in report.releases):
        return (
            "Noise was drawn exactly and added to whole numbers, so the last digits of an answer say nothing more. "
            "What is computed before that is 64-bit arithmetic; the sensitivities of sums allow for its rounding."
        )
    return (
        "The proof is for real numbers; noise that is not exact is drawn as 64-bit floats, whose gaps an attacker "
        "might exploit in theory."
    )


BLACK_BOX = Point(
    "The loss function itself",
    "The loss was a program of the user's own, known by its values only. How long it takes for a record, and what it "
    "prints, writes or remembers of a record by itself, is not protected. The guarantee rests on its being a "
    "function of the parameters and of one record: one that keeps something from record to record, or draws from a "
    "generator that records share, lets a record move what others contribute, and no clip bounds that.",
)
CHOSEN_STEPS = "The run chose the number of its steps as it went, and took all of them."
_SETTINGS = {
    "clip": "Clip {0}: a longer contribution is shortened to this length. The shortening itself is enforced; if many "
    "contributions are longer, the answer is biased.",
    "gradient_clip": "Gradient clip {0}: longer gradients are shortened to this length, which may bias the answer.",
    "step_size": "Step size {0}: set from public numbers alone; too large a step may diverge.",
    "steps": "{0} steps are taken to be enough; they were chosen to balance progress against noise.",
    "momentum": "Momentum {0}: a fixed number, not tuned on the data.",
    "curvature": "Curvature {0} of one record's loss: taken as known; where it is larger, a step may be too long.",
    "difference_clip": "Clip {0} of gradient differences, over curvature times step: longer ones are shortened, which "
    "may bias the answer.",
    "change_clip": "Clip {0} of gradient changes: longer ones are shortened, which may bias the answer.",
    "inner.steps": "{0} steps are taken there; they were chosen to balance progress against noise.",
}
_SHARES = {  # what a share of the budget buys, by a setting that stands beside it
    "coarse": "A share of {0} of the budget (of mu^2) buys the second moment of the rows, so that the rest is spent in "
    "coordinates where the features look alike; the clip there follows from what was released.",
    "longest": "A share of {0} of the budget (of mu^2) buys the clip, a length that most contributions at the start do "
    "not exceed; longer ones are shortened to it, then and later, which may bias the answer.",
    "candidates": "A share of {0} of the budget (of mu^2) buys the choice of a start among public points.",
}


def _rows(report: ReportFacts, longest: str) -> str:
    """What became of the rows, in a sentence."""
    if not report.divided_rows:
        return f"Rows longer than {longest} (l2 norm) are shortened to it: if many are, the model sees distorted rows."
    return (
        "Every row was divided by its length (l2 norm), and predictions do the same: the model is worse where a "
        "score should grow with the length of a record."
    )


def utility_assumptions(report: ReportFacts) -> list[str]:
    """What only the quality of the answer rests on."""
    if report.plan is None:
        return ["The solver was run by hand; its settings were not recorded."]
    settings = report.plan.settings
    sentences = [
        text.format(words.pretty(value))
        for key, text in _SETTINGS.items()
        if isinstance(value := settings.get(key), int | float) and math.isfinite(value)
    ]
    sentences += [
        text.format(words.pretty(settings["share"]))
        for key, text in _SHARES.items()
        if {key, "share"} <= settings.keys()
    ]
    if settings.get("level_share"):
        sentences.append(
            f"A share of {words.pretty(settings['level_share'])} of the budget (of mu^2) buys how large the counts "
            "are: the clip and the step size that were planned are in units of their mean, and the run set its own "
            "once that was released."
        )
    sentences.append(_rows(report, words.pretty(report.plan.public.row_bound)))
    if report.plan.predicted_excess is not None:
        amount = report.plan.predicted_amount(partial(words.pretty, digits=2))
        sentences.append(
            f"The predicted {report.plan.measure}, {amount}, is an estimate from public numbers, not a promise."
        )
    bound = report.plan.bound
    if bound is not None and bound.condition:
        condition = bound.condition.strip().removeprefix("if ").rstrip(".")
        sentences.append(f"The bound on the {bound.of} rests on this: {condition}.")
    if settings.get("growth") not in (None, "None"):
        sentences.append(
            f"How fast the objective grows, {settings['growth']}, was declared and not checked; where it is wrong, so "
            "are the bounds and schedules that follow from it."
        )
    return sentences


def one_line(report: ReportFacts) -> str:
    """What is protected, for a terminal."""
    among = "" if report.n is None else f", among {report.n:,} {report.unit}s"
    of_each = ""
    if report.unit == "user" and report.plan is not None:
        of_each = f": {promise(report.plan.public)}"
    return f"one {report.unit}{among}{of_each}"


# ---- What a certificate of stationarity means, in words: for losses of which no minimum can be promised ----


CERTIFICATE, RADIUS, APPROXIMATE = "certificate", "certificate_radius", "certificate_approximate"
CERTIFICATES = (CERTIFICATE, APPROXIMATE)


def in_words(report: ReportFacts) -> str:
    """What the run's certificate says and does not say; nothing of a run without one."""
    found = _numbers(report.findings)
    if found is None:
        return ""
    slope, radius, proved = found
    improved = "objective" if _says(report.findings, "improves the objective") else "mean loss"
    measured = f" ({IN_SCALES})" if _says(report.findings, IN_SCALES) else ""
    sure = "shows" if proved else "suggests, without proof,"
    return (
        "Of a loss that need be neither smooth nor convex nobody can promise the least value: what can be shown of a "
        f"result is how little is left to gain around it. The certificate {sure} that no single direction improves the "
        f"{improved} faster than {words.pretty(slope, 3)} for each unit of length everywhere within "
        f"{words.pretty(radius, 3)} of the result{measured}. A valley passes this test, and so does a plateau or the "
        "ridge between two valleys: it does not say that the loss is low. Which mean it is about, of gradients that "
        "were shortened or of a smoothed loss, stands beside the number below."
    )


def for_experts(report: ReportFacts) -> str:
    """The certificate in the terms of the field; nothing of a run without one."""
    found = _numbers(report.findings)
    if found is None:
        return ""
    slope, radius, proved = found
    how = "" if proved else ", up to sampling error that is not covered"
    return (
        f"({words.pretty(radius, 3)}, {words.pretty(slope, 3)})-Goldstein stationarity{how}: the convex hull of the "
        f"mean clipped gradients within {words.pretty(radius, 3)} of the result has a vector of length at most "
        f"{words.pretty(slope, 3)}. It is arithmetic on releases; its probability is over their noise"
    )


def _says(findings: Mapping[str, Finding], what: str) -> bool:
    """Whether the certificate says something of itself."""
    return any(what in findings[name].meaning for name in findings if name.startswith(CERTIFICATE))


def _numbers(findings: Mapping[str, Finding]) -> tuple[float, float, bool] | None:
    """(bound, radius, whether it is proved)."""
    certified = findings.get(CERTIFICATE)
    shown = findings.get(APPROXIMATE) if certified is None else certified
    radius = findings.get(RADIUS)
    if shown is None or radius is None:
        return None
    return float(shown.value), float(radius.value), certified is not None
