"""The tables of docs/benchmarks-synthetic.md, and the bars that they are held to."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks import synthetic
from benchmarks.bars import Verdict
from benchmarks.results import Record, select

PAIRS_HEAD = ("data", "epsilon", "method", "pairs", "largest", "triples", "largest", "seconds", "MB")
LARGEST_HEAD = ("data", "epsilon", "method", "runs", "largest error", "sd", "seconds")
TRAINED_HEAD = ("epsilon", "trained on", "accuracy", "area under the curve")
BEST_BAR = 1.1  # of the largest error of "auto", over that of the best method


def chosen(records: Sequence[Record], what: str, **fields: object) -> list[Record]:
    """The records of a table."""
    return select(records, benchmark="synthetic", what=what, **fields)


def pair_rows(records: Sequence[Record]) -> list[list[str]]:
    """Mean and largest total variation, over runs."""
    return [
        [
            one["data"],
            f"{one['epsilon']:g}",
            _named(one),
            *(f"{one[name]:.4f}" for name in ("pairs", "largest_pair", "triples", "largest_triple")),
            f"{one['seconds']:.1f}",
            f"{one['megabytes']:.0f}",
        ]
        for one in chosen(records, synthetic.PAIRS)
    ]


def largest_rows(records: Sequence[Record], what: str) -> list[list[str]]:
    """Largest errors, over runs."""
    return [
        [
            one["data"],
            f"{one['epsilon']:g}",
            _named(one),
            f"{one['seeds']}",
            f"{one['largest']:.4f}",
            "" if one["largest_sd"] is None else f"{one['largest_sd']:.4f}",
            f"{one['seconds']:.1f}",
        ]
        for one in chosen(records, what)
    ]


def trained_rows(records: Sequence[Record]) -> list[list[str]]:
    """How good a classifier is that never saw the data."""
    return [
        [f"{one['epsilon']:g}", one["method"], f"{one['accuracy']:.4f}", f"{one['area']:.4f}"]
        for one in chosen(records, synthetic.TRAINED)
    ]


def _named(record: Record) -> str:
    same = record["method"] != synthetic.AUTO
    return record["method"] if same else f"auto: {record['synthesizer']}"


def verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    """Every bar that the records say something about."""
    for one in chosen(records, synthetic.PAIRS, method=synthetic.AUTO, data="adult_discrete"):
        bars = synthetic.ADULT_BARS.get(one["epsilon"])
        for name, bar in zip(("pairs", "triples"), bars or (), strict=False):
            what = f"adult_discrete, total variation of {name}, epsilon {one['epsilon']:g}"
            yield Verdict(what, one[name], f"at most {bar:g}", one[name] <= bar)
    for one in chosen(records, synthetic.BITS, method=synthetic.AUTO, data="randhie, 16 bits"):
        bar = synthetic.BITS_BARS.get(one["epsilon"])
        if bar is not None:
            what = f"randhie, 16 bits, largest error, epsilon {one['epsilon']:g}"
            yield Verdict(what, one["largest"], f"at most {bar:g}", one["largest"] <= bar)
    for what in (synthetic.BITS, synthetic.HALF_SPACES):
        for one in chosen(records, what, method=synthetic.AUTO):
            rivals = chosen(records, what, data=one["data"], epsilon=one["epsilon"])
            best = min(rival["largest"] for rival in rivals)
            label = f"{one['data']}, {what}, epsilon {one['epsilon']:g}: auto over the best method"
            ratio = one["largest"] / best
            yield Verdict(label, ratio, f"at most {BEST_BAR:g}", ratio <= BEST_BAR)


TABLES: Mapping[
    str, tuple[Callable[[Sequence[Record]], Sequence[str]], Callable[[Sequence[Record]], list[list[str]]]]
] = {
    "synthetic-pairs": (lambda _: PAIRS_HEAD, pair_rows),
    "synthetic-bits": (lambda _: LARGEST_HEAD, lambda records: largest_rows(records, synthetic.BITS)),
    "synthetic-half-spaces": (
        lambda _: LARGEST_HEAD,
        lambda records: largest_rows(records, synthetic.HALF_SPACES),
    ),
    "synthetic-trained": (lambda _: TRAINED_HEAD, trained_rows),
}
