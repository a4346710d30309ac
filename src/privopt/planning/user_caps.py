"""What protecting users costs beside protecting records, and what a cap on their records does, from public numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from privopt.json_values import json_value
from privopt.ledger.gaussian_dp import gaussian_epsilon
from privopt.planning import users
from privopt.planning.instance import Instance
from privopt.public import of_users

CAPS = (1, 10, 100, 1000)


@dataclass(frozen=True, kw_only=True)
class CapPrice:
    """One way to count units, at the same budget.

    Attributes:
        cap: the most records of a user that are used; None where each record is a unit of its own.
        typical_records: the public guess of how many records of a user are used.
        units: how many units there are, of records a guess.
        noise: N0, the noise of one mean over the largest contribution of a unit; from 1 on a plan is refused.
        excess: what is expected of the objective above its optimum, see `users.expected_excess`.
        smallest_n: the number of units from which on the budget is workable.
        epsilon_of_person: what the same run promises to a person all of whose records change, at the same delta.
    """

    cap: int | None
    typical_records: float
    units: int
    noise: float
    excess: float
    smallest_n: int
    epsilon_of_person: float

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return json_value(vars(self))


def compare_caps(
    instance: Instance, *, typical: float | None = None, caps: Sequence[int] = CAPS
) -> tuple[CapPrice, ...]:
    """Records as units, and users with each of some caps, at one budget.

    Args:
        instance: the problem with users as units.
        typical: public guess of how many records a typical user has; None for the root of each cap.
        caps: the caps to compare.
    """
    return (_of_records(instance), *(_of_users(instance, cap, typical) for cap in caps))


def _of_users(instance: Instance, cap: int, typical: float | None) -> CapPrice:
    kept = None if typical is None else min(max(typical, 1.0), float(cap))
    public = replace(instance.public, **of_users(cap, instance.public.weighting, kept))
    return _price(replace(instance, public=public), cap, instance.budget.epsilon)


def _of_records(instance: Instance) -> CapPrice:
    """Each record a unit, as many as users of the typical number make; then a whole person is a group of records."""
    public = instance.public
    alone = {"unit": "record", "records_per_unit": 1, "weighting": "user", "typical_records": 1.0}
    each = replace(public, n=max(2, round(public.n * public.typical_records)), **alone)
    together = public.typical_records * instance.mu
    epsilon = (
        gaussian_epsilon(together, instance.budget.delta) if instance.is_private else instance.budget.epsilon
    )
    found = _price(replace(instance, public=each), None, epsilon)
    return replace(found, typical_records=public.typical_records)


def _price(instance: Instance, cap: int | None, epsilon: float) -> CapPrice:
    return CapPrice(
        cap=cap,
        typical_records=instance.public.typical_records,
        units=instance.public.n,
        noise=users.one_shot_noise(instance),
        excess=users.expected_excess(instance),
        smallest_n=users.smallest_workable_n(instance),
        epsilon_of_person=epsilon,
    )
