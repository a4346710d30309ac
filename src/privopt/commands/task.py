"""What is to be fitted: the options of `fit` and `plan`, checked and joined with the schema. No record is read here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from privopt.commands import screen
from privopt.commands.options import (
    MAX_RECORDS,
    QUANTILE,
    WEIGHTING,
    BudgetOptions,
    ModelName,
    Options,
    PlaceOptions,
)
from privopt.commands.screen import (
    GIVE_DELTA,
    GIVE_EPSILON,
    GIVE_N,
    GIVE_SCHEMA,
    Mistake,
    check_delta,
    check_epsilon,
    public_arguments,
    require_given,
)
from privopt.engine.placement import Placement
from privopt.estimators.linear import (
    HuberRegressor,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    RobustClassifier,
    RobustRegressor,
)
from privopt.planning.plan import Plan
from privopt.planning.users import CapPrice
from privopt.public import INTEGER_STORAGES, Relation, of_users
from privopt.solvers.registry import NAMES
from privopt.tables import Schema, TabularEncoder, TargetEncoding
from privopt.tables.places import located, shown_name
from privopt.tables.table import Table
from privopt.tables.text_stream import bytes_of

Estimator = Any  # a fitted or unfitted model of `privopt.estimators`


@dataclass(frozen=True, kw_only=True)
class ModelKind:
    """A model on the command line.

    Attributes:
        estimator: the class that fits it.
        title: what it is called in a sentence.
        of_classes: whether it predicts classes; else numbers.
    """

    estimator: Callable[..., Estimator]
    title: str
    of_classes: bool = False


MODELS = {
    "logistic": ModelKind(estimator=LogisticRegression, title="logistic regression", of_classes=True),
    "linear": ModelKind(estimator=LinearRegression, title="linear regression"),
    "svm": ModelKind(estimator=LinearSVC, title="support vector machine", of_classes=True),
    "poisson": ModelKind(estimator=PoissonRegressor, title="Poisson regression"),
    "quantile": ModelKind(estimator=QuantileRegressor, title="quantile regression"),
    "huber": ModelKind(estimator=HuberRegressor, title="Huber regression"),
    "robust": ModelKind(estimator=RobustClassifier, title="robust classification", of_classes=True),
}
ROBUST_REGRESSION = ModelKind(estimator=RobustRegressor, title="robust regression")  # "robust", of a number


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything public about a fit but the number of units.

    Attributes:
        options: what was typed.
        schema: the public description of the table.
        target: the column to predict and what it may be.
        model: what is fitted.
        encoder: how rows become features.
        epsilon: the budget.
    """

    options: Options
    schema: Schema
    target: TargetEncoding
    model: ModelKind
    encoder: TabularEncoder
    epsilon: float

    @classmethod
    def of(cls, options: Options) -> "Task":
        """Check the options against each other and the schema.

        Raises:
            Mistake, TableError: something is missing or does not fit.
        """
        epsilon = checked_budget(options)
        if options.solver not in ("auto", *NAMES):
            raise Mistake(f"--solver must be one of auto, {', '.join(NAMES)}, got {options.solver!r}.")
        _check_users(options)
        if options.quantile is not None and not 0 < options.quantile < 1:
            raise Mistake(f"--quantile must lie strictly between 0 and 1, got {options.quantile:g}.")
        if options.quantile is not None and options.model != ModelName.QUANTILE:
            raise Mistake(
                "--quantile is the level of a quantile regression: ask for one with --model quantile."
            )
        assert options.schema is not None
        schema = Schema.from_json(options.schema, options.schema_name)
        if options.target is None and schema.target is None:
            raise Mistake("give --target, the column to predict: the schema names none.")
        target = schema.target_encoding(options.target)
        groups = options.group or ()
        if target.column in [schema.column(group).name for group in groups]:
            raise Mistake(f"--group and --target both name {target.column!r}.")
        features = schema.feature_columns(target=target.column)
        names = [column.name for column in features if column.name not in groups]
        missing = str(options.missing)
        encoder = TabularEncoder(schema, target=target.column, features=names, missing=missing)
        if not names:
            raise Mistake("no feature is left: the schema describes only the target and the group column.")
        if options.storage in INTEGER_STORAGES and encoder.is_sparse:
            raise Mistake(
                f"--storage {options.storage} is for dense features, and those of this schema are sparse: leave it out."
            )
        return cls(
            options=options,
            schema=schema,
            target=target,
            model=_model_for(options.model, target),
            encoder=encoder,
            epsilon=epsilon,
        )

    @property
    def columns(self) -> list[str]:
        """The columns of the table that a fit reads."""
        return [*self.encoder.to_document()["features"], self.target.column, *self.groups]

    @property
    def groups(self) -> tuple[str, ...]:
        """The columns that say whose record a row is; none where a record is a unit."""
        return tuple(self.options.group or ())

    @property
    def quantile(self) -> float | None:
        """The level of a quantile regression; None for another model."""
        given = self.options.quantile
        return (QUANTILE if given is None else given) if self.options.model == ModelName.QUANTILE else None

    @property
    def unit(self) -> str:
        """Who is protected: "record" or "user"."""
        return "user" if self.groups else "record"

    def estimator(self, n: int) -> Estimator:
        """The model of this task, unfitted; n is the public number of units."""
        options = self.options
        arguments: dict[str, Any] = {
            "epsilon": self.epsilon,
            "delta": check_delta(options.delta, n)[0],
            "bounds": self.encoder.numeric_range,  # every encoded feature lies in it
            "relation": str(options.relation),
            "n": options.n,
            "solver": options.solver,
            "random_state": options.random_state,
            "storage": str(options.storage),
            "missing": str(options.missing),
            **_users(options),
        }
        if self.target.classes is not None:
            arguments["classes"] = self.target.classes
        else:
            arguments["target_bounds"] = self.target.bounds
            arguments["row_bound"] = (
                self.encoder.row_norm_bound_
            )  # classifiers have a better rule of their own
        if self.quantile is not None:
            arguments["quantile"] = self.quantile
        return self.model.estimator(**arguments)

    def plan(self, estimator: Estimator, n: int) -> Plan:
        """What fitting that model would cost and achieve."""
        with public_arguments():
            return estimator.plan(
                n_features=self.encoder.n_features_out_,
                n=n,
                by_user=self.unit == "user",
                row_entries=self.encoder.most_entries,
            )

    def compare_caps(self, estimator: Estimator, n: int) -> tuple[CapPrice, ...]:
        """Records as units beside users with several caps; nothing where records are the units."""
        if not self.groups:
            return ()
        with public_arguments():
            return estimator.compare_caps(n_features=self.encoder.n_features_out_, n=n)


def needed_options(options: BudgetOptions) -> dict[str, tuple[Any, str]]:
    """The options that every fit and synthesis needs, for `require_given`."""
    is_counted = Relation.parse(options.relation) is Relation.REPLACE_ONE
    return {
        "--schema": (options.schema, GIVE_SCHEMA),
        "--epsilon": (options.epsilon, GIVE_EPSILON),
        "--delta": (options.delta, GIVE_DELTA),
        **({} if is_counted else {"--n": (options.n, GIVE_N)}),
    }


def checked_budget(options: BudgetOptions) -> float:
    """The epsilon, where delta and the number of units can be used as well.

    Raises:
        Mistake: one of them is missing or out of its range.
    """
    require_given(needed_options(options))
    assert options.epsilon is not None
    epsilon = check_epsilon(options.epsilon)
    check_delta(options.delta, 2)
    if options.n is not None and options.n < 2:
        raise Mistake(f"--n must be at least 2, got {options.n}: a mean over fewer hides nobody.")
    return epsilon


def named(columns: Sequence[str]) -> str:
    """Columns in a sentence: 'a', 'b'."""
    return ", ".join(map(repr, columns))


def _users(options: Options) -> dict[str, Any]:
    """What an estimator is told of users."""
    return {
        "max_records_per_user": MAX_RECORDS if options.max_records is None else options.max_records,
        "user_weighting": str(WEIGHTING if options.weighting is None else options.weighting),
        "typical_records": options.typical_records,
    }


def _check_users(options: Options) -> None:
    """Refuse what is said of users where there are none, or twice, or cannot be."""
    groups = options.group or []
    given = {
        "--max-records": options.max_records,
        "--weighting": options.weighting,
        "--typical-records": options.typical_records,
    }
    lonely = [name for name, value in given.items() if value is not None]
    if lonely and not groups:
        raise Mistake(f"{lonely[0]} is about the records of a user: name the users' column with --group.")
    if len(set(groups)) < len(groups):
        raise Mistake("--group names one column twice: give each of the columns that name a user once.")
    users = _users(options)
    with public_arguments():
        of_users(users["max_records_per_user"], users["user_weighting"], users["typical_records"])


def _model_for(name: str | None, target: TargetEncoding) -> ModelKind:
    """The model that was asked for, or the usual one for the target."""
    if name is None:
        return MODELS["logistic" if target.classes is not None else "linear"]
    if name == "robust" and target.classes is None:
        return ROBUST_REGRESSION
    model, column = MODELS[name], target.column
    if model.of_classes and target.classes is None:
        raise Mistake(
            f"--model {name} predicts classes, but the schema describes the target {column!r} as a number: use linear, "
            "poisson, quantile, huber or robust."
        )
    if not model.of_classes and target.classes is not None:
        raise Mistake(
            f"--model {name} predicts numbers, but the schema describes the target {column!r} as classes: use "
            "logistic, svm or robust."
        )
    if name in ("svm", "robust") and target.classes is not None and len(target.classes) > 2:
        raise Mistake(f"--model {name} needs a target of two classes, and {column!r} has more: use logistic.")
    if name == "poisson" and target.bounds is not None and target.bounds[0] < 0:
        raise Mistake(
            f"--model poisson predicts counts, but the schema says that {column!r} may be as low as "
            f"{target.bounds[0]:g}: its low must be 0 or above."
        )
    return model


# ------------------------------------------------------------------------------------------------------------
# The table of a command: files, folders, globs and URIs, opened with what was typed about where to keep its
# rows.


def placement_of(options: PlaceOptions) -> Placement:
    """Where rows are to be kept.

    Raises:
        Mistake: an option does not fit the others, or names no folder.
    """
    if options.spool is not None and not options.spool.is_dir():
        raise Mistake(
            f"--spool {str(options.spool)!r} is no folder: give one on a disk with room for the rows."
        )
    with public_arguments():
        placement = Placement(
            engine=str(options.engine),  # pyright: ignore[reportArgumentType]  # checked by the parser
            memory=bytes_of(options.memory),
            spool=options.spool,
            address=options.address,
            workers=options.workers,
            retries=options.retries,
            trust_network=options.trust_network,
        )
    idle = placement.idle()
    if idle is not None:
        name, what, engine = idle
        raise Mistake(f"--{name.replace('_', '-')} is {what}: give it with --engine {engine}.")
    return placement


def opened(files: Sequence[str], task: Task) -> Table:
    """The table of a fit, by the names and headers of its files alone.

    Raises:
        Mistake, TableError: an option, or the table, cannot be used.
    """
    table = Table(
        located(files),
        task.schema,
        target=task.target.column,
        features=task.encoder.to_document()["features"],
        placement=placement_of(task.options),
    )
    table.require(task.columns)
    return table


def units_of(
    table: Table, files: Sequence[str], n: int | None, groups: Sequence[str], terminal: Console
) -> tuple[int, str]:
    """The public number of units, and where it comes from.

    Args:
        table: opened.
        files: as they were typed.
        n: likewise; None to have the units counted.
        groups: the columns that name users; none where records are the units.
        terminal: is told of what takes a while.
    Raises:
        Mistake: the table has fewer than two.
        TableError: it cannot be read.

    Privacy:
        Counted only under replace-one, where the number of records (or users) is public by definition.
    """
    if n is not None:
        return n, "given by --n"
    if groups:
        keys = named(groups)
        with screen.working(terminal, f"Counting users: {keys} is read for it once; --n would save that."):
            n, how = table.user_count(groups), f"counted in {keys}"
    else:
        with screen.working(terminal, "Counting records: texts are read for it once."):
            n, how = table.row_count(), "the table's rows"
    if n < 2:
        unit = "user" if groups else "record"
        raise Mistake(
            f"the table {' '.join(map(shown_name, files))!r} has {n} {unit}s: a private fit needs at least 2, "
            "and a useful one many."
        )
    return n, how
