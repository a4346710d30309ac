"""What a run's releases say of how much of what there is to learn was learnt, in words."""

from privopt.planning.plan import LEARNT_SHARE
from privopt.report.facts import ReportFacts


def in_words(report: ReportFacts) -> str:
    """The sentence; nothing of a run whose releases do not tell."""
    found = report.findings.get(LEARNT_SHARE)
    if found is None:
        return ""
    return f"By the answers themselves, which cost nothing more: {found.meaning}."
