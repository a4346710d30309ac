"""`SyntheticData`: a private model of a table, from which rows are drawn that look like its own."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from privopt.curator.base import Observer
from privopt.curator.journals import asking
from privopt.data.units import Units
from privopt.errors import tells_what_was_spent
from privopt.estimators import arguments, table_source
from privopt.estimators.table_source import asked_workload
from privopt.ledger.account import Account, checked_account
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.named_arguments import NamedArguments, check_observer, refuses_unknown
from privopt.planning.plan import UNREAD_CELLS, Finding, Picture, Plan, bars
from privopt.planning.row_length import CELL_CAUSES, LEAST_SHARE, SURE
from privopt.planning.task import Task
from privopt.precision import in_float64
from privopt.problems.workload import Workload, codes_of
from privopt.public import DEFAULT_RECORDS, Public, Relation, Weighting, of_users
from privopt.replays.recipes import asked_of
from privopt.report.model import ModelSummary
from privopt.report.report import PrivacyReport
from privopt.result import Result
from privopt.solve_runs import announced, run_program
from privopt.synthesis.base import (
    Model,
    ReleasedMarginal,
    Synthesizer,
    estimated,
    released_marginals,
    released_total,
)
from privopt.synthesis.finishing import ERROR, ERROR_NOISE, Finishing, check_installed
from privopt.synthesis.registry import choose_synthesizer
from privopt.tables.coding import Bins, ColumnCoding, TableCoding
from privopt.tables.schema import Schema
from privopt.tables.table import Table


class SyntheticError(NamedTuple):
    """How far a model is from the data.

    Attributes:
        value: the error.
        stddev: of the noise on it, where it was released; 0 where it was predicted.
        released: whether it was measured on the data and paid for; else it is predicted from the noise alone.
        meaning: what it is, in words.
    """

    value: float
    stddev: float
    released: bool
    meaning: str


class Asked(NamedTuple):
    """Everything public about a fit.

    Attributes:
        coding: the columns' cells.
        workload: what the model shall answer well.
        public: of the units.
        budget: of the fit.
    """

    coding: TableCoding
    workload: Workload
    public: Public
    budget: Budget

    @property
    def task(self) -> Task[Workload]:
        """What a synthesizer is configured for."""
        return Task(self.workload, self.public, self.budget)


@dataclass(eq=False, repr=False)
class SyntheticData(NamedArguments, BaseEstimator):
    """A model of a table with (epsilon, delta)-differential privacy, and as many rows of it as anybody wants.

    Every column becomes cells by its public description: a category its levels, a flag two, a number bins of its range
    (a whole number of few values one each), and one more cell for whatever is missing or undeclared. A synthesizer
    releases noisy answers about the table and fits a model to them; rows drawn from the model cost nothing more.

    Args:
        schema: a `Schema`, its JSON object, or the path of its JSON file: the public range or levels of every column.
            Columns of kind num, flag and cat are modelled, but for the schema's user and split.
        workload: what the model shall answer well: "1-way", "2-way" or "3-way" for all marginals of so many columns, a
            list of column sets, or a list of queries, see `estimators.table_source`.
        epsilon: privacy budget, required; `math.inf` for no privacy.
        delta: probability with which the epsilon bound may fail; required, well below 1 / n, such as 1 / n**2.
        relation: "replace-one" or "add-or-remove-one" (needs `n`).
        n: public number of units: under add-or-remove-one a nominal number that no data set exceeds; under
            replace-one the number of rows (or of users) by default.
        method: "auto", the name of a synthesizer, or a configured one.
        engine: "mbi" fits Private-PGM (the extra `privopt[mbi]`) to the released marginals in place of the
            synthesizer's own model. It sees releases only, so that it changes nothing about privacy.
        error_share: share of the budget for `error_`, measured on the data; 0 to have it predicted only.
        columns: those to model; default: all that can be.
        bins: of numbers: how many, or for single columns how many, or edges; see `TableCoding`.
        schema_name: which entry of a schema file.
        account: a budget that several fits share; charged before data are read.
        random_state: None draws secret noise. A seed makes the fit reproducible and *not private*.
        max_records_per_user: public cap on the records of a user that are used, with `groups`.
        user_weighting: "user", "sqrt" or "record": how a user's weight grows with their number of records. All
            but "user" make noise louder, by the cap over the records of a typical user, or the root of that.
        typical_records: a public guess of how many records a typical user keeps.
    Attributes:
        model_: the released model of the coded table.
        error_: the mean error of the model on the workload, a `SyntheticError`.
        coding_: the public cells of every column.
        plan_: the `Plan` that was announced before the data were read.
        privacy_: the `PrivacyReport`.
    Privacy:
        Everything released passes the curator, priced before data are read. A row is coded by itself and by public
        values only. The model, its samples and its errors on marginals are computed from releases.

    Examples:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"sex": ["f", "m", "f", "f"] * 500, "smokes": [0, 1, 0, 1] * 500})
        >>> schema = {"columns": {"sex": {"kind": "cat", "levels": ["f", "m"]}, "smokes": {"kind": "flag"}}}
        >>> data = SyntheticData(schema, epsilon=1.0, delta=1e-6, random_state=0).fit(table)  # a seed: NOT PRIVATE
        >>> list(data.sample(3, random_state=0).columns)
        ['sex', 'smokes']
    """

    schema: "Schema | Mapping[str, Any] | str | Path"
    workload: Any = "2-way"
    _: KW_ONLY
    epsilon: float | None = None
    delta: float | None = None
    relation: Relation | str = "replace-one"
    n: int | None = None
    method: Synthesizer | str = "auto"
    engine: Literal["mbi"] | None = None
    error_share: float = 0.01
    columns: Sequence[str] | None = None
    bins: Bins = None
    schema_name: str | None = None
    account: Account | None = None
    random_state: int | None = None
    max_records_per_user: int = DEFAULT_RECORDS
    user_weighting: Weighting = "user"
    typical_records: float | None = None

    model_: Model = field(init=False)
    error_: SyntheticError = field(init=False)
    coding_: TableCoding = field(init=False)
    _measured: tuple[ReleasedMarginal, ...] = field(init=False)
    _total: float = field(init=False)
    plan_: Plan = field(init=False)
    privacy_: PrivacyReport = field(init=False)

    @tells_what_was_spent
    @refuses_unknown
    def fit(self, table: Any, *, groups: Any = None, observer: Observer | None = None) -> Self:
        """Model a table.

        Args:
            table: a data frame, an Arrow table, a dictionary of columns, the path of a CSV or Parquet file, or a
                `Table` of such files.
            groups: user keys, one for each row, or the name or a tuple of names of the columns that hold them; then all
                records of a user are protected together.
            observer: for progress bars: called with (name, count) after releases, and with (what, 0) before a stage
                that may take a while.
        Raises:
            ValueError, TypeError: an argument is missing or cannot be used, or the table lacks a column.
            BudgetExceeded: the account cannot pay; nothing was released or spent.
        """
        check_observer(observer)
        schema = self._checked()
        told = table.asked(groups) if isinstance(table, Table) else {}
        with asking({**told, **asked_of(self), "schema": schema.to_json()}, self.account):
            return self._fit(schema, table, groups, observer)

    def _fit(self, schema: Schema, table: Any, groups: Any, observer: Observer | None) -> Self:
        """Model a table whose arguments were checked."""
        counted = self.n is None and groups is None
        asked = self._asked(
            schema,
            table_source.rows_of(table, schema.format) if counted else self.n or 2,
            groups is not None,
        )
        table_source.check_columns(table, asked.coding, schema.format)
        if observer is not None:
            observer("table", 0)
        private_table = table_source.opened(table, schema)
        rows = table_source.rows_of(private_table)
        private_keys = table_source.keys_of_users(groups, private_table, rows, schema.format)
        if private_keys is not None and self.n is None:
            asked = self._asked(schema, table_source.user_count(private_keys), True)
        noise = NoiseSource(self.random_state)
        units = Units.from_codes(
            table_source.codes_of(private_table, asked.coding, rows),
            levels=asked.coding.levels,
            relation=self.relation,
            n=self.n,
            groups=private_keys,
            max_records_per_user=self.max_records_per_user,
            user_weighting=self.user_weighting,
            typical_records=self.typical_records,
            noise=noise,
        )
        if isinstance(table, Table):
            units = replace(units, origin=table.fingerprint())
        with in_float64():
            result = self._run(asked, units, noise, observer)
        self._adopt(asked, result)
        self.coding_ = table_source.stored_as(table, private_table, asked.coding)
        return self

    def plan(self, *, n: int | None = None, by_user: bool = False) -> Plan:
        """What `fit` would cost and achieve, said without any data.

        Args:
            n: public number of units; default: the estimator's `n`.
            by_user: whether `fit` will be given `groups`.
        Raises:
            ValueError: a privacy argument or n is missing.
        """
        asked = self._asked(self._checked(), arguments.planned_units(self.n if n is None else n), by_user)
        with in_float64():
            return self._configured(asked)[1]

    def sample(self, n_rows: int | None = None, *, random_state: int | None = None) -> pd.DataFrame:
        """Rows drawn from the model, in the schema's own values.

        A category is one of its levels, a flag 0 or 1, or a truth value where the table's column is of truth values,
        or the schema's own text; a number is uniform within its public bin, whole where the schema says `integer`; a
        date is a day. What was missing is missing, in columns that are not `required`. Drawing costs no privacy.

        Args:
            n_rows: how many; default: the public number of units.
            random_state: a seed of the drawing alone.
        """
        check_is_fitted(self, "model_")
        count: Any = self.plan_.public.n if n_rows is None else n_rows
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
            raise ValueError(f"n_rows must be a whole number of rows, at least 0, got {n_rows!r}.")
        rng = np.random.default_rng(random_state)
        return self.coding_.decode(self.model_.sample(int(count), rng), rng)

    def marginal(self, columns: str | Sequence[str]) -> pd.DataFrame:
        """The share of each combination of values: in the model, and as released, with error bars.

        Args:
            columns: a name or several.
        Returns:
            One row a cell: a column for each of `columns` with what the cell stands for; `share` in the model;
            `released`, the best estimate from released marginals that hold these columns, and `stddev`, that of its
            noise: both NaN where none was released.
        """
        check_is_fitted(self, "model_")
        names = [columns] if isinstance(columns, str) else list(columns)
        places = [self.coding_.place(name) for name in names]
        if not places or len(set(places)) < len(places):
            raise ValueError(f"columns must name at least one column, and each once; got {columns!r}.")
        return marginal_table(self.model_, self._measured, self._total, self.coding_, places)

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        # A fit is paid for, so the account stays behind. Before a fit its own refusal to be pickled is right.
        return {**state, "account": None} if hasattr(self, "privacy_") else state

    def _checked(self) -> Schema:
        """The schema; the arguments are checked as far as no size is needed."""
        checked_account(self.account)
        Relation.parse(self.relation)
        of_users(self.max_records_per_user, self.user_weighting, self.typical_records)
        if self.engine is not None and self.engine != "mbi":
            raise ValueError(f"engine must be None or 'mbi', got {self.engine!r}.")
        if self.engine == "mbi":
            check_installed()
        if isinstance(self.error_share, bool) or not 0 <= self.error_share < 1:
            raise ValueError(
                f"error_share must be at least 0 and below 1, got {self.error_share!r}: it is the part of the budget "
                "that measures the error."
            )
        arguments.check_count(self.n, Relation.parse(self.relation))
        return Schema.from_json(self.schema, self.schema_name)

    def _asked(self, schema: Schema, n: int, by_user: bool) -> Asked:
        """Everything public about a fit to n units."""
        coding = TableCoding.of(schema, n, columns=self.columns, bins=self.bins)
        users = of_users(self.max_records_per_user, self.user_weighting, self.typical_records)
        relation = Relation.parse(self.relation)
        public = Public.of_codes(n, coding.levels, relation, **(users if by_user else {}))
        budget = arguments.checked_budget(self.epsilon, self.delta, n)
        return Asked(coding, asked_workload(self.workload, coding), public, budget)

    def _configured(self, asked: Asked) -> tuple[Synthesizer, Plan]:
        """The synthesizer, ready to run, and its plan."""
        chosen, reason = choose_synthesizer(self.method, asked.task)
        if self.error_share > 0 or self.engine is not None:
            chosen = Finishing(inner=chosen, engine=self.engine or "own", share=float(self.error_share))
        return announced((chosen, reason), asked.task)

    def _run(self, asked: Asked, units: Units, noise: NoiseSource, observer: Observer | None) -> Result:
        """One priced run."""
        configured, plan = self._configured(asked)
        return run_program(
            configured,
            lambda curator: configured.solve(curator, asked.workload),
            units,
            asked.public,
            plan,
            name=f"synthetic data ({configured.title})",
            noise=noise,
            account=self.account,
            observer=observer,
            of={"schema": asked.coding, "workload": asked.workload, "synthesizer": configured},
            # Another may not do what `_described` needs of it: that is seen before anything is paid.
            ends=lambda trial: self._described(asked, trial._replace(plan=plan)),
        )

    def _adopt(self, asked: Asked, result: Result) -> None:
        """Set all that a fit sets, or nothing."""
        vars(self).update(self._described(asked, result))

    def _described(self, asked: Asked, result: Result) -> dict[str, Any]:
        """All that a fit sets, by name."""
        assert result.plan is not None
        coding, model = asked.coding, result.params
        measured = released_marginals(result.transcript, coding.levels)
        total = released_total(measured)
        shown = pictures(model, measured, total, coding)
        told = {**result.findings, **unread_cells(measured, total, coding)}
        report = PrivacyReport.of(
            result._replace(params=None, findings=told, pictures=(*result.pictures, *shown)),
            title=f"Synthetic data ({result.plan.solver})",
            declared=declared_facts(coding, asked.workload),
            model=model_summary(model, coding),
        )
        found = {"coding_": coding, "model_": model, "_measured": measured, "_total": total}
        return {**found, "plan_": result.plan, "error_": _error(result), "privacy_": report}


def _error(result: Result) -> SyntheticError:
    """The released error, or the predicted one."""
    assert result.plan is not None
    if ERROR in result.findings:
        found = result.findings[ERROR]
        return SyntheticError(
            float(found.value), float(result.findings[ERROR_NOISE].value), True, found.meaning
        )
    predicted = result.plan.predicted_excess
    return SyntheticError(
        float("nan") if predicted is None else predicted, 0.0, False, result.plan.prediction
    )


# ---- What is said of a model: its marginals beside the released ones, in tables, pictures and sentences ----
MOST_PICTURES, MOST_BARS = 4, 40
MOST_NAMED = 12  # columns in a sentence


def marginal_table(
    model: Model,
    measured: Sequence[ReleasedMarginal],
    total: float,
    coding: TableCoding,
    places: Sequence[int],
) -> pd.DataFrame:
    """A row for each cell of a marginal, see `SyntheticData.marginal`.

    Args:
        model: of the table.
        measured: the released marginals.
        total: the total weight of the units over n, as released; shares are of the units that are there.
        coding: the columns' cells.
        places: the columns.
    """
    codes = codes_of(coding.levels, places)
    columns: dict[str, Any] = {
        coding.names[place]: np.array(coding.columns[place].labels, dtype=object)[codes[:, at]]
        for at, place in enumerate(places)
    }
    found = estimated(measured, coding.levels, places)
    columns["share"] = model.marginal(tuple(places))
    columns["released"] = np.nan if found is None else found.shares / total
    columns["stddev"] = np.nan if found is None else found.stddev / total
    return pd.DataFrame(columns)


def pictures(
    model: Model, measured: Sequence[ReleasedMarginal], total: float, coding: TableCoding
) -> tuple[Picture, ...]:
    """Some columns as released, with error bars of two standard deviations, beside the model."""
    shown: list[Picture] = []
    for place, column in enumerate(coding.columns):
        found = estimated(measured, coding.levels, (place,))
        if found is None or column.cells > MOST_BARS or len(shown) == MOST_PICTURES:
            continue
        shares, error = found.shares / total, 2.0 * found.stddev / total
        shown.append(
            Picture(
                title=f"{column.spec.name}: released, and in the sample",
                caption="Error bars are two standard deviations of the noise."
                + ("" if column.spec.required else " The last cell is for missing values."),
                x=column.spec.name,
                y="share of the units",
                series=(
                    bars("released", shares.tolist(), [error] * len(shares)),
                    bars("synthetic", model.marginal((place,)).tolist()),
                ),
                categories=tuple(column.labels),
            )
        )
    return tuple(shown)


def unread_cells(
    measured: Sequence[ReleasedMarginal], total: float, coding: TableCoding
) -> dict[str, Finding]:
    """The notice on columns of which fewer than 95 % of the cells could be read, by two standard deviations.

    It is read off the released marginals, at no further price; a `required` column has no cell for what is missing.
    """
    told: list[str] = []
    for place, column in enumerate(coding.columns):
        found = None if column.spec.required else estimated(measured, coding.levels, (place,))
        if found is None:
            continue
        read, deviation = 1.0 - float(found.shares[-1]) / total, found.stddev / total
        if SURE * deviation < LEAST_SHARE and read + SURE * deviation < LEAST_SHARE:
            share = 100.0 * min(max(read, 0.0), 1.0)
            told.append(f"{share:.0f} % (± {max(100.0 * deviation, 0.1):.1f}) of {column.spec.name}")
    if not told:
        return {}
    more = f" and of {len(told) - MOST_NAMED:,} more columns likewise" if len(told) > MOST_NAMED else ""
    meaning = (
        f"of the cells only these shares could be read: {', '.join(told[:MOST_NAMED])}{more}; the others are missing "
        f"in the model. {CELL_CAUSES}"
    )
    return {UNREAD_CELLS: Finding(len(told), meaning)}


def model_summary(model: Model, coding: TableCoding) -> ModelSummary:
    """The model's share of every value of every column."""
    names = [f"{name} = {label}" for name, column in _named(coding) for label in column.labels]
    shares = np.concatenate([model.marginal((place,)) for place in range(len(coding.columns))])
    return ModelSummary.of(
        "SyntheticData",
        shares,
        features=names,
        meaning="Each number is the share of the sampled rows that have this value in that column. How columns go "
        "together is in the model as well.",
    )


def declared_facts(coding: TableCoding, workload: Workload) -> tuple[str, ...]:
    """What the user declared public, in sentences."""
    names = ", ".join(map(repr, coding.names[:MOST_NAMED])) + (
        f" and {len(coding.names) - MOST_NAMED} more" if len(coding.names) > MOST_NAMED else ""
    )
    numbers = [column for column in coding.columns if column.spec.kind in ("num", "date")]
    facts = [
        f"The levels and ranges of the columns {names} are public. A value outside of them counts as missing, a number "
        "outside of its range as its nearer end."
    ]
    required = [column.spec.name for column in coding.columns if column.spec.required]
    if required:
        facts.append(
            f"Never missing, as the schema says: {', '.join(map(repr, required[:MOST_NAMED]))}"
            f"{f' and {len(required) - MOST_NAMED} more' if len(required) > MOST_NAMED else ''}. A cell of these that "
            "cannot be read counts as the first level, 0, or the middle of the range."
        )
    if numbers:
        finest = ", ".join(f"{one.spec.name!r} {one.known}" for one in numbers[:MOST_NAMED])
        facts.append(f"Numbers are cut into public bins, within which sampled ones are uniform: {finest}.")
    what = f"{len(workload.sets):,} marginals" if workload.sets else f"{workload.size:,} queries"
    facts.append(f"The model was made to answer {what}, which are public.")
    return tuple(facts)


def _named(coding: TableCoding) -> list[tuple[str, ColumnCoding]]:
    return list(zip(coding.names, coding.columns, strict=True))
