"""What is computed on private data, and how far one unit can move it.

A query is a value: building one touches no data. Its array fields are public points, so that a new point needs no new
compilation; everything else is static. The engine maps a query over the units; the query says what one record
contributes, how a unit's contribution is clipped, and what the sensitivity of the result is.

    Query
    ├── RecordSum          mean over units of clip(average over the unit's records)
    ├── lots.LotSum        likewise, of contributions that also depend on a random lot of the unit
    ├── UnitSum            mean over units of clip(a function of all the unit's records)
    ├── StatisticOfHeld    a function of per-unit vectors that stay with the curator
    ├── FunctionOfMean     a public function of a mean that stays with the curator
    └── of_records         functions of all the records at once: ends of optimisations, minimisers, passes
"""

import abc
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

import numpy as np

from privopt.later import Array, Bool, Float, is_jax, jax, jnp
from privopt.ledger.events import EveryUnit, Sampling, expected_units
from privopt.precision import arrays_of
from privopt.problems.projections import scale_of, scales_of
from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.proofs.huberised_sum import LossSum
from privopt.public import Public, Relation, Weighting

Scalar = Any  # a Python float, or a traced zero-dimensional float64 array inside a compiled loop
Norm = Literal["l2", "linf", "range"]
QueryType = TypeVar("QueryType")
ROUNDING_MARGIN = 1e-9  # relative; a float64 norm of d entries is off by at most d * 1.2e-16
SMALLEST_RADIUS, LARGEST_RADIUS = (
    1e-100,
    1e100,
)  # between them no sum, mean, square or sensitivity leaves float64


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False, field_specifiers=(field,))
def query(cls: type[QueryType]) -> type[QueryType]:
    """Make a class a frozen dataclass and a JAX pytree; fields marked by `static()` are not traced.

    The class is part of what the pytree is compared by. JAX 0.10 finds two `register_dataclass` structures of different
    classes equal where their fields are, and might run what was compiled for one query in place of another: one whose
    clip differs, and so not what its sensitivity is stated for.
    """
    made: Any = dataclass(frozen=True, kw_only=True, eq=False)(cls)
    traced = tuple(one.name for one in fields(made) if not one.metadata.get("static"))
    fixed = tuple(one.name for one in fields(made) if one.metadata.get("static"))

    def flatten(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(node, name) for name in traced), (
            made,
            *(getattr(node, name) for name in fixed),
        )

    def unflatten(kind: tuple[Any, ...], leaves: Iterable[Any]) -> Any:
        return made(**dict(zip(traced, leaves, strict=True)), **dict(zip(fixed, kind[1:], strict=True)))

    jax.tree_util.register_pytree_node(made, flatten, unflatten)
    return made


def static() -> Any:
    """A dataclass field that is part of the compiled program (a loss, a flag), not an array."""
    return field(metadata={"static": True})


def shrunk_radius(radius: Scalar) -> Scalar:
    """The radius that a clip aims at, never above the stated one.

    Args:
        radius: the stated radius; infinite leaves finite contributions alone. Public.
    Privacy:
        `ROUNDING_MARGIN` inside the radius. A finite radius above 1e100 is cut to it, since the overflow of a sum would
        be seen through any noise; one below 1e-100, or not a number, becomes 0, since its sensitivity could underflow
        to 0 where the contributions do not.
    """
    if not is_jax(radius):
        stated = float(radius)
        cut = stated if math.isinf(stated) else min(stated, LARGEST_RADIUS)
        return np.float64(cut * (1.0 - ROUNDING_MARGIN) if stated >= SMALLEST_RADIUS else 0.0)
    stated = jnp.asarray(radius, jnp.float64)
    cut = jnp.where(jnp.isinf(stated), stated, jnp.minimum(stated, LARGEST_RADIUS)) * (1.0 - ROUNDING_MARGIN)
    return jnp.where(stated >= SMALLEST_RADIUS, cut, 0.0)


def clip_to_ball(private_vector: Float[Array, " *shape"], radius: Scalar) -> Float[Array, " *shape"]:
    """Scale a contribution into the l2 ball of `radius`; send anything not finite to zero.

    Args:
        private_vector: one unit's contribution, in the units of the query; matrices count as flat vectors.
        radius: largest norm allowed, same units, at least 0; infinite leaves finite vectors alone. Public.
    Privacy:
        One unit's share of a sum is at most `radius`: the vector is divided by the size of its largest entry before its
        norm is taken (no overflow, no underflow; see `scale_of`), and scaled 1e-9 inwards, more than a float64 norm of
        10^6 entries can be off by.
    Raises:
        Nothing: the input is private.
    Source:
        Abadi et al. 2016, Algorithm 1 ("Clip gradient"). Zero for non-finite values is ours.
    """
    private_finite = jnp.all(jnp.isfinite(private_vector))
    private_safe = jnp.where(private_finite, private_vector, jnp.zeros_like(private_vector))
    private_scale = scale_of(private_safe)
    private_unit = private_safe / private_scale
    private_length = jnp.sqrt(jnp.sum(private_unit * private_unit))
    aim = shrunk_radius(radius)
    private_inside = (private_length * private_scale <= aim) & (aim > 0)
    private_factor = aim / jnp.where(private_length > 0, private_length, 1.0)
    private_clipped = private_unit * jnp.where(jnp.isfinite(private_factor), private_factor, 0.0)
    return jnp.where(private_inside, private_safe, private_clipped)


def clip_rows_to_ball(
    private_coefficients: Float[Array, "rows K"],
    private_norms: Float[Array, " rows"],
    radius: Scalar,
    norm: Norm = "l2",
) -> Float[Array, "rows K"]:
    """Coefficients s of contributions outer(a, s) such that each is within the ball of `radius`.

    Args:
        private_coefficients: s of each row; one that is not finite becomes 0.
        private_norms: |a| of each row, rounded up.
        radius: largest |a| |s|, at least 0; infinite leaves finite coefficients alone. Public.
        norm: of s, a and their product.
    Privacy:
        The norm of outer(a, s) is |a| |s|, Frobenius for l2 and largest entry for l_inf; `private_norms` are rounded
        up and the radius is moved inwards by 1e-9, more than the float64 norm of s can be off by. A coefficient that is
        too long becomes `(s / scale) (radius / (|s / scale| |a|))`: every number in it is normal, since a stored row is
        zero or no shorter than `data.rows.LEAST_PEAK`, so nothing is rounded more coarsely than float64 states.
    """
    xp = arrays_of(private_coefficients)
    private_finite = xp.all(xp.isfinite(private_coefficients), axis=1)
    private_kept = xp.where(private_finite[:, None], private_coefficients, 0.0)
    private_scale = scales_of(private_kept) if xp is np else jax.vmap(scale_of)(private_kept)
    private_unit = private_kept / private_scale[:, None]
    if norm == "l2":
        private_length = xp.sqrt(xp.sum(private_unit * private_unit, axis=1))
    else:
        private_length = xp.max(xp.abs(private_unit), axis=1)
    private_size = private_length * private_norms
    aim = shrunk_radius(radius)
    private_inside = (private_scale * private_size <= aim) & (aim > 0)
    private_factor = aim / xp.where(private_size > 0, private_size, 1.0)
    return xp.where(private_inside[:, None], private_kept, private_unit * private_factor[:, None])


@dataclass(frozen=True, kw_only=True)
class RowForm:
    """A generalised-linear contribution `outer(a, s)`: the feature row times `outputs` numbers.

    Attributes:
        points: public matrix (d, P); the engine forms predictions = rows @ points.
        coefficients: (predictions (rows, P), targets (rows,), norms (rows,)) -> s (rows, outputs), before the clip.
        outputs: number of columns of one contribution.
        shape: shape of the summed contribution, (d,) or (d, outputs).
        radius: largest norm of one unit's contribution.
        norm: which norm the clip uses; the norm of outer(a, s) is |a| |s|, so clipping needs scalars only.
        averages: whether a user's vector is the average of their records' contributions, clipped once. If not, the
            form holds where a unit is a record, and of the fast paths only the kernel knows users.
        kernel: names the compiled kernel that computes the same thing, or None.
    """

    points: Float[Array, "d P"]
    coefficients: Callable[[Array, Array, Array], Array]
    outputs: int
    shape: tuple[int, ...]
    radius: Scalar
    norm: Norm = "l2"
    averages: bool = True
    kernel: "KernelCall | None" = None


@dataclass(frozen=True, kw_only=True)
class KernelCall:
    """Which compiled kernel computes a row form.

    Attributes:
        kind: "gradient" (one point), "difference" (two points: at, anchor) or "mixed" (at, previous).
        code: the loss formula, `problems.losses.KernelCode`.
        parameters: the formula's two numbers.
        inner: clip of each gradient before the difference is taken, infinite for none; of the mixed gradient.
        change: clip of the change of a mixed gradient.
        gain: weight of that change, in [0, 1]; the gradient has the rest.
        balanced: C of a balanced gradient, see `ClippedGradient`; infinite for a plain one.
    """

    kind: Literal["gradient", "difference", "mixed"]
    code: int
    parameters: tuple[float, float]
    inner: Scalar = float("inf")
    change: Scalar = 0.0
    gain: Scalar = 0.0
    balanced: Scalar = float("inf")


class Query(abc.ABC):
    """Something computed on private data, with a public bound on how far one unit can move it."""

    norm: ClassVar[str] = "l2"

    @property
    def name(self) -> str:
        """What the transcript calls it."""
        return type(self).__name__

    @property
    def about(self) -> Any:
        """What says which numbers the answer holds, where its name does not; public, and kept with the release."""
        return None

    @abc.abstractmethod
    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """Largest distance, in `norm`, between the values on two neighbouring data sets. Needs no data."""

    @abc.abstractmethod
    def shape(self, public: Public) -> tuple[int, ...]:
        """Shape of the value."""

    def require_rows(self, public: Public) -> None:
        """Refuse rows that are not what the query reads, from public facts: by default, those of a coded table.

        It is not asked of a query that reads none, but points or a mean that the curator holds.

        Raises:
            ValueError: they are not.
        """
        public.require_numbers(self.name)


class MeanQuery(Query):
    """The mean over units of one clipped contribution a unit.

    value = finish( (1 / N) sum over participating units of clip(contribution) ),  N = n, or rate * n when sampled.

    Privacy:
        `clip_unit` maps every unit's contribution into a ball of `radius` (non-finite ones to zero), so replacing
        a unit moves the sum by at most 2 * radius and adding or removing one by at most radius; N is public,
        `finish` is 1-Lipschitz. The engine's float64 rounding bound is added by the curator.
        A class of somebody's own is held to this: the engine scales what its clip leaves too long, and a sensitivity
        below factor * radius / N is refused without an argument. That `finish` is 1-Lipschitz is taken on trust. See
        `queries.safeguards`.
    Attributes:
        radius_norm: the norm of a contribution that `radius` bounds; empty for `norm`, which it must bound unless
            `finish` changes the norm. See `safeguards.into_radius`.
        sensitivity_argument: why a sensitivity below factor * radius / N is enough, in a sentence; empty where it is
            not below. It serves the class that declares it, and no subclass that computes something else.
        weighting: what a user's average weighs in this query; None for the weighting of the data. A public choice: the
            clip bounds a user's vector whatever its weight.
    """

    radius_norm: ClassVar[str] = ""
    sensitivity_argument: ClassVar[str] = ""
    weighting: ClassVar[Weighting | None] = None

    @abc.abstractmethod
    def radius(self) -> Scalar:
        """Largest norm of one unit's contribution, a public number."""

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor * radius / N, with factor 2 for replace-one and 1 for add-or-remove-one."""
        return public.relation.factor * self.radius() / expected_units(sampling, public.n)

    def clip_unit(self, private_vector: Array) -> Array:
        """Map one unit's contribution into the ball of `radius`."""
        return clip_to_ball(private_vector, self.radius())

    def without_bad(self, private_vector: Array) -> Array:
        """One unit's contribution before the clip, as zero if it is not finite."""
        private_finite = jnp.all(jnp.isfinite(private_vector))
        return jnp.where(private_finite, private_vector, jnp.zeros_like(private_vector))

    def finish(self, private_mean: Array) -> Array:
        """A 1-Lipschitz map of the mean."""
        return private_mean


class RecordSum(MeanQuery):
    """A mean query whose unit contribution is the average of its records' contributions."""

    @abc.abstractmethod
    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """What one record contributes, before averaging within its unit and clipping. Public mathematics."""

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear shape of the same query, if it has one."""
        del public
        return None


class AtPoint(MeanQuery):
    """A mean that is shaped like the parameters: the class declares a field `at`, a public point."""

    at: Any

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(np.shape(self.at))


class Clipped(MeanQuery):
    """A mean whose units are clipped to a field that the class declares, `clip`."""

    clip: Scalar

    def radius(self) -> Scalar:
        """The clip."""
        return self.clip


class Number(Query):
    """A query whose value is a number."""

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number."""
        del public
        return ()


class RowShaped(Query):
    """A query whose value has one entry a feature."""

    def shape(self, public: Public) -> tuple[int, ...]:
        """(d,)."""
        return (public.d,)


class UnitSum(MeanQuery):
    """A mean query whose unit contribution is a function of all the unit's records."""

    @abc.abstractmethod
    def unit_contribution(
        self,
        private_features: Float[Array, "M d"],
        private_targets: Float[Array, " M"],
        private_mask: Float[Array, " M"],
        private_weight: Scalar,
    ) -> Array:
        """What one unit contributes, before clipping.

        Args:
            private_features: its rows; those of absent records are zero.
            private_targets: likewise.
            private_mask: 1 for a record, 0 for none.
            private_weight: what the weighting gives the unit, in [0, 1]; it is applied here or not at all.
        """


def acute_factor(public: Public, sampling: Sampling) -> float:
    """What a radius is multiplied by where the contributions of any two units make no obtuse angle.

    1 for add-or-remove-one. Replacing A by B moves a sum by |A - B|, and |A - B|^2 = |A|^2 + |B|^2 - 2 <A, B> is at
    most twice the square of the radius: sqrt(2), not 2. On a sample it is 2 all the same: the price of a sample under
    replace-one is that of two opposite contributions of half the sensitivity each, so half of it must be no shorter
    than one contribution.
    """
    if public.relation is not Relation.REPLACE_ONE:
        return 1.0
    return math.sqrt(2.0) if isinstance(sampling, EveryUnit) else 2.0


class AcuteMean(MeanQuery):
    """A mean of contributions of which any two make no obtuse angle; the class argues that they do not."""

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """radius / N times `acute_factor`."""
        return acute_factor(public, sampling) * self.radius() / expected_units(sampling, public.n)


NO_NEGATIVE_ENTRY = (
    "No entry of a contribution is negative, so that two make no obtuse angle: replacing one by another moves the "
    "sum by sqrt(2) radii."
)  # the `sensitivity_argument` of the classes whose contributions have none


class StatisticOfHeld(Query):
    """A statistic of points held by the curator (`Curator.hold`); the class argues its sensitivity.

    Public about them are `held.points`, K, and `held.replaced`, which says whether a neighbouring data set replaces one
    point or adds or removes one.

    Attributes:
        on_samples: which requests of `TestedSamples` may be fed with it on points of a secret sample. It serves the
            class that declares it and no subclass. "answer" claims that the statistic reads present rows only and moves
            by at most its sensitivity where a unit enters, leaves or is replaced; "mean" claims in addition that under
            replace-one entering or leaving moves it by at most *half* of its sensitivity, as the price supposes.
    """

    on_samples: ClassVar[frozenset[str]] = frozenset()

    held: Any

    @abc.abstractmethod
    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """The statistic, from the rows that are points.

        Args:
            private_vectors: one row a point, in a secret random order, and rows of zeros.
            private_present: which rows are points. Where points are replaced all K are; else at most K, and in a random
                block of the units perhaps more. A statistic that counts a row that is none has the sensitivity of
                replaced points: a unit that comes or goes replaces a row of zeros.
        """


class FunctionOfMean(Query):
    """A public function of a mean held by the curator (`Curator.hold_mean`); the class argues its sensitivity.

    Attributes:
        mean: the handle, which says what was computed and how far one unit moves it. An argument that rests on how a
            contribution is made checks the class of `mean.query`. The rounding of the sum and of `value` itself, on
            both data sets, is part of the sensitivity.
    """

    mean: Any

    @abc.abstractmethod
    def value(self, private_mean: Any) -> Any:
        """The value, from a float64 array of `mean.shape`."""


# ------------------------------------------------------------------------------------------------------------
# Queries of all the records at once, which are no means over units; their classes argue their
# sensitivities.
# They see records, not which user owns them: the curator refuses them where a unit is a user.
#
#     RecordsQuery       a function of the rows
#     ObjectiveQuery     a function of sums over the rows: gradients of one objective, and its Hessians
#     ArgminQuery        a minimiser of one objective whose noise sits inside it
#     PassQuery          the end of one pass over the rows, in a secret order


class RecordsQuery(Query):
    """A function of all the rows, which whoever computes it must hold at once."""

    @abc.abstractmethod
    def value(self, public: Public, private_features: Any, private_targets: Any) -> Any:
        """The value, from the stored rows and targets.

        There may be fewer of them than `public.n`, and where a unit may be added or removed their number is private: a
        mean divides by `public.n`.
        """


class ObjectiveQuery(Query):
    """A function of an objective over all the records, such as the end of an optimisation.

    It asks for gradients, Hessians and their products at points of its own choice, never for rows: whoever holds the
    rows adds up its own. What it asks depends on the data, as do the answers: both are private.
    """

    @abc.abstractmethod
    def objective(self, public: Public) -> HuberisedObjective:
        """The objective, from public numbers."""

    @abc.abstractmethod
    def value(self, public: Public, private_sum: LossSum) -> Any:
        """The value, from the sum over the records.

        There may be fewer of them than `public.n`, and where a unit may be added or removed their number is private: a
        mean divides by `public.n`.
        """


class ArgminQuery(Query):
    """A minimiser with noise inside its objective; the mechanism receives it as a function of the noise.

    Its inner iteration count depends on data: the one documented exception to "no loop count depends on data".
    """

    def require_mechanism(self, mechanism: Any, public: Public) -> None:
        """Refuse a mechanism whose price does not cover this query, from public numbers; by default, every one.

        Raises:
            ValueError: the mechanism was not made for this query and these public numbers.
        """
        del public
        raise ValueError(
            f"{self.name} cannot be released by {type(mechanism).__name__}: what noise inside an objective costs "
            "depends on the objective, so use the mechanism that the query makes."
        )

    @abc.abstractmethod
    def objective(self, public: Public) -> HuberisedObjective:
        """The objective, from public numbers; asked for as an `ObjectiveQuery` asks."""

    @abc.abstractmethod
    def minimise(self, public: Public, private_sum: LossSum, noise: Any, tolerance: float) -> Any:
        """The minimiser of the perturbed objective, to a residual of at most `tolerance`."""

    @abc.abstractmethod
    def implied_noise(self, public: Public, private_sum: LossSum, solution: Any) -> Any:
        """The noise under which `solution` is the minimiser: the inverse map, which the audit compares."""


class PassQuery(Query):
    """The end of one pass over the records, in a secret order, with noise at its steps or at its end.

    A record's place must not depend on who else is there: the query itself refuses add-or-remove-one.
    """

    @abc.abstractmethod
    def require_mechanism(self, mechanism: Any, public: Public) -> None:
        """Refuse a mechanism that does not draw what this pass needs, from public numbers.

        Raises:
            ValueError: the mechanism was not made for this query and these public numbers.
        """

    @abc.abstractmethod
    def follow(
        self,
        public: Public,
        private_features: Any,
        private_targets: Any,
        order: Any,
        draw: Callable[[int], Any],
    ) -> Any:
        """The end of the pass.

        Args:
            public: of the records; position i of `order` is a record for i below their number, and absent from there.
            private_features: the stored rows.
            private_targets: likewise.
            order: a permutation of 0, ..., n - 1.
            draw: the noise of the next so many steps, a row a step.
        """

    @abc.abstractmethod
    def moved(
        self, public: Public, private_left: Any, private_right: Any, order: Any, draw: Callable[[int], Any]
    ) -> float:
        """What the sensitivity bounds, for two data sets (features, targets): for the audit."""
