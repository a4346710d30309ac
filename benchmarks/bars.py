"""What must be reached, and whether it was."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.methods import DEFAULT
from benchmarks.results import Record, select

ADULT_ACCURACY = {0.1: 0.815, 0.3: 0.835, 1.0: 0.844, 3.0: 0.847}  # replace-one, default settings
FIT_RATIO = 2.5  # private fit over scikit-learn's, epsilon at most 1
PASS_RATIO = 2.5  # fused pass over NumPy's sum, one thread


@dataclass(frozen=True)
class Verdict:
    """One bar: what was measured, what was asked for, and whether that was reached."""

    what: str
    measured: float
    asked: str
    met: bool

    def __str__(self) -> str:
        return f"{'pass' if self.met else 'FAIL'}  {self.what}: {self.measured:.4g} ({self.asked})"


def verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    """Every bar that the records say something about."""
    adult = select(records, benchmark="accuracy", data="adult", method=DEFAULT, relation="replace-one")
    for record in sorted(adult, key=lambda one: one["epsilon"]):
        bar = ADULT_ACCURACY.get(record["epsilon"])
        if bar is not None:
            what = f"Adult test accuracy, epsilon {record['epsilon']:g}"
            yield Verdict(what, record["accuracy"], f"at least {bar}", record["accuracy"] >= bar)
    for record in select(records, benchmark="speed", what="fit"):
        what = f"Covertype fit time over scikit-learn's, epsilon {record['epsilon']:g}"
        yield Verdict(what, record["ratio"], f"at most {FIT_RATIO}", record["ratio"] <= FIT_RATIO)
    for record in select(records, benchmark="speed", what="pass", threads=1):
        what = "gradient pass over NumPy's sum, one thread"
        yield Verdict(what, record["ratio"], f"at most {PASS_RATIO}", record["ratio"] <= PASS_RATIO)
