"""The price of a solve and what to expect of it, from public quantities only."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event
from privopt.public import Public

ROW_SECONDS = (
    1.2e-8  # a record's scalar work (one exponential) in the compiled kernel, one thread, 2024 server core
)
BYTE_SECONDS = 1.0e-10  # streaming float32 rows from memory


@dataclass(frozen=True)
class Finding:
    """A number with its meaning: what a run shows about its own result, or what is known before it.

    Attributes:
        value: the number, or an array for further computations.
        meaning: what it is and on what condition it holds, in words.
    """

    value: Any
    meaning: str


@dataclass(frozen=True)
class Bound:
    """A bound on the excess of the result, known before the data is read.

    Attributes:
        value: the excess objective.
        probability: with which it holds, over the noise.
        condition: what it rests on, in words.
    """

    value: float
    probability: float
    condition: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a solver will do, said before any data is read.

    Attributes:
        solver: its name.
        settings: every parameter it will run with, derived from public quantities.
        event: everything it will release, priced as one.
        budget: the (epsilon, delta) it was calibrated to.
        public: what is public about the data.
        releases: number of noised values that leave the door.
        passes: expected passes over the data.
        memory_bytes: resident data and work space.
        seconds: rough estimate on one core, compilation excluded.
        predicted_excess: predicted excess of the objective over its non-private optimum; None if no formula applies.
        prediction: what the prediction is and how far to trust it.
        bound: a bound on the excess, where there is one.
        indicators: by name, what can be hoped for, such as lower bounds.
        notices: sentences for the user, from public quantities.
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
    prediction: str = ""
    bound: Bound | None = None
    indicators: Mapping[str, Finding] = field(default_factory=dict[str, Finding])
    notices: tuple[str, ...] = field(default=())

    @property
    def epsilon(self) -> float:
        """The price at the budget's delta."""
        return self.epsilon_at(self.budget.delta)

    def epsilon_at(self, delta: float) -> float:
        """The price at any delta."""
        near = self.budget.epsilon if delta == self.budget.delta and self.budget.is_private else None
        return accounting.epsilon(self.event, delta, self.public.relation, near=near)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        return {
            "solver": self.solver,
            "settings": dict(self.settings),
            "event": self.event.to_dict(),
            "epsilon": self.epsilon,
            "delta": self.budget.delta,
            "relation": self.public.relation.value,
            "unit": self.public.unit,
            "n": self.public.n,
            "d": self.public.d,
            "releases": self.releases,
            "passes": self.passes,
            "memory_bytes": self.memory_bytes,
            "seconds": self.seconds,
            "predicted_excess": self.predicted_excess,
            "prediction": self.prediction,
            "bound": None if self.bound is None else asdict(self.bound),
            "indicators": {name: asdict(found) for name, found in self.indicators.items()},
            "notices": list(self.notices),
        }

    def __str__(self) -> str:
        price = (
            "no privacy (epsilon = inf)" if math.isinf(self.budget.epsilon) else f"epsilon {self.epsilon:.4g}"
        )
        relation = f"{self.public.relation.value}, one {self.public.unit}"
        lines = [
            f"{self.solver}: {price} at delta {self.budget.delta:.3g} ({relation})",
            f"  {self.releases} releases, {self.passes:.3g} passes over {self.public.n} x {self.public.d}, "
            f"about {self.seconds:.2g} s and {self.memory_bytes / 2**20:.0f} MB",
        ]
        if self.predicted_excess is not None:
            lines.append(f"  predicted excess objective {self.predicted_excess:.3g} ({self.prediction})")
        if self.bound is None:
            lines.append("  no bound")
        else:
            held = f"with probability {self.bound.probability:.3g}, {self.bound.condition}"
            lines.append(f"  excess at most {self.bound.value:.3g} {held}")
        lines += [f"  {found.meaning}: {found.value:.3g}" for found in self.indicators.values()]
        lines += [f"  note: {notice}" for notice in self.notices]
        return "\n".join(lines)


def pass_seconds(public: Public, outputs: int = 1) -> float:
    """Rough time of one pass over dense rows on one core."""
    records = public.n * public.records_per_unit
    return records * (4 * public.d * BYTE_SECONDS * max(1, outputs / 2) + ROW_SECONDS * outputs)


def data_bytes(public: Public) -> int:
    """Memory of the stored rows, targets and norms (dense; sparse rows are smaller)."""
    return public.n * public.records_per_unit * (4 * public.d + 17)
