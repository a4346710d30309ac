"""A private linear classifier for the worst off of several groups."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.utils.validation import column_or_1d

from privopt.curator.base import Observer
from privopt.data import cells
from privopt.data.containers import check_column
from privopt.data.targets import check_targets
from privopt.errors import ArgumentError, tells_what_was_spent
from privopt.estimators.groups import Groups, coded_targets, sensitive_codes
from privopt.estimators.linear import LOG_ODDS, TwoClassScores
from privopt.estimators.setup import Setup
from privopt.estimators.specification import Specification
from privopt.estimators.stages import Fitted
from privopt.estimators.table_arguments import in_batches
from privopt.estimators.targets import Target, declared_classes
from privopt.named_arguments import refuses_unknown
from privopt.planning.task import Instance
from privopt.problems.grouped_loss import CAP, FLOOR
from privopt.public import real
from privopt.solvers.base import Solver
from privopt.solvers.group_weights import weights_picture
from privopt.solvers.registry import choose
from privopt.solvers.whitening import Whitening
from privopt.solvers.worst_group_descent import WorstGroupDescent
from privopt.solvers.worst_group_two_stage import WorstGroupTwoStage
from privopt.tables.cells import level_codes, read_columns
from privopt.tables.schema import ColumnSpec, Schema
from privopt.tables.table import Table
from privopt.tables.values import read_target, read_values


@final
@dataclass(kw_only=True, eq=False, repr=False)
class FairClassifier(TwoClassScores):
    """Private logistic regression of two classes that minimises the loss of the worst off of several groups.

    Minimises `max over y of sum_g y_g F_g(w) + penalty(w)`, F_g the mean logistic loss of the records of group g (of
    rows divided by `||(a, 1)||` with `row_bound="unit"`), over weights y that sum to 1 ("worst"), or with
    `y_g <= share_g / cvar_alpha` ("cvar": the mean over the worst share of the records, made up of whole groups). With
    one group it is `LogisticRegression`. Often there is little to gain; the report says so where the releases show it.

    Args:
        sensitive_values: the groups: a list of values of the sensitive feature, or of tuples of values of several.
            Public; a record of any other value, or of none, counts as nothing. Default with a `Table`: the levels that
            its schema has of the column, or the tuples of those of several.
        shares: each group's share of the records, public numbers that sum to 1, in the order of `sensitive_values`; or
            "private": estimated by a noisy histogram for 5 % of the budget (of its rho).
        objective: "worst" or "cvar".
        cvar_alpha: of "cvar": the share of the records that counts, in (0, 1].
        share_floor: shares below it count as if they were as large in what losses are divided by: the group then
            counts less than its own share, and the noise on it stays bounded.
        loss_cap: a record's loss beyond it is not counted when groups are compared.
        report_groups: share of the budget (of its rho) for each group's loss at the result; 0 reports none.
        epsilon, delta, bounds, loose_bounds, scale_share, relation, n, row_bound, fit_intercept, solver, account,
            random_state, max_records_per_user, user_weighting, typical_records, storage, missing, indicator: see
            `PrivateLinearModel`.
        penalty, alpha, l1_radius: see `PenalisedModel`; no "l1" and "group" penalties, and `alpha` is a number.
        classes: see `PrivateClassifier`; two labels.
    Attributes:
        group_weights_: (steps, groups), how groups were weighted; from releases.
        group_shares_: (groups,), the shares, public or released.
        group_losses_: (groups,), released losses at the result; None unless `report_groups`.
    Privacy:
        (epsilon, delta)-differentially private under `relation`, for one record, or for one user with `groups`. The
        group is part of the record: replacing a record may move it to another group. Released are noisy sums over all
        records, by group, and noisy gradients; which group a record is in stays private.
    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X, g = rng.uniform(-1, 1, (2000, 3)), rng.choice(["a", "b"], 2000)
        >>> y = (np.where(g == "a", X[:, 0], X[:, 1]) > 0).astype(int)
        >>> model = FairClassifier(
        ...     epsilon=1.0, delta=1e-6, bounds=(-1, 1), classes=[0, 1], sensitive_values=["a", "b"], shares=[0.5, 0.5]
        ... )
        >>> model.fit(X, y, sensitive_features=g).coef_.shape
        (1, 3)
        >>> model.privacy_.epsilon <= 1.0
        True

    Source:
        Sagawa, Koh, Hashimoto, Liang 2020; the private form is ours.
    """

    sensitive_values: Sequence[Any] | NDArray[Any] | None = None
    shares: Sequence[float] | NDArray[Any] | str | None = None
    objective: str = "worst"
    cvar_alpha: float | None = None
    share_floor: float = FLOOR
    loss_cap: float = CAP
    report_groups: float = 0.0

    group_weights_: NDArray[np.float64] = field(init=False)
    group_shares_: NDArray[np.float64] = field(init=False)
    group_losses_: NDArray[np.float64] | None = field(init=False)

    @tells_what_was_spent
    @refuses_unknown
    def fit(  # type: ignore[override]
        self,
        X: Any,
        y: Any = None,
        *,
        groups: Any = None,
        sensitive_features: Any = None,
        observer: Observer | None = None,
    ) -> Self:
        """Fit the model.

        Args:
            X: (rows, d) numbers, dense or sparse (kept sparse); or a `Table`, see `PrivateLinearModel.fit`.
            y: (rows,) labels; none for a `Table`.
            groups: user keys, see `PrivateLinearModel.fit`; not the groups that are compared.
            sensitive_features: (rows,) values, or (rows, k) of k columns together: an array, a series, a data frame or
                a list; the name of a column of a data frame X, or a tuple of names. None, where no
                groups are declared: all records are one group. Of a `Table` the name of a column, or a list of names,
                each a category or a flag of its schema; its features are those of the table, these among them or not.
            observer: see `PrivateLinearModel.fit`.
        Raises:
            ValueError, TypeError: an argument is missing, or has a wrong shape, type or range.
            BudgetExceeded: the account cannot pay; no data have been read.
        """
        if isinstance(X, Table):
            return self._fit_by_columns(X, y, groups, sensitive_features, observer)
        if y is None:
            raise ValueError("FairClassifier requires y to be passed, but the target y is None.")
        known = self._groups()
        if sensitive_features is None:
            known = _one_group(known)
        check_column(y, "y", "one target")
        private_labels = column_or_1d(cells.targets(y, labels=True), warn=True)
        target = self._grouped(known, private_labels)
        private_groups = sensitive_codes(X, sensitive_features, known, len(private_labels))
        private_targets = coded_targets(private_labels, private_groups, _labels_of(target))
        try:
            self._fitting = target
            return super().fit(X, private_targets, groups=groups, observer=observer)
        finally:
            vars(self).pop("_fitting", None)

    def _fit_by_columns(
        self, table: Table, y: Any, groups: Any, names: Any, observer: Observer | None
    ) -> Self:
        """Fit to a table some of whose columns say the groups, which are those of its schema if none were declared."""
        sensitive = sensitive_columns(table.schema, names)
        if sensitive:
            values = self.sensitive_values
            known = {"sensitive_values": declared_values(sensitive) if values is None else values}
        else:
            _one_group(self._groups())
            known = {"sensitive_values": None, "shares": None}

        def reading(asked: Any) -> GroupedTargets:
            return GroupedTargets.of(table, asked._target(None), sensitive)

        return self._fit_table(table, y, groups, observer, known=known, reading=reading)

    @in_batches
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class, (rows, 2)."""
        scores = self.decision_function(X)
        return np.stack([expit(-scores), expit(scores)], axis=1)

    def _groups(self) -> Groups:
        """The groups, as they were given."""
        return Groups.of(
            self.sensitive_values,
            self.shares,
            objective=self.objective,
            alpha=self.cvar_alpha,
            floor=self.share_floor,
            cap=self.loss_cap,
        )

    def _grouped(self, groups: Groups, y: NDArray[Any] | None) -> Target:
        labels = self._two_labels(y, "LogisticRegression, which weights no groups")
        return Target(
            labels=labels,
            loss=groups.loss,
            meaning=LOG_ODDS,
            declared=f"{declared_classes(self.classes)} {groups.declared()}",
            groups=groups,
            attributes={"classes_": labels},
        )

    def _target(self, y: NDArray[Any] | None) -> Target:
        del y  # during a fit they hold labels and groups
        fitting: Target | None = getattr(self, "_fitting", None)
        return self._grouped(self._groups(), None) if fitting is None else fitting

    def _specification(self) -> Specification:
        given = super()._specification()
        if given.penalty.is_chosen:
            raise ValueError(
                "alpha='private' chooses by the accuracy over all records, which is not what FairClassifier minimises: "
                "give a number, or leave it out."
            )
        share = real("report_groups", self.report_groups)
        if not 0 <= share < 0.7:
            raise ValueError(
                f"report_groups must be at least 0 and below 0.7, got {self.report_groups!r}: it is the share of the "
                "budget for each group's loss at the result."
            )
        return given

    def _solver(self, setup: Setup) -> Solver | str:
        """The solver, with the losses at the end if they are to be reported."""
        if not self.report_groups:
            return self.solver
        chosen = choose(self.solver, Instance(setup.problem, setup.public, setup.shape.known_budget)).solver
        return reporting(chosen, float(self.report_groups))

    def _results(self, fitted: Fitted, declared: Iterable[str]) -> dict[str, Any]:
        results = super()._results(fitted, declared)
        groups, found = fitted.setup.target.groups, fitted.result.findings
        assert groups is not None
        shares = found["group_shares"].value if "group_shares" in found else groups.loss.shares
        weights = found["group_weights"].value if "group_weights" in found else np.ones((1, groups.count))
        results["group_shares_"] = np.asarray(shares, np.float64)
        results["group_weights_"] = np.asarray(weights, np.float64)
        results["group_losses_"] = (
            np.asarray(found["group_losses"].value) if "group_losses" in found else None
        )
        if groups.count > 1:
            picture = weights_picture(results["group_weights_"], groups.names)
            results["privacy_"] = replace(results["privacy_"], pictures=(picture,))
        return results


def _labels_of(target: Target) -> list[Any]:
    """The labels, as Python's own values."""
    assert target.labels is not None
    return target.labels.tolist()


def _one_group(known: Groups) -> Groups:
    """All records as one group, where none is said of any."""
    if len(known.values) > 1:
        raise ValueError(
            f"sensitive_features is missing: sensitive_values declares {len(known.values)} groups. Give each "
            "record's, or leave sensitive_values and shares out, and all records are one group."
        )
    return known.alone()


def reporting(solver: Solver, share: float) -> Solver:
    """The same solver, which releases the groups' losses at its result for a share of mu^2 of the whole budget.

    Raises:
        ValueError: it is no solver for groups.
    """
    if isinstance(solver, WorstGroupDescent):
        return solver.with_(report_share=share)
    if isinstance(solver, Whitening):
        return solver.with_(inner=reporting(solver.inner, share / (1.0 - solver.share)))
    if isinstance(solver, WorstGroupTwoStage):
        return solver.with_(inner=reporting(solver.inner, share / (1.0 - solver.selection_share)))
    raise ValueError(f"{solver.title} reports no losses of groups: use report_groups=0.")


# ---- Groups of the records of a table in files: the columns that say them, targets of label and group ------
Codes = NDArray[np.int64]


def sensitive_columns(schema: Schema, names: Any) -> tuple[ColumnSpec, ...]:
    """The columns that say which group a record is in; none where all records are one group.

    Args:
        schema: of the table.
        names: of a column, or of several.
    Raises:
        ArgumentError: they are no names, or of columns whose values are not declared.
        TableError: the schema has no such column.
    """
    listed = [names] if isinstance(names, str) else names
    if listed is None:
        return ()
    if not isinstance(listed, list | tuple) or not listed or not all(isinstance(one, str) for one in listed):
        raise ArgumentError(
            "sensitive_features of a table must be the name of a column, or a list of names: those that say which "
            "group a record is in."
        )
    columns = tuple(schema.column(name) for name in dict.fromkeys(listed))
    for column in columns:
        if column.kind not in ("cat", "flag"):
            raise ArgumentError(
                f"sensitive_features names {column.name!r}, which is of kind {column.kind!r}: which groups there are "
                "is public, and the schema says it of a category (cat) or a flag. Write others into a column of their "
                "own beforehand."
            )
    return columns


def declared_values(columns: Sequence[ColumnSpec]) -> list[Any]:
    """The groups that the schema allows: the values of one column, or the tuples of values of several."""
    values = [column.levels if column.kind == "cat" else (0, 1) for column in columns]
    return list(values[0]) if len(values) == 1 else list(itertools.product(*values))


@final
@dataclass(frozen=True, kw_only=True)
class GroupedTargets:
    """Reads `(g + 1) label` of each record, see `coded_targets`: a `TargetReading`.

    Attributes:
        schema: of the table.
        target: the column to predict.
        classes: the two labels.
        sensitive: the columns that say the group.
        keys: of each group, as `_joined` makes them of its values.

    Privacy:
        What a record's target becomes follows from its own cells. One with a label or a value that is not declared is
        NaN, and counts as nothing.
    """

    schema: Schema
    target: str
    classes: tuple[Any, ...]
    sensitive: tuple[ColumnSpec, ...]
    keys: tuple[int, ...]

    @classmethod
    def of(cls, table: Table, target: Target, sensitive: tuple[ColumnSpec, ...]) -> Self:
        """What reads a table's targets as labels and groups.

        Raises:
            ArgumentError: a declared group is none that the schema allows, or two are one.
        """
        assert target.groups is not None
        values = [value if isinstance(value, tuple) else (value,) for value in target.groups.values]
        if any(len(value) != len(sensitive) for value in values):
            raise ArgumentError(
                f"sensitive_features has {len(sensitive)} columns and sensitive_values says otherwise: with several "
                "columns every value is a tuple of one value a column, such as ('Female', 'Black')."
            )
        codes = [
            _declared_codes([value[place] for value in values], column)
            for place, column in enumerate(sensitive)
        ]
        keys = _joined(codes, sensitive, len(values) or 1).tolist()
        if min(keys) < 0 or len(set(keys)) < len(keys):
            raise ArgumentError(
                f"sensitive_values {list(target.groups.values)!r} are not all different groups that the schema allows: "
                f"it has {declared_values(sensitive)!r}."
            )
        assert table.target is not None
        classes = tuple(_labels_of(target))
        return cls(
            schema=table.schema, target=table.target, classes=classes, sensitive=sensitive, keys=tuple(keys)
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """See `TargetReading.columns`."""
        return (self.target, *(column.name for column in self.sensitive))

    def __call__(self, private_table: Any) -> NDArray[np.float64]:
        """See `TargetReading.__call__`."""
        private_read = read_target(private_table, self.schema, self.target)
        private_labels = check_targets(private_read, len(private_read), self.classes)
        assert private_labels is not None
        private_columns, rows = read_columns(private_table, self.sensitive)
        private_codes = [_codes_of(private_columns[column.name], column) for column in self.sensitive]
        private_groups = cells.label_codes(_joined(private_codes, self.sensitive, rows), self.keys)
        return coded_targets(private_labels, private_groups, self.classes)


def _codes_of(private_column: Any, column: ColumnSpec) -> Codes:
    """The position of every cell among a column's values, -1 where it is missing or none of them."""
    if column.kind == "cat":
        return level_codes(private_column, column)
    private_values = read_values(private_column, column)
    return np.where(np.isfinite(private_values), private_values, -1).astype(np.int64)


def _declared_codes(values: list[Any], column: ColumnSpec) -> Codes:
    """The same of the values that were declared, of which a flag's are 0 and 1."""
    if column.kind == "cat":
        return _codes_of(np.fromiter(values, dtype=object, count=len(values)), column)
    return np.asarray([(0, 1).index(value) if value in (0, 1) else -1 for value in values], np.int64)


def _joined(private_codes: Sequence[Codes], columns: Sequence[ColumnSpec], rows: int) -> Codes:
    """One number for the codes of several columns, -1 where one of them is; 0 for all of no columns."""
    private_keys, private_known = np.zeros(rows, np.int64), np.ones(rows, np.bool_)
    for private_column, column in zip(private_codes, columns, strict=True):
        private_keys = private_keys * max(2, len(column.levels)) + private_column
        private_known &= private_column >= 0
    return np.where(private_known, private_keys, -1)
