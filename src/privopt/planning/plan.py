"""The price of a solve and what to expect of it, from public quantities only."""

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from privopt.json_values import described_array, json_value, number_or_text, plain
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event, event_from_dict
from privopt.notebook import card
from privopt.public import Public, Relation, Weighting

WIDTH = 79  # of a printed plan
COMPARED = ("releases", "passes", "predicted", "bound")  # of several plans
IMPROVEMENT_SHARE = "improvement_share"  # of the improvement over a constant prediction that is achievable
IMPROVEMENT_ENDS = ("improvement_share_low", "improvement_share_high")  # of the range that it lies in
USABLE = "usable"  # the number of usable units
# Indicators and findings that have a line of their own in plans and reports, and its label.
LABELS = {USABLE: "usable", IMPROVEMENT_SHARE: "quality"}
FEW_USABLE, UNSEEN_COLUMNS, UNREAD_CELLS = "few_usable", "unseen_columns", "unread_cells"
WARNINGS = (
    FEW_USABLE,
    UNSEEN_COLUMNS,
    UNREAD_CELLS,
)  # findings that a user must not overlook: their meanings are notices


@dataclass(frozen=True)
class Finding:
    """A number with its meaning: what a run shows about its own result, or what is known before it.

    Attributes:
        value: the number, or an array for further computations.
        meaning: what it is and on what condition it holds, in words.
    """

    value: Any
    meaning: str

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values; of a long array, its shape."""
        return {"value": json_value(self.value), "meaning": self.meaning}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Finding":
        """Rebuild it from what `to_dict` gave; a long array stays the text that stood for it."""
        return cls(number_or_text(values["value"]), values["meaning"])


@dataclass(frozen=True)
class Bound:
    """A bound on the excess of the result, known before the data is read.

    Attributes:
        value: the excess objective, or what `of` names.
        probability: with which it holds, over the noise; None for a bound on the expectation.
        condition: what it rests on, in words.
        of: what is bounded: the "excess" of an objective, the "duality gap" of a game.
    """

    value: float
    probability: float | None
    condition: str
    of: str = "excess"

    @property
    def sentence(self) -> str:
        """The bound in words."""
        rests = self.condition.strip().rstrip(".")
        if rests and not rests.startswith(("if ", "provided ", "as long as ", "for ", "in expectation")):
            rests = f"if {rests}"
        how = self.occasion
        return ", ".join(part for part in (f"{self.of} at most {figure(self.value)} {how}", rests) if part)

    @property
    def occasion(self) -> str:
        """How often it holds, in words."""
        return (
            "in expectation" if self.probability is None else f"with probability {figure(self.probability)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return json_value(asdict(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Bound":
        """Rebuild it from what `to_dict` gave."""
        chance = values["probability"]
        return cls(
            float(values["value"]),
            None if chance is None else float(chance),
            values["condition"],
            values.get("of", "excess"),
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a solver will do, said before any data is read.

    Attributes:
        solver: its name.
        settings: every parameter it will run with, derived from public quantities.
        event: everything it will release, priced as one.
        budget: the (epsilon, delta) it was calibrated to.
        public: what is public about the data.
        releases: number of noised values that leave the curator.
        passes: expected passes over the data.
        memory_bytes: resident data and work space.
        seconds: rough time of a fit on one core, loading and preparation included, compilation excluded.
        predicted_excess: predicted excess of the objective over its non-private optimum; None if no formula applies.
        predicted_range: (low, high), between which it ends in most cases, as `prediction` says; None if not known.
        prediction: what the prediction is and how far to trust it.
        bound: a bound on the excess, where there is one.
        indicators: by name, what can be hoped for, such as lower bounds.
        notices: sentences for the user, from public quantities.
        adaptive: whether `releases` and `passes` are the most there can be, and the run may end earlier.
        reason: why "auto" chose this solver, as the end of a sentence that begins with "because".
        evaluations: values of single records that a run asks for, where it asks for nothing else of the loss; else 0.
        measure: what `predicted_excess` is: the "excess" of an objective, the "duality gap" of a game.
        black_box: of a loss that is known by its values only, what the user declared of it, in sentences.
        held: how many numbers of the units, or of groups of them, the curator holds at a time; at most. Like the next
            it says where a fit can be made, and is no part of a plan that is kept.
        needs_rows: whether all rows must be in one place at once.
    """

    solver: str
    settings: Mapping[str, float | int | str]
    event: Event
    budget: Budget
    public: Public
    releases: int
    passes: float
    memory_bytes: int
    seconds: float
    predicted_excess: float | None = None
    predicted_range: tuple[float, float] | None = None
    prediction: str = ""
    bound: Bound | None = None
    indicators: Mapping[str, Finding] = field(default_factory=dict[str, Finding])
    notices: tuple[str, ...] = field(default=())
    adaptive: bool = False
    reason: str = ""
    measure: str = "excess"
    evaluations: float = 0.0
    black_box: tuple[str, ...] = ()
    held: int = field(default=0, compare=False)
    needs_rows: bool = field(default=False, compare=False)

    @property
    def epsilon(self) -> float:
        """The price at the budget's delta."""
        return self.epsilon_at(self.budget.delta)

    def epsilon_at(self, delta: float) -> float:
        """The price at any delta."""
        near = self.budget.epsilon if delta == self.budget.delta and self.budget.is_private else None
        return accounting.epsilon(self.event, delta, self.public.relation, near=near)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values (infinity is the text "infinity")."""
        return json_value(
            {
                "solver": self.solver,
                "settings": dict(self.settings),
                "event": self.event.to_dict(),
                "budget": asdict(self.budget),
                "public": asdict(self.public) | {"relation": self.public.relation.value},
                "epsilon": self.epsilon,
                "delta": self.budget.delta,
                "relation": self.public.relation.value,
                "unit": self.public.unit,
                "n": self.public.n,
                "d": self.public.d,
                "releases": self.releases,
                "passes": self.passes,
                "adaptive": self.adaptive,
                "memory_bytes": self.memory_bytes,
                "seconds": self.seconds,
                "predicted_excess": self.predicted_excess,
                "predicted_range": None if self.predicted_range is None else list(self.predicted_range),
                "prediction": self.prediction,
                "bound": None if self.bound is None else self.bound.to_dict(),
                "indicators": {name: found.to_dict() for name, found in self.indicators.items()},
                "notices": list(self.notices),
                "reason": self.reason,
                "measure": self.measure,
                "evaluations": self.evaluations,
                "black_box": list(self.black_box),
            }
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Plan":
        """Rebuild a plan from what `to_dict` gave, possibly after a trip through JSON."""
        excess, bound, ends = values["predicted_excess"], values.get("bound"), values.get("predicted_range")
        public = dict(values["public"])
        public["levels"] = tuple(public.get("levels", ()))
        return cls(
            solver=values["solver"],
            settings={name: number_or_text(value) for name, value in values["settings"].items()},
            event=event_from_dict(values["event"]),
            budget=Budget(float(values["budget"]["epsilon"]), float(values["budget"]["delta"])),
            public=Public(relation=Relation.parse(public.pop("relation")), **public),
            releases=values["releases"],
            passes=values["passes"],
            memory_bytes=values["memory_bytes"],
            seconds=values["seconds"],
            predicted_excess=None if excess is None else float(excess),
            predicted_range=None if ends is None else (float(ends[0]), float(ends[1])),
            prediction=values["prediction"],
            bound=None if bound is None else Bound.from_dict(bound),
            indicators={
                name: Finding.from_dict(found) for name, found in values.get("indicators", {}).items()
            },
            notices=tuple(values["notices"]),
            adaptive=values.get("adaptive", False),
            reason=values.get("reason", ""),
            measure=values.get("measure", "excess"),
            evaluations=float(values.get("evaluations", 0.0)),
            black_box=tuple(values.get("black_box", ())),
        )

    def rows(self) -> list[tuple[str, str]]:
        """What there is to say, as labelled sentences."""
        most = "at most " if self.adaptive else ""
        values = f" ({_many(self.evaluations)} values of the loss)" if self.evaluations else ""
        effort = (
            f"{most}{self.releases:,} releases, {_many(self.passes)} passes over {self.public.n:,} x "
            f"{self.public.d:,}{values}, about {self.seconds:.2g} s and {self.memory_bytes / 2**20:.0f} MB"
        )
        chosen = [("chosen", f"by 'auto' because {self.reason.rstrip('.')}")] if self.reason else []
        people = [("protects", promise(self.public)), ("objective", objective(self.public))]
        return [
            *(people if self.public.by_user else []),
            *chosen,
            ("effort", effort),
            ("predicted", self.excess_sentence),
            *own_lines(self.indicators),
            ("bound", "no bound" if self.bound is None else self.bound.sentence),
            *(("indicator", sentence) for sentence in self.indicator_sentences),
            *(("declared", sentence) for sentence in self.black_box),
            *(("note", notice) for notice in self.notices),
        ]

    @property
    def indicator_sentences(self) -> list[str]:
        """Every indicator with its name and meaning, but for those of `own_lines`."""
        return [
            f"{name.replace('_', ' ')} {figure(found.value)}: {found.meaning}"
            for name, found in self.indicators.items()
            if not in_sentences(name)
        ]

    @property
    def improvement_sentence(self) -> str:
        """The expected share of the achievable improvement, and what would double it; empty where not known."""
        found = self.indicators.get(IMPROVEMENT_SHARE)
        return "" if found is None else found.meaning

    @property
    def excess_sentence(self) -> str:
        """The predicted excess in words."""
        if self.predicted_excess is None:
            return f"no prediction: {self.prediction}" if self.prediction else "no prediction"
        meaning = f" ({self.prediction})" if self.prediction else ""
        if self.measure != "excess":
            return f"{self.measure} {self.predicted_amount(figure)}{meaning}"
        return f"objective {self.predicted_amount(figure)} above its non-private optimum{meaning}"

    def predicted_amount(self, spelled: Callable[[float], str]) -> str:
        """The predicted excess as "about x", or as "between x and y" where a range is known; empty without one.

        Args:
            spelled: how a number is written.
        """
        if self.predicted_range is not None:
            low, high = self.predicted_range
            return f"between {spelled(low)} and {spelled(high)}"
        return "" if self.predicted_excess is None else f"about {spelled(self.predicted_excess)}"

    @property
    def headline(self) -> str:
        """The solver, the price and what it protects."""
        relation = f"{self.public.relation.value}, one {self.public.unit}"
        if math.isinf(self.budget.epsilon):
            price = "no privacy (epsilon = inf)"
        else:
            price = f"epsilon {self.epsilon:.4g} at delta {self.budget.delta:.3g}"
        return f"{self.solver}: {price} ({relation})"

    def __str__(self) -> str:
        return "\n".join([self.headline, *labelled(self.rows())])

    def _repr_html_(self) -> str:
        return card(self.headline, self.rows())


def in_sentences(name: str) -> bool:
    """Whether an indicator or a finding stands in a sentence of its own, so that it is not listed with others."""
    return name in LABELS or name in WARNINGS or name in IMPROVEMENT_ENDS


def own_lines(found: Mapping[str, Finding]) -> list[tuple[str, str]]:
    """The indicators or findings of `LABELS`, as labelled sentences."""
    return [(label, found[name].meaning) for name, label in LABELS.items() if name in found]


def warnings_in(found: Mapping[str, Finding]) -> list[str]:
    """The findings of `WARNINGS`, in sentences."""
    return [found[name].meaning for name in WARNINGS if name in found]


def usable_in(found: Mapping[str, Finding]) -> int | None:
    """The number of usable units among the findings of a run; None where nothing is said of it."""
    return int(found[USABLE].value) if USABLE in found else None


def figure(value: Any) -> str:
    """A number with three digits; an array by its shape."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return described_array(value) or str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return "infinite" if math.isinf(value) and value > 0 else f"{value:.3g}"


def _many(count: float) -> str:
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def labelled(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Labelled sentences as indented lines."""
    lines: list[str] = []
    for label, text in rows:
        lines += textwrap.wrap(
            text,
            WIDTH,
            initial_indent=f"  {label:<10} ",
            subsequent_indent=" " * 13,
            break_on_hyphens=False,
            break_long_words=False,
        )
    return lines


def compared(plans: Sequence[Plan]) -> list[str]:
    """One line for each plan: effort, predicted excess, bound."""
    width = max((len(plan.solver) for plan in plans), default=0)
    rows = [("", *COMPARED), *(comparison(plan) for plan in plans)]
    return [
        f"  {solver:<{width}}  {releases:>10}  {passes:>8}  {excess:>9}  {bound}"
        for solver, releases, passes, excess, bound in rows
    ]


def comparison(plan: Plan) -> tuple[str, str, str, str, str]:
    """The solver, and in words what `COMPARED` names."""
    excess = "-" if plan.predicted_excess is None else figure(plan.predicted_excess)
    bound = "-"
    if plan.bound is not None:
        chance = plan.bound.probability
        bound = f"{figure(plan.bound.value)} {'on average' if chance is None else f'at {figure(chance)}'}"
    releases = f"{'<= ' if plan.adaptive else ''}{plan.releases:,}"
    return plan.solver, releases, _many(plan.passes), excess, bound


# ---- A picture of released or public numbers, as a program describes it: a report draws it -----------------


MOST_POINTS = 400  # of one series; a longer one is thinned


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line, or one set of bars.

    Attributes:
        name: what it shows.
        ys: its heights.
        xs: where they stand; of bars, nothing: they stand at the picture's categories.
        errors: half the length of an error bar at each of them; nothing for none.
    """

    name: str
    ys: tuple[float, ...]
    xs: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for other in (self.xs, self.errors):
            if other and len(other) != len(self.ys):
                raise ValueError(f"a series of {len(self.ys)} heights has {len(other)} places or errors.")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Lines over a number, or bars over categories.

    Attributes:
        title: what it shows.
        caption: one sentence below it.
        x, y: labels of the axes.
        series: at most four.
        categories: names below the bars; nothing for lines.
    """

    title: str
    caption: str
    x: str
    y: str
    series: tuple[Series, ...]
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.series) <= 4:
            raise ValueError(f"a picture has one to four series, got {len(self.series)}.")

    @property
    def kind(self) -> Literal["lines", "bars"]:
        """How it is drawn."""
        return "bars" if self.categories else "lines"

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return json_value(
            {
                "title": self.title,
                "caption": self.caption,
                "x": self.x,
                "y": self.y,
                "categories": list(self.categories),
                "series": [
                    {
                        "name": one.name,
                        "xs": list(one.xs),
                        "ys": list(one.ys),
                        "errors": list(one.errors),
                    }
                    for one in self.series
                ],
            }
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Picture":
        """Rebuild it from what `to_dict` gave."""
        return cls(
            **{name: values[name] for name in ("title", "caption", "x", "y")},
            categories=tuple(values["categories"]),
            series=tuple(
                Series(
                    name=one["name"],
                    **{name: tuple(float(value) for value in one[name]) for name in ("xs", "ys", "errors")},
                )
                for one in values["series"]
            ),
        )


def line(name: str, ys: Sequence[Any], xs: Sequence[Any] | None = None) -> Series:
    """A line of numbers, thinned where it is long."""
    places = range(len(ys)) if xs is None else xs
    step = max(1, -(-len(ys) // MOST_POINTS))
    kept = list(range(0, len(ys), step))
    if kept and kept[-1] != len(ys) - 1:
        kept.append(len(ys) - 1)
    return Series(
        name=name, ys=tuple(float(ys[at]) for at in kept), xs=tuple(float(places[at]) for at in kept)
    )


def bars(name: str, ys: Sequence[Any], errors: Sequence[Any] = ()) -> Series:
    """A set of bars."""
    return Series(name=name, ys=tuple(map(float, ys)), errors=tuple(map(float, errors)))


# ---- What is promised to users and what is minimised for them, in words. Public numbers only ---------------


COUNTS: dict[Weighting, str] = {
    "user": "each person counts the same",
    "sqrt": "each person counts by the square root of their number of records",
    "record": "each person counts by their number of records",
}
WEIGHTS: dict[Weighting, str] = {"user": "1", "sqrt": "sqrt(k / M)", "record": "k / M"}


def records(count: float) -> str:
    """A number of records with its noun, rounded."""
    shown = f"{count:,.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"
    return f"{shown} record{'' if count == 1 else 's'}"


def promise(public: Public) -> str:
    """What is protected of a user."""
    return f"everything a person contributed; at most {records(public.records_per_unit)} of each are used"


def aim(public: Public) -> str:
    """Which objective the weighting of users minimises, in short."""
    return f"the mean over people of their own average loss, where {COUNTS[public.weighting]}"


def objective(public: Public) -> str:
    """Which objective the weighting of users minimises."""
    weight = WEIGHTS[public.weighting]
    used = (
        ""
        if public.weighting == "user"
        else f" for k records used of at most M = {public.records_per_unit:,}"
    )
    return (
        f"{aim(public)}: the sum of u F over the sum of u, F a person's average loss and u = {weight}{used}"
    )


def meaning_of_cap(public: Public) -> str:
    """What the cap on a user's records is."""
    return (
        f"At most {records(public.records_per_unit)} of each person are used, drawn at random if there are more. The "
        "cap was chosen beforehand and is enforced: however many somebody has, no more count."
    )


def meaning_of_typical(public: Public) -> str:
    """What the typical number of records is."""
    return (
        f"Guessed beforehand, used of a typical person: {records(public.typical_records)}. The "
        "guess sets clips and predictions; where it is wrong, the model is worse and the "
        "guarantee the same."
    )


# ---- What the format of stored rows means, in words --------------------------------------------------------


_BITS = {"int8": "8-bit", "int16": "16-bit"}


def meaning_of(storage: str) -> str:
    """A format of `public.STORAGES`, as a reader of a plan or a report needs it."""
    if storage not in _BITS:
        return f"rows of {storage} numbers"
    return f"rows of {_BITS[storage]} integers on a public grid, rounded so that none gets longer"
