"""The printed report: labelled lines for a terminal or a notebook."""

import math
import textwrap
from functools import partial

from privopt.planning import user_words
from privopt.planning.plan import Finding, figure, in_sentences, own_lines, warnings_in
from privopt.printable import printable_lines
from privopt.report import explain, stationarity, words
from privopt.report.facts import ReportFacts
from privopt.report.releases import ReleaseGroup

TERMINAL_WIDTH = 79
MOST_FINDINGS = 3
MOST_KINDS = 3  # of releases
NOT_COVERED = "other uses of the same data, choices made on it, {floats}timing; see the full report"


def printed(report: ReportFacts) -> str:
    """The report as text of at most `TERMINAL_WIDTH` columns."""
    lines = [report.title]
    lines += [f"  *** {banner.title} ***" for banner in explain.banners(report)]
    for label, text in rows(report):
        lines += textwrap.wrap(
            text,
            TERMINAL_WIDTH,
            initial_indent=f"  {label:<13} ",
            subsequent_indent=" " * 16,
            break_on_hyphens=False,
        )
    return printable_lines("\n".join(lines))


def rows(report: ReportFacts) -> list[tuple[str, str]]:
    """What there is to say, as labelled sentences."""
    lines = [
        ("protected", f"{explain.one_line(report)} ({report.relation.value})"),
        *_guarantee(report),
        *_objective(report),
        ("releases", _releases(report)),
        ("noise from", explain.noise_source(report)),
        ("status", report.status),
        *([] if report.account is None else [("account", report.account.in_words())]),
    ]
    if report.plan is not None and report.plan.predicted_excess is not None:
        amount = report.plan.predicted_amount(partial(words.number, digits=2))
        above = f"objective {amount} above its non-private optimum"
        lines.append(
            ("predicted", above if report.plan.measure == "excess" else f"{report.plan.measure} {amount}")
        )
    if report.plan is not None and report.plan.bound is not None:
        lines.append(("bound", report.plan.bound.sentence))
    lines += own_lines(report.findings)
    shown = [
        (name, found)
        for name, found in report.findings.items()
        if isinstance(found.value, int | float) and not in_sentences(name)
    ]
    shown.sort(key=lambda one: one[0] not in stationarity.CERTIFICATES)
    lines += [
        ("shows", f"{words.spelled(name)} {figure(found.value)}: {_meaning(name, found)}")
        for name, found in shown[:MOST_FINDINGS]
    ]
    told = warnings_in(report.findings)
    notices = [one for one in report.notices if one not in told]
    lines += [("notice", sentence) for sentence in told]
    if notices:
        lines.append(("notices", f"{len(notices)}, first: {textwrap.shorten(notices[0], 120)}"))
    own = "how long the loss function takes, what it prints or stores; " if _is_black_box(report) else ""
    floats = "" if all(group.exact for group in report.releases) else "floating point, "
    return [*lines, ("not covered", own + NOT_COVERED.format(floats=floats))]


def _meaning(name: str, found: Finding) -> str:
    """Of a certificate all of it: which mean it is about stands at its end."""
    return found.meaning if name in stationarity.CERTIFICATES else textwrap.shorten(found.meaning, 160)


def _is_black_box(report: ReportFacts) -> bool:
    return report.plan is not None and bool(report.plan.black_box)


def _guarantee(report: ReportFacts) -> list[tuple[str, str]]:
    if math.isinf(report.epsilon):
        return [("guarantee", "none: epsilon is infinite")]
    budget = "" if report.budget is None else f" (budget: epsilon {words.number(report.budget.epsilon)})"
    price = f"epsilon {words.number(report.epsilon)}, delta {words.number(report.delta, 3)}{budget}"
    guess = words.percent(report.curve.best_guess)
    return [
        ("guarantee", price),
        ("in words", f"whoever guesses, 50:50 beforehand, is right at most {guess} of the time"),
    ]


def _objective(report: ReportFacts) -> list[tuple[str, str]]:
    if report.plan is None or not report.plan.public.by_user:
        return []
    return [("minimised", user_words.aim(report.plan.public))]


def _releases(report: ReportFacts) -> str:
    kinds = [_kind(group) for group in report.releases[:MOST_KINDS]]
    more = len(report.releases) - MOST_KINDS
    if more > 0:
        kinds.append(f"{more} more kinds")
    return "; ".join(kinds) or "none"


def _kind(group: ReleaseGroup) -> str:
    text = f"{group.count:,} x {group.label.lower()}, {group.noise}"
    if group.filter is None:
        return text
    return f"{text}, chosen as the run went ({group.filter.share} of a filter used)"
