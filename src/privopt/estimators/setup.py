"""Everything public about a fit, and the way between scaled and given units."""

import math
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privopt.data.record_source import Description
from privopt.data.rows import Storage
from privopt.data.targets import bound_with, check_storage
from privopt.data.units import Units
from privopt.declared_facts import COUNTED_USERS
from privopt.engine.protocol import Engine
from privopt.estimators.penalties import default_strength
from privopt.estimators.records import Records, Shape
from privopt.estimators.scaling import Bounds, FeatureScaling, RowLengths, ScaledFeatures, constant_features
from privopt.estimators.specification import ENTRIES, ROUNDED_UP, Specification
from privopt.estimators.targets import Target
from privopt.ledger.amounts import Budget
from privopt.planning import plan
from privopt.planning.plan import Plan, meaning_of
from privopt.planning.task import Instance
from privopt.problems.problem import Problem
from privopt.public import INTEGER_STORAGES, Public, Relation
from privopt.tables.values import MISSING_WORDS

LOOSE_STORAGE: Storage = "float32"  # on a grid over a loose range the columns' magnitudes would be lost
INTERCEPT = 1.0  # value of the constant column: as large as the largest scaled feature


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """Everything public about a fit, fixed before a feature or a target is looked at.

    Attributes:
        specification: the arguments.
        target: what is predicted.
        shape: the sizes.
        features: how features are scaled; by the loose bounds as long as better ones are not estimated.
        loose: how they are scaled for that estimation, without a shift: float32 rows keep the relative precision of
            small entries; None where the bounds are given.
        row_bound: largest l2 norm of a scaled row; the constant column is left out, but with `unit_rows` included.
        unit_rows: whether each scaled row, the constant included, is divided by its length, to fit and to predict.
        alpha: the strength of the penalty; None without one.
        problem: what is minimised, in scaled units.
    """

    specification: Specification
    target: Target
    shape: Shape
    features: FeatureScaling
    loose: FeatureScaling | None
    row_bound: float
    unit_rows: bool
    alpha: float | None
    problem: Problem

    @classmethod
    def of(cls, given: Specification, target: Target, shape: Shape) -> "Setup":
        """Everything public about a fit of some shape.

        Raises:
            ValueError, TypeError: an argument is missing or out of its range.
        """
        check_storage(given.storage, is_sparse=shape.is_sparse)
        features, loose = given.scalings(shape)
        row_bound, unit_rows = given.rows(shape, divisible=target.divides_rows)
        setup = cls(
            specification=given,
            target=target,
            shape=shape,
            features=features,
            loose=loose,
            row_bound=row_bound,
            unit_rows=unit_rows,
            alpha=None,
            problem=Problem(target.loss, constant=shape.width if given.fit_intercept else None),
        )
        budget = Budget(math.inf, 0.0) if shape.budget is None else shape.budget
        default = default_strength(given.penalty, Instance(setup.problem, setup.public, budget))
        width, intercept = shape.width, given.fit_intercept
        regulariser = given.penalty.regulariser(
            width=width, default=default, intercept=intercept, kind=given.kind, names=shape.names
        )
        constraint = given.penalty.constraint(width=width, outputs=target.loss.outputs, intercept=intercept)
        alpha = given.penalty.strength(default) if given.penalty.is_penalised else None
        constant = width if intercept else None
        problem = Problem(target.loss, regulariser, constraint, constant=constant)
        return replace(setup, alpha=alpha, problem=problem)

    @property
    def intercept(self) -> float | None:
        """Value of the constant column; None without an intercept."""
        return INTERCEPT if self.specification.fit_intercept else None

    @property
    def public(self) -> Public:
        """What `units` will state to be public, but for what is known of sparse rows."""
        by_user = self.shape.by_user
        return Public(
            n=self.shape.n,
            d=self.features.width + (self.intercept is not None),
            relation=self.specification.relation,
            row_bound=self._longest_row(),
            entry_bound=self.entry_bound,
            outputs=self.problem.loss.outputs,
            storage=self.specification.storage,
            **(self.specification.users() if by_user else {}),
        )

    @property
    def planned(self) -> Public:
        """What `units` will state to be public: what a plan goes by, and the room that is asked for."""
        entries = self.shape.row_entries
        most = None if entries is None else entries + (self.intercept is not None)
        return replace(self.public, sparse=self.shape.is_sparse, row_entries=most)

    @property
    def entry_bound(self) -> float | None:
        """Largest entry of a scaled row where it is gone by: on an l1 ball, by the rule for rows, or by a grid."""
        given = self.specification
        by_entries = given.penalty.l1_radius is not None or given.row_bound == ENTRIES
        by_entries |= given.storage in INTEGER_STORAGES
        return max(1.0, INTERCEPT) if by_entries and not self.unit_rows else None

    def _longest_row(self) -> float:
        """The bound that `Units` will state, to the last digit: prices are compared by equality."""
        if self.unit_rows or self.intercept is None:
            return self.row_bound
        return bound_with(self.row_bound, float(np.float32(self.intercept)))

    def units(self, records: Records) -> Units | Engine:
        """The records as privacy units."""
        inside, beside = (self.intercept, None) if self.unit_rows else (None, self.intercept)
        rows = ScaledFeatures(self.features, unit=self.unit_rows, constant=inside)
        storage = self.specification.storage
        return self._units(rows, records, row_bound=self.row_bound, intercept=beside, storage=storage)

    @property
    def loose_public(self) -> Public:
        """What `loose_units` will state to be public."""
        return replace(
            self.public,
            d=self.features.width,
            row_bound=math.sqrt(self.features.width) * ROUNDED_UP,
            storage=LOOSE_STORAGE,
        )

    def loose_units(self, records: Records) -> Units | Engine:
        """The same for the estimation of scales: rows divided by the loose range and not cut."""
        assert self.loose is not None
        longest = math.sqrt(self.features.width) * ROUNDED_UP
        rows = ScaledFeatures(self.loose)
        return self._units(rows, records, row_bound=longest, intercept=None, storage=LOOSE_STORAGE)

    def _units(
        self,
        rows: ScaledFeatures,
        records: Records,
        *,
        row_bound: float,
        intercept: float | None,
        storage: Storage,
    ) -> Units | Engine:
        given, scaling = self.specification, self.target.scaling
        # Users were counted, which is public under replace-one only; records are counted again where they are read.
        counted = given.n is None and self.shape.by_user and given.relation is Relation.REPLACE_ONE
        description = Description(
            relation=given.relation,
            row_bound=row_bound,
            entry_bound=self.entry_bound,
            n=self.shape.n if counted else given.n,
            max_records_per_user=given.max_records_per_user,
            user_weighting=given.user_weighting,
            typical_records=given.typical_records,
            classes=self.target.coded,
            target_bounds=None if scaling is None else scaling.ends,
            intercept=intercept,
            storage=storage,
        )
        return records.units(rows, None if scaling is None else scaling.apply, description)

    def within(self, bounds: Bounds) -> "Setup":
        """The same fit with features scaled by estimated bounds."""
        low, high = np.asarray(bounds[0]), np.asarray(bounds[1])
        return replace(self, features=replace(self.features, low=low, high=high))

    def unscaled(self, params: Any) -> tuple[NDArray[np.float64], Any]:
        """`coef_` and `intercept_` for features and targets as given, from released parameters."""
        matrix = np.asarray(params, np.float64).reshape(-1, self.problem.loss.outputs).T
        width = self.features.width
        offset = np.zeros(len(matrix)) if self.intercept is None else matrix[:, width] * self.intercept
        return self.target.unscaled(*self.features.undo(matrix[:, :width], offset))

    def scaled(self, coef: NDArray[np.float64], intercept: Any) -> NDArray[np.float64]:
        """The inverse of `unscaled`, (outputs, d + 1); for a setup with an intercept."""
        assert self.intercept is not None
        scaled, constant = self.features.redo(*self.target.scaled(coef, intercept))
        return np.concatenate([scaled, constant[:, None] / self.intercept], axis=1)

    def attributes(self, coef: NDArray[np.float64], intercept: Any) -> dict[str, Any]:
        """What a model with these released numbers sets."""
        lengths = RowLengths(self.features, self.intercept) if self.unit_rows else None
        return {
            "alpha_": self.alpha,
            "bounds_": (self.features.low, self.features.high),
            "coef_": coef,
            "intercept_": intercept,
            **({"row_lengths_": lengths} if self.target.divides_rows else {}),
            **self.target.attributes,
        }

    @property
    def notices(self) -> tuple[str, ...]:
        """What the declared bounds make of the features, where a user may not have meant it."""
        declared = self.features if self.loose is None else self.loose
        return constant_features(declared.low, declared.high, self.shape.names)

    def noted(self, plan: Plan) -> Plan:
        """A plan of this fit, with the `notices`."""
        return replace(plan, notices=tuple(dict.fromkeys((*plan.notices, *self.notices))))

    def declared(self) -> tuple[str, ...]:
        """What the user declared to be public, in sentences."""
        given = self.specification
        moved = "values outside were moved to the nearer end."
        if self.loose is None:
            bounds = f"Bounds, given by the user: {self.features.describe()}; {moved}"
        else:
            bounds = (
                f"Loose bounds, given by the user: {self.loose.describe()}. Tighter ones were estimated privately, "
                f"in one release, for {100 * given.scale_share:g} % of the budget (of its rho); {moved}"
            )
        sentences = [bounds, MISSING_WORDS[given.missing], self.target.declared]
        penalty = given.penalty.describe()
        if penalty is not None:
            sentences.append(penalty)
        if given.row_bound not in (None, ENTRIES) and not self.unit_rows:
            sentences.append(
                f"Longest scaled row, given by the user: {self.row_bound:g}; longer rows were shortened."
            )
        if given.storage in INTEGER_STORAGES:
            sentences.append(f"Storage, chosen by the user: {meaning_of(given.storage)}.")
        units = "users" if self.shape.by_user else "records"
        if given.n is not None:
            sentences.append(f"Number of {units}, given by the user: {given.n:,}.")
        else:
            counted = f" {COUNTED_USERS}" if self.shape.by_user else ""
            sentences.append(f"Number of {units}: public under replace-one.{counted}")
        if self.shape.by_user:
            sentences.append("User keys, given by the user: they name the owner of every record.")
            sentences.append(plan.meaning_of_cap(self.public))
            by = (
                "given by the user" if given.typical_records is not None else "by default the root of the cap"
            )
            sentences.append(
                f"Typical number of records, {by}: {plan.records(self.public.typical_records)} that are used."
            )
        return tuple(sentences)
