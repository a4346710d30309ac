"""What a fit is given: its arguments, checked as far as no size is needed, its public sizes, and its arrays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, final

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils.validation import check_consistent_length, column_or_1d

from privopt.data import cells, user_keys
from privopt.data.containers import check_column
from privopt.data.record_source import RecordSource
from privopt.data.rows import Storage
from privopt.data.targets import check_storage
from privopt.engine.choose import most_rows, settled
from privopt.errors import ArgumentError
from privopt.estimators import arguments
from privopt.estimators.penalties import PenaltyArguments
from privopt.estimators.records import HeldRecords, Shape, StoredRecords
from privopt.estimators.scaling import FeatureScaling, ends_of
from privopt.estimators.table_arguments import source_columns
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource, RepeatedChoice
from privopt.public import Relation, Weighting, of_users
from privopt.solvers.whitening import WIDEST
from privopt.tables.encoder import TabularEncoder
from privopt.tables.table import Table
from privopt.tables.values import TargetReading

UNIT, ENTRIES = "unit", "entries"
ROUNDED_UP = 1.0 + 2.0**-20  # so that rounding to float32 never makes a row longer than its bound


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Specification:
    """What an estimator was given, checked as far as no size is needed.

    Attributes:
        kind: the estimator's name.
        bounds, loose_bounds, scale_share: of the features.
        penalty: on the weights.
        relation: the neighbouring relation.
        n: the number of units, None for that of the data.
        row_bound: the largest length of a scaled row, "unit", "entries", or None for the usual one.
        fit_intercept: whether there is a constant.
        max_records_per_user, user_weighting, typical_records: of users.
        storage: the format of the stored rows.
        missing: the rule for missing entries.
        indicator: columns of features that get a column of 0 and 1, see `arguments.indicator_columns`; None for none.
    """

    kind: str
    bounds: Any
    loose_bounds: Any
    scale_share: float
    penalty: PenaltyArguments
    relation: Relation
    n: int | None
    row_bound: float | str | None
    fit_intercept: bool
    max_records_per_user: int
    user_weighting: Weighting
    typical_records: float | None
    storage: Storage
    missing: str = "midpoint"
    indicator: Any = None

    @classmethod
    def of(cls, kind: str, given: Mapping[str, Any]) -> "Specification":
        """The part of an estimator's arguments that `Setup` is made of; of the others nothing is looked at."""
        penalty = PenaltyArguments(**_fields_of(PenaltyArguments, given))
        own = {"kind": kind, "penalty": penalty, "relation": Relation.parse(given["relation"])}
        return cls(**_fields_of(cls, {**given, **own}))

    def __post_init__(self) -> None:
        """Check what nothing else would look at, or look at only where it matters."""
        arguments.check_switch("fit_intercept", self.fit_intercept)
        arguments.fraction("scale_share", self.scale_share, "the share of the budget for estimating bounds")
        self.users()
        check_storage(self.storage)
        arguments.check_missing(self.missing, self.indicator)
        n: Any = self.n
        if n is not None and (isinstance(n, bool) or not isinstance(n, int | np.integer)):
            raise TypeError(f"n must be an integer or None, got {n!r}: it is the public number of units.")

    def users(self) -> dict[str, Any]:
        """The entries of `Public` that say that a unit is a user.

        Raises:
            TypeError, ValueError: the cap, the weighting or the typical number is not usable.
        """
        return of_users(self.max_records_per_user, self.user_weighting, self.typical_records)

    def public_count(self, rows: int | None) -> int | None:
        """The number of units that advice may name: n, or under replace-one that of the rows.

        Raises:
            ValueError: n is missing under add-or-remove-one.
        """
        arguments.check_count(self.n, self.relation)
        return rows if self.n is None else self.n

    def with_strength(self, alpha: float | None) -> "Specification":
        """The same with one strength of the penalty, None for the default."""
        return replace(self, penalty=replace(self.penalty, alpha=alpha, alphas=None))

    def plain(self, shape: Shape) -> "Specification":
        """The same with rows as they are and a constant, without a penalty."""
        nothing = dict.fromkeys(("penalty", "alpha", "alphas", "feature_groups", "l1_radius"))
        penalty = replace(self.penalty, **nothing)
        longest = math.sqrt(shape.width) * ROUNDED_UP
        return replace(self, penalty=penalty, row_bound=longest, fit_intercept=True)

    def records(
        self, estimator: BaseEstimator, X: Any, y: Any, groups: Any, noise: NoiseSource
    ) -> HeldRecords:
        """The arrays of a fit, checked by shape and type only; number and names of features are noted on the estimator.

        Raises:
            ValueError, TypeError: a shape or a type is wrong.
        """
        if y is None:
            raise ValueError(f"{self.kind} requires y to be passed, but the target y is None.")
        # Under add-or-remove-one the number of rows is private: even none is a data set.
        least = 1 if self.relation is Relation.REPLACE_ONE else 0
        private_features = arguments.checked_features(estimator, X, least=least, reset=True)
        check_column(y, "y", "one target")
        private_features = arguments.with_named_indicators(estimator, private_features)
        private_targets = column_or_1d(cells.targets(y, labels=is_classifier(estimator)), warn=True)
        check_consistent_length(private_features, private_targets)
        if least == 1 and self.n is None and len(private_targets) < 2:
            raise ValueError(
                "a private fit needs at least 2 units, got n_samples = 1: a mean over one hides nobody."
            )
        if groups is not None:
            user_keys.key_columns(groups, len(private_targets))  # refused before anything else is asked
        return HeldRecords(
            private_features=private_features,
            private_targets=private_targets,
            groups=groups,
            noise=noise,
            choice=noise if groups is None else RepeatedChoice(noise),
        )

    def planned(
        self, width: int, n: int, *, by_user: bool, budget: Budget, row_entries: int | None = None
    ) -> Shape:
        """The public sizes of a fit which is yet to come, sparse if the most entries of a row are given.

        Raises:
            ValueError: these are no whole number of at least 1.
        """
        return Shape(
            width=width,
            n=n,
            by_user=by_user,
            is_sparse=row_entries is not None,
            row_entries=row_entries,
            names=self.bounded_names,
            budget=budget,
        )

    def table_records(
        self,
        table: Table,
        encoder: TabularEncoder,
        groups: Any,
        noise: NoiseSource,
        reading: TargetReading | None = None,
    ) -> StoredRecords:
        """The records of a table, by its headers alone; text files are read once, to count.

        Raises:
            TableError, ValueError: a column is missing, or stored as something that the schema rules out;
                or n is missing under add-or-remove-one.
        """
        self.public_count(None)  # nothing is counted where the number is private
        source = table.records(encoder, reading=reading, groups=groups)
        if self.relation is Relation.REPLACE_ONE and self.n is None and groups is None and source.rows < 2:
            raise ArgumentError(
                f"a private fit needs at least 2 units, got a table of {source.rows}: a mean over one hides nobody."
            )
        count = partial(_counted, table, source, groups)
        rows = most_rows(
            count() if self.n is None else self.n, None if groups is None else self.max_records_per_user
        )
        return StoredRecords(
            source=source,
            placement=settled(table.placement, rows, source.width, self.storage, source.most_entries),
            public_count=count,
            columns=source_columns(encoder),
            private_targets=None,
            noise=noise,
            choice=noise if groups is None else RepeatedChoice.lasting(noise),
        )

    def check_bounds(self) -> None:
        """Check that features have bounds of exactly one kind.

        Raises:
            ValueError: they have none, or both.
        """
        if self.bounds is not None and self.loose_bounds is not None:
            raise ValueError(
                "bounds and loose_bounds were both given: give bounds if the range of the features is known, or "
                "loose_bounds alone to have it estimated privately."
            )
        if self.bounds is None and self.loose_bounds is None:
            raise arguments.missing_bounds(self.kind)

    def plain_bounds(self, shape: Shape) -> dict[str, Any]:
        """The bounds that were given as one pair per feature, as (lows, highs); nothing where they were not."""
        given = {"bounds": self.bounds, "loose_bounds": self.loose_bounds}
        return {
            name: ends_of(bounds, shape.width, shape.names, name)
            for name, bounds in given.items()
            if bounds is not None and not isinstance(bounds, tuple)
        }

    @property
    def bounded_names(self) -> Sequence[str] | None:
        """The names of the features, where bounds were declared by column name: what a plan has of them."""
        bounds = self.loose_bounds if self.bounds is None else self.bounds
        return list(bounds) if isinstance(bounds, Mapping) else None

    def scalings(self, shape: Shape) -> tuple[FeatureScaling, FeatureScaling | None]:
        """The scaling by the bounds; or by the loose ones, with the one that better ones are estimated with."""
        self.check_bounds()
        added = 0 if self.indicator is None else len(self.indicator)
        zero, name = self.missing == "zero", "loose_bounds" if self.bounds is None else "bounds"
        scaling = partial(
            FeatureScaling.of,
            self.loose_bounds if self.bounds is None else self.bounds,
            width=shape.width - added,
            keep_zero=shape.is_sparse,
            indicators=added,
            names=None if shape.names is None else shape.names[: shape.width - added],
            name=name,
        )
        features = scaling(centered=self.fit_intercept, filling="zero" if zero else "midpoint")
        if self.bounds is not None:
            return features, None
        return features, scaling(centered=False, filling="zero" if zero else "nothing")

    def rows(self, shape: Shape, *, divisible: bool) -> tuple[float, bool]:
        """The largest length of a scaled row, and whether rows are divided by their lengths.

        Args:
            shape: the sizes.
            divisible: whether the model stays the same where rows are divided.
        """
        rule = self.row_bound if isinstance(self.row_bound, str) else None
        if self.row_bound is None:
            # Released without a bound on the rows, the second moment of rows with a constant needs no division.
            as_they_are = self.penalty.l1_radius is not None or (self.fit_intercept and shape.width < WIDEST)
            rule = UNIT if divisible and not as_they_are else ENTRIES
        if rule == UNIT and not divisible:
            raise ValueError("row_bound='unit' is for classifiers: it would not leave a linear regression.")
        if rule == UNIT:
            return ROUNDED_UP, True
        if rule == ENTRIES:
            return math.sqrt(shape.width) * ROUNDED_UP, False
        return arguments.positive("row_bound", self.row_bound, "the largest l2 norm of a scaled row"), False


def _fields_of(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some arguments that a value class has fields for."""
    return {one.name: given[one.name] for one in fields(kind) if one.name in given}


def _counted(table: Table, source: RecordSource, groups: Any) -> int:
    """How many units a table has, where that is public."""
    return source.rows if groups is None else user_keys.user_count(table.user_count(groups))
