"""Golden transcripts: seeded runs whose released bits, prices and words are kept in `lines/`, a line for each.

    python -m tests.golden check            # what differs, line by line
    python -m tests.golden write [NAME ...] # after a change that is meant: all lines, or those of these parts or runs
    python -m tests.golden show NAME ...    # whole lines of today's code, long texts included

A NAME is a part (`fits`) or what the name of a run begins with (`"frank-wolfe"`). Every line has two parts. *values*
are digests of events, sensitivities, released bytes and parameters, with prices and the numbers of settings; *words*
are names and sentences, long ones by their beginning and a digest.
"""

import json
import sys
from collections.abc import Sequence

from tests.golden import environment
from tests.golden.runs import PARTS, VERSIONS, compared, is_of, keep, kept, make_all, versions_that_differ


def main(arguments: list[str]) -> int:
    """Do what is asked; 0 where all is well."""
    verb, *names = arguments or ["check"]
    if verb == "check" and not names:
        return check()
    if verb == "write":
        return write(names)
    if verb == "show" and names:
        return show(names)
    print(__doc__, file=sys.stderr)
    return 2


def check() -> int:
    """Print every line that differs."""
    made = make_all()
    verdict = compared(made.lines, {part: kept(part) for part in PARTS})
    print("\n".join(verdict.found), end="\n" if verdict.found else "")
    count = sum(map(len, made.lines.values()))
    print(f"{len(verdict.found)} of {count} lines differ.")
    if verdict.reason is not None:
        print(f"Values were not compared to the last bit: {verdict.reason}.")
    return 1 if verdict.found else 0


def write(names: Sequence[str]) -> int:
    """Keep today's lines: all, or those asked for."""
    reason = environment.obstacle()
    if reason is not None:
        print(f"Nothing was written: {reason}.", file=sys.stderr)
        return 2
    if names and versions_that_differ():
        print(
            f"Write everything: the lines were made with {'; '.join(versions_that_differ())}.",
            file=sys.stderr,
        )
        return 2
    made = make_all(names)
    for part, lines in made.lines.items():
        whole = not names or part in names
        rest = (
            {}
            if whole
            else {name: line for name, line in kept(part).items() if not is_of(name, made.runs[part])}
        )
        keep(part, rest | lines)
    VERSIONS.write_text(json.dumps(environment.made_with(), indent=2) + "\n", encoding="utf-8")
    print(f"{sum(map(len, made.lines.values()))} lines written.")
    return 0


def show(names: Sequence[str]) -> int:
    """Print whole lines."""
    for part, lines in make_all(names, whole=True).lines.items():
        for name, line in lines.items():
            print(json.dumps({"part": part, "run": name, **line}, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
