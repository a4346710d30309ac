"""Sentences of a report on the records and on the model, as far as the released values tell."""

from privopt.planning.plan import IMPROVEMENT_SHARE, USABLE, warnings_in
from privopt.report.facts import ReportFacts

HEADINGS = {USABLE: "Usable records.", IMPROVEMENT_SHARE: "Model quality."}
LEADS = {USABLE: "", IMPROVEMENT_SHARE: "By the released values, at no further price: "}


def paragraphs(report: ReportFacts) -> list[tuple[str, str]]:
    """Headings and sentences: what to check first, then the usable records and the quality of the model."""
    told = [
        (HEADINGS[name], f"{LEADS[name]}{report.findings[name].meaning}.")
        for name in HEADINGS
        if name in report.findings
    ]
    checks = [
        ("Please check.", sentence[:1].upper() + sentence[1:]) for sentence in warnings_in(report.findings)
    ]
    return [*checks, *told]
