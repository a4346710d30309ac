"""The options of the commands: what is fitted or planned, and what is synthesized. Imports nothing heavy."""

import functools
import inspect
import math
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from privopt.commands.screen import typed_number
from privopt.errors import ArgumentError

MAX_RECORDS, WEIGHTING, QUANTILE = 100, "record", 0.5  # the first two as in `privopt.public`
WORK = 8.0  # processor seconds that a file from anywhere may take, unless a person allows it more
_URI_AS_PATH = re.compile(r"\s*[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # `Path` makes one stroke of two
# What an option may be, by the names that are typed.
ModelName = StrEnum("ModelName", "LOGISTIC LINEAR SVM POISSON QUANTILE HUBER ROBUST")
RelationName = StrEnum(
    "RelationName", {"REPLACE_ONE": "replace-one", "ADD_OR_REMOVE_ONE": "add-or-remove-one"}
)
MissingName = StrEnum("MissingName", "MIDPOINT ZERO INDICATOR")
StorageName = StrEnum("StorageName", "FLOAT32 FLOAT64 INT16 INT8")
UnitName = StrEnum("UnitName", "RECORD USER")
CompositionName = StrEnum("CompositionName", "ZCDP GAUSSIAN BASIC")
WeightingName = StrEnum("WeightingName", "USER SQRT RECORD")
PlaceOption = StrEnum("PlaceOption", "AUTO MEMORY STREAM RAY")
EngineOption = StrEnum("EngineOption", {"FAST": "fast", "REFERENCE": "reference"})


def on_this_machine(place: Path | None) -> Path | None:
    """A folder or a file as it was typed.

    Raises:
        ArgumentError: it is a URI, which would be taken for the name of a folder here, with what may be a password.
    """
    if place is not None and _URI_AS_PATH.match(str(place)):
        raise ArgumentError(
            "a URI was given for a folder or a file of this machine: only tables are read by URIs. Name a place here, "
            "and copy to or from the store."
        )
    return place


def option(name: str, text: str, **more: Any) -> Any:
    """An option whose default its text tells, if anything does."""
    return typer.Option(name, help=text, show_default=False, **more)


def place_option(name: str, text: str, **more: Any) -> Any:
    """An option that names a folder or a file of this machine."""
    return option(name, text, callback=on_this_machine, **more)


def output_option(text: str) -> Any:
    """The option that names what is written."""
    return typer.Option("--output", "-o", help=text, show_default=False, callback=on_this_machine)


def number_option(name: str, text: str, **more: Any) -> Any:
    """An option that is a number, as it was typed: one too large for a computer is not taken for infinity."""
    return option(name, text, parser=typed_number, metavar="FLOAT", **more)


SignKey = Annotated[
    Path | None, place_option("--sign-key", "File of an Ed25519 private key that signs what is written.")
]
TrustedKeys = Annotated[
    list[Path] | None,
    option("--trusted-key", "File of an Ed25519 public key; one of those given must have signed."),
]
ReleasesFile = Annotated[
    Path | None,
    place_option("--releases", "File of the released values. Default: the one beside the report."),
]
RequireReplay = Annotated[
    bool, typer.Option("--require-replay", help="Exit code 1 also where the run was not replayed.")
]


def _no_nan(seconds: float) -> float:
    """A number of seconds; "nan" passes every range."""
    if math.isnan(seconds):
        raise typer.BadParameter("nan is not in the range 1.0<=x<=1000000.0.")
    return seconds


Work = Annotated[
    float,
    typer.Option(
        "--work", help="Processor seconds that a file may take.", min=1.0, max=1e6, callback=_no_nan
    ),
]


Tables = Annotated[
    list[str],
    typer.Argument(
        metavar="TABLE...",
        help="CSV or Parquet: a file, a folder, a glob in quotes, a URI. Several are one table.",
        show_default=False,
    ),
]
CountedTables = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE]...",
        help="As of `privopt fit`: its records, or users, are counted where --n is not given. None is needed with --n.",
        show_default=False,
    ),
]
TableOutput = Annotated[
    Path | None, output_option("File to write: .parquet, .csv, .tsv or .feather. Required.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
ModelDirectory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Model directory.", show_default=False, callback=on_this_machine)
]

MOST_UNITS, MOST_ROWS = 10**12, 10**8  # `public.MOST_UNITS`, which would load NumPy for a help page

# Options that several commands have.
Neighbouring = Annotated[RelationName, typer.Option("--relation", help="What a neighbouring data set is.")]
_Resume = Annotated[
    Path | None,
    place_option(
        "--resume", "Folder that keeps the releases, so that the same command goes on if it is stopped."
    ),
]


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    """The description of a table, as it was typed. A field is an option; its annotation says what the help says."""

    schema: Annotated[
        Path | None,
        place_option("--schema", "JSON file with the columns' public ranges and levels. Required."),
    ] = None
    schema_name: Annotated[str | None, option("--schema-name", "Which entry of the schema file.")] = None


@dataclass(frozen=True, kw_only=True)
class BudgetOptions(SchemaOptions):
    """What is protected, how strongly, and who pays, as it was typed."""

    epsilon: Annotated[
        float | None,
        number_option("--epsilon", "Privacy budget; 1 is common, less is more private. Required."),
    ] = None
    delta: Annotated[
        str | None,
        option("--delta", "Probability that the epsilon bound fails, or 'auto': 1 / n^2. Required."),
    ] = None
    group: Annotated[
        list[str] | None,
        option(
            "--group",
            "Column that says whose record a row is: protects users whole. Repeat it if several columns name a user.",
        ),
    ] = None
    max_records: Annotated[
        int | None,
        option(
            "--max-records",
            f"With --group: records used of one user; default: {MAX_RECORDS}.",
            min=1,
            max=MOST_UNITS,
        ),
    ] = None
    relation: Neighbouring = RelationName.REPLACE_ONE
    n: Annotated[
        int | None, option("--n", "Public number of records, or of users with --group.", max=MOST_UNITS)
    ] = None
    account: Annotated[
        Path | None,
        place_option(
            "--account", "File of the account that pays; default: the project's. See `privopt account`."
        ),
    ] = None
    data_set: Annotated[
        str | None, option("--data-set", "The owner's name of the data, which must be the account's.")
    ] = None
    random_state: Annotated[
        int | None, option("--random-state", "Reproducible noise: the result is NOT PRIVATE.", min=0)
    ] = None


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where the records of a fit are kept, as it was typed."""

    engine: Annotated[
        PlaceOption,
        typer.Option("--engine", help="Where rows are kept; auto: in memory, or in a spool on the disk."),
    ] = PlaceOption.AUTO
    memory: Annotated[
        str | None, option("--memory", "What rows may take, such as 8GB; default: half of what is left.")
    ] = None
    spool: Annotated[
        Path | None, place_option("--spool", "Folder of the spool; default: that of temporary files.")
    ] = None
    address: Annotated[
        str | None, option("--address", "Ray cluster, HOST:PORT; default: one is started on this machine.")
    ] = None
    workers: Annotated[
        int | None, option("--workers", "Processes of the Ray cluster that hold rows.", min=1)
    ] = None
    retries: Annotated[
        int, typer.Option("--retries", help="How often parts of lost workers are read again.", min=0)
    ] = 3
    trust_network: Annotated[
        bool, typer.Option("--trust-network", help="Use a Ray cluster that asks for no tokens.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Options(PlaceOptions, BudgetOptions):
    """What was typed for `privopt plan`: what is fitted."""

    target: Annotated[str | None, option("--target", "Column to predict; default: the schema's.")] = None
    model: Annotated[
        ModelName | None, option("--model", "Default: logistic for classes, linear for numbers.")
    ] = None
    weighting: Annotated[
        WeightingName | None,
        option(
            "--weighting",
            "With --group: a user counts once, by the root or by the number of their records; "
            f"default: {WEIGHTING}.",
        ),
    ] = None
    typical_records: Annotated[
        float | None,
        option(
            "--typical-records",
            "With --group: your guess of the records of a typical user; default: the root of --max-records.",
        ),
    ] = None
    quantile: Annotated[
        float | None, option("--quantile", f"Level, for --model quantile; default: {QUANTILE:g}.")
    ] = None
    missing: Annotated[
        MissingName,
        typer.Option(
            "--missing",
            help="A missing cell: midpoint of its range; zero: its record counts as nothing; or midpoint and a feature "
            "that says where.",
        ),
    ] = MissingName.MIDPOINT
    storage: Annotated[
        StorageName,
        typer.Option(
            "--storage",
            help="Format of the rows in memory; int16 takes half and int8 a quarter, rounded to a public grid.",
        ),
    ] = StorageName.FLOAT32
    solver: Annotated[str, typer.Option("--solver", help="Name of a solver; see `privopt plan`.")] = "auto"


@dataclass(frozen=True, kw_only=True)
class FitOptions(Options):
    """What was typed for `privopt fit`: what is fitted, and where the run is kept."""

    resume: _Resume = None


@dataclass(frozen=True, kw_only=True)
class CheckOptions(SchemaOptions):
    """What was typed for `privopt check`."""

    show_values: Annotated[
        bool, typer.Option("--show-values", help="Quote the most frequent cells that cannot be read.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class SynthesisOptions(BudgetOptions):
    """What was typed for `privopt synthesize`."""

    workload: Annotated[
        str,
        typer.Option("--workload", help="What rows shall be right about: 1-way, 2-way or 3-way marginals."),
    ] = "2-way"
    method: Annotated[str, typer.Option("--method", help="Name of a synthesizer.")] = "auto"
    engine: Annotated[
        str | None,
        option("--engine", "'mbi': fit Private-PGM to the releases; needs the extra privopt[mbi]."),
    ] = None
    rows: Annotated[
        int | None,
        option("--rows", "Rows to write; default: the public number of units.", min=0, max=MOST_ROWS),
    ] = None
    column: Annotated[
        list[str] | None, option("--column", "Column to model; repeat it. Default: all that can be.")
    ] = None
    bins: Annotated[
        int | None, option("--bins", "Bins of a number; default: by the number of units.", min=1)
    ] = None
    resume: _Resume = None


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of its parameter `options`, an `Options` or the like, as its options."""
    declared: Any = typing.get_type_hints(command, include_extras=True)["options"]
    kinds = typing.get_type_hints(declared, include_extras=True)
    names = [field.name for field in fields(declared)]
    typed = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kinds[field.name]
        )
        for field in fields(declared)
    ]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(options=declared(**{name: given.pop(name) for name in names}), **given)

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "options"
    ]
    signature = inspect.Signature([*own, *typed])
    called.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
    called.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return called
