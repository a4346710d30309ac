"""Several plans for one problem, the default choice first."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from privopt.errors import BudgetExceeded, BudgetTooSmall, NotPriceable
from privopt.notebook import card, table
from privopt.planning.plan import COMPARED, Plan, compared, comparison, labelled
from privopt.planning.task import Task
from privopt.solvers.program import Program

OTHERS = "Other solvers"
FOR_MANY_RECORDS = "Made for users with many records"
MADE_FOR_USERS = "Other solvers, made for users"
ON_AVERAGES = "Made for records, here on users' averages"


@dataclass(frozen=True)
class Plans:
    """Every applicable solver's plan, the default choice first.

    Attributes:
        plans: the plans.
        refused: (solver, reason) of those that cannot solve the problem at this budget.
        for_users: those that were made for units of several records.
    """

    plans: tuple[Plan, ...]
    refused: tuple[tuple[str, str], ...] = ()
    for_users: frozenset[str] = frozenset()

    @property
    def default(self) -> Plan:
        """What `solver="auto"` would run."""
        return self.plans[0]

    def __getitem__(self, solver: str) -> Plan:
        """The plan of a solver by its name.

        Raises:
            KeyError: there is none; it says why.
        """
        for one in self.plans:
            if one.solver == solver:
                return one
        why = dict(self.refused).get(solver, f"there are plans of {[one.solver for one in self.plans]}")
        raise KeyError(f"no plan of {solver!r}: {why}")

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return {
            "default": self.default.solver,
            "reason": self.default.reason,
            "plans": [one.to_dict() for one in self.plans],
            "refused": [{"solver": name, "reason": reason} for name, reason in self.refused],
        }

    def __str__(self) -> str:
        lines = [str(self.default)]
        for heading, plans in self.others():
            lines += ["", f"{heading}, the whole plan of each in `plans[name]`:", *compared(plans)]
        if self.refused:
            lines += ["", "Not applicable:"]
            for names, reason in self._refused():
                several = ", " in names
                lines += labelled([("", f"{names}: {reason}")] if several else [(f"{names}:", reason)])
        return "\n".join(lines)

    def others(self) -> list[tuple[str, list[Plan]]]:
        """The plans that were not chosen under headings, those of methods for users and for records apart."""
        rest, by_user = self.plans[1:], self.default.public.by_user
        for_users = [one for one in rest if one.solver in self.for_users]
        for_records = [one for one in rest if one.solver not in self.for_users]
        if by_user:
            parts = [(MADE_FOR_USERS, for_users), (ON_AVERAGES, for_records)]
        else:
            parts = [(OTHERS, for_records), (FOR_MANY_RECORDS, for_users)]
        return [(heading, plans) for heading, plans in parts if plans]

    def _refused(self) -> list[tuple[str, str]]:
        """Each reason once, behind the names of all that it keeps out."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.refused:
            by_reason.setdefault(reason, []).append(name)
        return [(", ".join(names), reason) for reason, names in by_reason.items()]

    def _repr_html_(self) -> str:
        others = "".join(
            table([heading, *COMPARED], [comparison(other) for other in plans])
            for heading, plans in self.others()
        )
        refused = card("Not applicable", self._refused())
        parts = [
            card(self.default.headline, self.default.rows()),
            others,
            refused * bool(self.refused),
        ]
        return "".join(parts)


def all_plans(default: Program[Any], reason: str, others: Iterable[Program[Any]], task: Task[Any]) -> Plans:
    """The plan of the default choice, and of every other program that can solve the problem at this budget.

    Args:
        default: what would run.
        reason: why, as the end of a sentence.
        others: programs, their fields open.
        task: the problem, the public numbers and the budget.
    """
    plans = [replace(default.plan(task), reason=reason)]
    for_users: list[str] = []
    refused: list[tuple[str, str]] = []
    for other in others:
        if other.title == default.title:
            continue
        obstacle = other.obstacle(task.problem, task.public)
        try:
            if obstacle is None:
                plans.append(other.plan(task))
                for_users += [other.title] if other.is_for_users else []
        except (NotPriceable, BudgetTooSmall, BudgetExceeded) as unpriced:
            obstacle = str(unpriced)
        if obstacle is not None:
            refused.append((other.title, obstacle))
    return Plans(tuple(plans), tuple(refused), frozenset(for_users))
