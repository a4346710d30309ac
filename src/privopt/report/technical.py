"""The guarantee in the terms of the field, for somebody who knows the definitions."""

import math

from privopt.ledger.events import DeltaEvent, RoundingEvent, SelectionsEvent, leaf_counts
from privopt.planning import storage_words, user_words
from privopt.public import STORAGES, Relation
from privopt.report import stationarity, words
from privopt.report.explain import Point, noise_source
from privopt.report.facts import ReportFacts


def technical(report: ReportFacts) -> list[Point]:
    """The guarantee for somebody who knows the definitions."""
    unit = report.unit
    if report.relation is Relation.REPLACE_ONE:
        neighbours = f"replace-one: the number of {unit}s is public, and one {unit} is replaced by anything"
    else:
        neighbours = f"add-or-remove-one: one {unit} is present or absent; the nominal n is public"
    points = [
        Point("Privacy unit", f"one {unit}"),
        Point("Neighbouring data sets", neighbours),
    ]
    if math.isfinite(report.epsilon):
        factor = words.number(math.exp(min(report.epsilon, 700.0)), 3)
        failing = (
            f"; apart from a probability δ = {words.pretty(report.delta, 3)} ({words.chance(report.delta)})"
            if report.delta > 0
            else ""
        )
        points.append(
            Point(
                "(ε, δ)-differential privacy",
                f"ε = {words.pretty(report.epsilon)}, δ = {words.pretty(report.delta, 3)}: no outcome becomes more "
                f"than {factor} times (e^ε) as likely because of one {unit}{failing}",
            )
        )
    if report.budget is not None and report.budget.is_private:
        points.append(
            Point(
                "Budget",
                f"ε = {words.pretty(report.budget.epsilon)}, δ = {words.pretty(report.budget.delta, 3)}",
            )
        )
    points += [
        *_of_users(report),
        *_storage(report),
        *_tests(report),
        *_selections(report),
        *_rounding(report),
    ]
    certified = stationarity.for_experts(report)
    if certified:
        points.append(Point("Certificate", certified))
    points += [Point("Noise", noise_source(report)), Point("Ending", report.status)]
    return points if report.account is None else [*points, Point("Account", report.account.in_words())]


def _of_users(report: ReportFacts) -> list[Point]:
    """What the numbers mean that were fixed for users."""
    if report.plan is None or not report.plan.public.by_user:
        return []
    public = report.plan.public
    counted = "whether or not they have records" if report.relation is Relation.REPLACE_ONE else "at most"
    return [
        Point("Users", f"{public.n:,}, {counted}; a person with none adds nothing and changes no divisor"),
        Point("What was minimised", user_words.objective(public)),
        Point("Records used of one person", user_words.meaning_of_cap(public)),
        Point("Typical number of records", user_words.meaning_of_typical(public)),
    ]


def _storage(report: ReportFacts) -> list[Point]:
    """The format of the stored rows, where it is not the usual one."""
    if report.plan is None or report.plan.public.storage == STORAGES[0]:
        return []
    return [Point("Storage", storage_words.meaning_of(report.plan.public.storage))]


def _tests(report: ReportFacts) -> list[Point]:
    """What the part of delta that private tests take stands for."""
    found: dict[float, int] = {}
    for group in report.releases:
        for event, count in group.events:
            for leaf, times in leaf_counts(event)[0].items():
                if isinstance(leaf, DeltaEvent) and leaf.delta > 0:
                    found[leaf.delta] = found.get(leaf.delta, 0) + count * times
    if not found:
        return []
    share = words.pretty(sum(delta * count for delta, count in found.items()), 3)
    return [
        Point(
            "Private tests",
            f"{words.several(sum(found.values()), 'answer')} decided whether something else might be published, whose "
            f"noise is large enough only where such a test is rightly passed. {share} of δ is the probability that "
            "the noise lets a test pass where it must not: it is added to δ as it is, and nothing else is promised "
            "for that case.",
        )
    ]


def _selections(report: ReportFacts) -> list[Point]:
    """What a vertex that was drawn from hidden scores tells, and what stays hidden."""
    ranges = [
        (leaf, count * times)
        for group in report.releases
        for event, count in group.events
        for leaf, times in leaf_counts(event)[0].items()
        if isinstance(leaf, SelectionsEvent)
    ]
    if not ranges:
        return []
    rho = sum(leaf.rho * count for leaf, count in ranges)
    return [
        Point(
            "Drawn vertices",
            "what was published is which pure strategies, queries or coordinates were drawn, and in which order. Each "
            "was drawn with a probability proportional to e to the power of a hidden score, which a "
            f"single {report.unit} shifts a little; a draw hints at high scores, and those hints are what was paid "
            f"for (rho {words.pretty(rho, 3)} in all). The scores themselves, gradients, exact averages and what the "
            "last scores would choose were never published.",
        )
    ]


def _rounding(report: ReportFacts) -> list[Point]:
    """What the part of delta that rounding takes stands for."""
    distance = sum(
        count * times * leaf.total_variation
        for group in report.releases
        for event, count in group.events
        for leaf, times in leaf_counts(event)[0].items()
        if isinstance(leaf, RoundingEvent)
    )
    if distance == 0 or not math.isfinite(report.epsilon):
        return []
    share = words.pretty((1 + math.exp(min(report.epsilon, 700.0))) * distance, 2)
    return [
        Point(
            "Rounding",
            f"probabilities were computed in floating point, within a total variation of {words.pretty(distance, 2)} "
            f"of the exact ones: {share} of δ, that is (1 + e^ε) times as much, pays for it",
        )
    ]
