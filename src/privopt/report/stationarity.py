"""What a certificate of stationarity means, in words: for losses of which no minimum can be promised."""

from collections.abc import Mapping

from privopt.planning.goldstein_certificate import IN_SCALES
from privopt.planning.plan import Finding
from privopt.report import words
from privopt.report.facts import ReportFacts

CERTIFICATE, RADIUS, APPROXIMATE = "certificate", "certificate_radius", "certificate_approximate"


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
