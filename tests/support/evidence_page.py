"""The page that the documentation shows, made from the record of a run of `make audit` and from nothing else."""

from typing import Any

AREAS = {
    "neighbours": (
        "Neighbours",
        "Two data sets that differ in one unit, records or users, dense or sparse, in float32 or float64, with numbers "
        "from 1e-323 to 1.7e308, infinities and NaN, drawn at random and then changed step by step to move the value "
        "further ([`privopt.testing.search_neighbours`](reference/interface.md#checks-of-your-own-parts)). The ratio "
        "is the distance moved over the stated sensitivity, which includes the bound on rounding. Tables have 2 to 16 "
        "units and mostly four columns. Among a million neighbours each query meets the fast engine in every layout, "
        "format and relation, whole and on samples, and the plain engine, compiled loops and units that lie about "
        "their contribution in turn; among fewer it meets some of these. Points and clips change from table to table, "
        "other settings of a query do not. Statistics of held points whose sensitivity holds behind a private test "
        "only (`FriendlyMean`, `AcceptedMean`, `HuberCentre`) are not among them.",
    ),
    "parts": (
        "Neighbours over several parts",
        "Units in parts of three, in memory, streamed and on shards: one leaves, so that others change their parts, or "
        "another of the opposite targets comes in its place, where units are users into another part. The ratio is how "
        "far a clipped sum moved over the clip, once or twice, and the bound on rounding.",
    ),
    "attacks": (
        "Attacks",
        "Lower bounds on epsilon that an attacker reaches, with 95 % confidence or more; the bound is the epsilon that "
        "was claimed.",
    ),
    "noise": (
        "Noise",
        "Statistical tests of the laws that noise is drawn from, all of them passed.",
    ),
    "accounts": (
        "Accounts in files",
        "A process is killed while it pays. Counted are payments that it was told of and that the file does not hold.",
    ),
    "mutants": (
        "Mistakes that must be noticed",
        "Parts with one mistake put in, each of which a check must tell.",
    ),
}


def page(record: dict[str, Any]) -> str:
    """The page in Markdown."""
    parts = [
        _HEAD,
        _run(record),
        *(_area(record, area) for area in AREAS),
        _tests(record),
        _left_out(record),
    ]
    return "\n".join(part for part in parts if part)


_HEAD = """# Evidence

What has been tried to break the guarantees of this library, how often, and how close it came. `make audit` writes
this page and [evidence.json](evidence.json), from which it is made; a test holds one to the other. A search that
finds nothing proves nothing: each sensitivity has an argument in the docstring of its query, and
[what a guarantee rests on](audit-map.md) is short enough to read.
"""


def _run(record: dict[str, Any]) -> str:
    run = record["run"]
    passed, failed, skipped = (
        sum(test[what] for test in record["tests"]) for what in ("passed", "failed", "skipped")
    )
    narrowed = f"`{run['narrowed']}`" if run["narrowed"] else "everything"
    rows = [
        ("Commit", f"`{run['commit']}`" if run["commit"] else "none"),
        ("Date", run["date"]),
        ("Duration", f"{run['minutes']:g} minutes, {run['workers']} at a time"),
        ("Asked for", narrowed),
        ("Tests", f"{passed:,} passed, {failed:,} failed, {skipped:,} skipped"),
        ("Versions", ", ".join(f"{name} {one}" for name, one in run["versions"].items())),
        ("Python", f"{run['python']} on {run['system']}"),
        ("Processor", ", ".join(run["processor"]) or "not known"),
    ]
    return "## The run\n\n" + _table(("", ""), rows)


def _area(record: dict[str, Any], area: str) -> str:
    lines = [line for line in record["lines"] if line["area"] == area]
    if not lines:
        return ""
    title, about = AREAS[area]
    units = sorted({line["of"] for line in lines})
    tried = [(sum(line["tried"] for line in lines if line["of"] == of), of) for of in units]
    total = " and ".join(f"**{count:,} {of}**" for count, of in tried)
    ratios = [
        line["largest"] / line["bound"] for line in lines if line["largest"] is not None and line["bound"]
    ]
    closest = f", at most **{_number(max(ratios))}** of the bound" if ratios else ""
    rows = [
        (
            line["what"],
            f"{line['tried']:,} {line['of']}",
            _number(line["largest"]),
            _number(line["bound"]),
        )
        for line in lines
    ]
    table = _table(("what", "tried", "largest", "bound"), rows)
    notes = "".join(f"\n* {line['what']}: {line['note']}" for line in lines if line.get("note"))
    return f"## {title}\n\n{about}\n\nIn all {total}{closest}.\n\n" + table + (notes + "\n" if notes else "")


def _tests(record: dict[str, Any]) -> str:
    rows = [
        (f"`{test['file']}`", str(test["passed"]), str(test["failed"]), str(test["skipped"]))
        for test in record["tests"]
    ]
    return "## Tests\n\n" + _table(("file", "passed", "failed", "skipped"), rows)


def _left_out(record: dict[str, Any]) -> str:
    skipped = [f"* `{one['test']}`: {one['why']}" for one in record["skipped"]]
    left = [
        f"* `{one['file']}`" + ("" if one["tests"] is None else f": {one['tests']} tests")
        for one in record["left_out"]
    ]
    if not skipped and not left:
        return "## What was not run\n\nNothing: all tests of the audit were run.\n"
    parts = ["## What was not run\n"]
    if left:
        parts.append(
            "Tests of the audit that this run was not asked for, or did not reach:\n\n"
            + "\n".join(left)
            + "\n"
        )
    if skipped:
        parts.append("Tests that were skipped:\n\n" + "\n".join(skipped) + "\n")
    return "\n".join(parts)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _number(value: float | None) -> str:
    """To ten digits."""
    return "" if value is None else f"{value:.10g}"
