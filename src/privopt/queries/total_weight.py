"""How much all units weigh: the scale of every weighted mean over users, and how many units are usable at all."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling, expected_units
from privopt.public import Public, Weighting
from privopt.queries.base import Scalar, UnitSum, query


@query
class TotalWeight(UnitSum):
    """Mean over units of their weights u_j in [0, 1]: 0 for a user without records, 1 where a unit is a record.

    Privacy:
        Sensitivity 1 / N under both relations: replacing a unit moves its weight from one number in [0, 1] to another,
        and adding or removing one by the weight itself. For a sample under replace-one it is 2 / N, since its price is
        worked out for two opposite contributions of half the sensitivity each.
    Source:
        Ours.
    """

    sensitivity_argument: ClassVar[str] = (
        "Two weights in [0, 1] are at most 1 apart, so that replacing a unit moves the sum by one radius."
    )

    def require_rows(self, public: Public) -> None:
        """It reads no entry of a row."""
        del public

    def radius(self) -> Scalar:
        """1, the largest weight."""
        return 1.0

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """1 / N; factor / N for a sample."""
        factor = 1 if isinstance(sampling, EveryUnit) else public.relation.factor
        return factor / expected_units(sampling, public.n)

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number."""
        del public
        return ()

    def unit_contribution(
        self,
        private_features: Float[Array, "M d"],
        private_targets: Float[Array, " M"],
        private_mask: Float[Array, " M"],
        private_weight: Scalar,
    ) -> Array:
        """The weight; the engine leaves units without records out."""
        del private_features, private_targets, private_mask
        return jnp.asarray(private_weight)

    def clip_unit(self, private_vector: Array) -> Array:
        """The weight in [0, 1]."""
        return jnp.clip(private_vector, 0.0, 1.0)


@query
class UsableUnits(TotalWeight):
    """The share of the units that hold something usable: `TotalWeight` with every such unit at weight 1.

    A record counts if its target could be read (and, where a missing feature makes its record count as zero, its
    features), a user if one of their records does. By N it is the number of usable units.

    Privacy:
        That of `TotalWeight`, whatever users weigh elsewhere: a unit adds 0 or 1.
    Source:
        Ours.
    """

    sensitivity_argument: ClassVar[str] = TotalWeight.sensitivity_argument
    weighting: ClassVar[Weighting | None] = "user"
