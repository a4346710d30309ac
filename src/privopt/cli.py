"""The `privopt` command: arguments in, one sentence out when they are wrong.

Heavy imports stand inside the commands, so that `--help` and a mistyped option answer at once.
"""

import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from privopt.commands.interrupts import Interrupts
from privopt.commands.options import (
    WORK,
    AsJson,
    CheckOptions,
    CompositionName,
    CountedTables,
    EngineOption,
    FitOptions,
    ModelDirectory,
    Neighbouring,
    Options,
    RelationName,
    ReleasesFile,
    RequireReplay,
    SignKey,
    SynthesisOptions,
    TableOutput,
    Tables,
    TrustedKeys,
    UnitName,
    Work,
    number_option,
    on_this_machine,
    option,
    output_option,
    place_option,
    with_options,
)
from privopt.commands.screen import (
    AskingCommand,
    PlainCommand,
    PlainGroup,
    clearer,
    public_arguments,
    sentence_about,
    typed_number,
)
from privopt.engine.on_ray.starting import leave
from privopt.errors import STAYS_CHARGED, DataUnavailable, notes_of
from privopt.printable import printable

DEBUG = "PRIVOPT_DEBUG"
UNAVAILABLE = 3  # records cannot be read any more, see `errors.DataUnavailable`
STOPPED = 130  # what a shell expects of a command that was interrupted
# The root of the argument parser's errors, wherever the installed typer keeps it.
ParserError = cast("type[Exception]", typer.BadParameter.__mro__[2])


class OneSentenceGroup(PlainGroup):
    """The commands, with every error as one sentence on stderr.

    Exit code 2 for a user's mistake, 3 where records cannot be read any more, 1 for a mistake of ours.
    """

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run a command and leave with its exit code."""
        options["standalone_mode"] = False
        self._spent, self._interrupts = list[str](), Interrupts()
        with self._interrupts.heard():
            code = self._code(args, *rest, **options)
            if code == STOPPED:
                _complain(" ".join(["stopped.", *(self._spent or ["Nothing was spent."])]), STOPPED)
        leave(code if isinstance(code, int) else 0)

    def _code(self, args: Sequence[str] | None, *rest: Any, **options: Any) -> Any:
        """Run a command, and say what is wrong; the exit code."""
        try:
            return super().main(args, *rest, **options)
        except (KeyboardInterrupt, typer.Abort):
            self._interrupts.settle()
            return STOPPED
        except ParserError as error:
            self._interrupts.settle()
            message = clearer(str(cast("Any", error).format_message()).rstrip(". "))
            message = re.sub(r"://[^\s')]*", "://...", message)  # of a URI there may be a password
            return _complain(f"{message}. See `privopt --help`.", 2)
        except Exception as error:
            self._interrupts.settle()
            return STOPPED if self._interrupts.came else _explain(error)

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and remember what one that is interrupted has spent: its exception goes no further.

        A library may raise something else than the interrupt that it has met.
        """
        try:
            return super().invoke(ctx)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or self._interrupts.came:
                self._spent = notes_of(error)[-1:]  # the command's own, where it had begun to spend
            raise


def _explain(error: Exception) -> int:
    """Say what went wrong; the trace only to those who asked for it."""
    if os.environ.get(DEBUG) == "1":
        traceback.print_exc()
    sentence = sentence_about(error)
    if isinstance(error, DataUnavailable):
        said = str(error).removesuffix(STAYS_CHARGED)  # a note says what, and without one nothing was charged
        return _complain(" ".join([said, *(notes_of(error)[-1:] or ["Nothing was spent."])]), UNAVAILABLE)
    if sentence is not None:
        return _complain(sentence, 2)
    return _complain(
        f"internal error ({type(error).__name__}), not a mistake of yours. Set {DEBUG}=1 to see where; such a trace "
        "may quote private data.",
        1,
    )


def _complain(sentence: str, code: int) -> int:
    sys.stderr.write(f"privopt: {printable(' '.join(sentence.split()))}\n")
    return code


app = typer.Typer(
    name="privopt",
    cls=OneSentenceGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and exit.")] = False,
) -> None:
    """Private models from tables, with a guarantee that is priced before the data is read."""
    if version:
        from importlib import metadata

        typer.echo(f"privopt {metadata.version('privopt')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(cls=AskingCommand)
@with_options
def fit(
    table: Tables,
    options: FitOptions,
    output: Annotated[Path | None, output_option("Model directory to write. Required.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model in the directory.")] = False,
    sign_key: SignKey = None,
) -> None:
    """Fit a private model to a table; write it with its report."""
    from privopt.commands import fitting

    fitting.run(table or [], options, output=output, overwrite=overwrite, sign_key=sign_key)


@app.command(cls=PlainCommand)
@with_options
def plan(
    options: Options,
    table: CountedTables = None,
    as_json: AsJson = False,
    compare: Annotated[
        bool, typer.Option("--all", help="Say what every other solver would do, too.")
    ] = False,
) -> None:
    """Say what a fit would cost and achieve; a table is counted at most."""
    from privopt.commands import planning

    planning.run(table or [], options, as_json=as_json, compare=compare)


@app.command(cls=AskingCommand)
@with_options
def check(
    table: Tables,
    options: CheckOptions,
    as_json: AsJson = False,
) -> None:
    """Count, for the holder of the data alone, which cells a schema cannot read: exact, outside of any guarantee."""
    from privopt.commands import checking

    checking.run(table or [], options, as_json=as_json)


@app.command(cls=AskingCommand)
@with_options
def synthesize(
    table: Tables,
    options: SynthesisOptions,
    output: TableOutput = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    sign_key: SignKey = None,
) -> None:
    """Write private synthetic rows that look like a table's."""
    from privopt.commands import synthesizing

    synthesizing.run(table or [], options, output=output, overwrite=overwrite, sign_key=sign_key)


@app.command(cls=AskingCommand)
def predict(
    directory: ModelDirectory,
    table: Tables,
    output: TableOutput = None,
    keep: Annotated[
        list[str] | None,
        option("--keep", "Column of the table to copy beside the predictions, such as an id; repeat it."),
    ] = None,
) -> None:
    """Predict for the rows of a table; its target may be missing."""
    from privopt.commands import prediction

    prediction.run(directory, table or [], output=output, keep=keep or [])


@app.command(cls=PlainCommand)
def report(
    directory: ModelDirectory,
    open_path: Annotated[
        bool, typer.Option("--open-path", help="Print the HTML file's path only, for a browser.")
    ] = False,
    work: Work = WORK,
    sign_key: SignKey = None,
) -> None:
    """Print a model's privacy report; write it as HTML and JSON."""
    from privopt.commands import reporting

    reporting.run(directory, path_only=open_path, work=work, sign_key=sign_key)


@app.command(cls=PlainCommand)
def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="REPORT|MODEL",
            help="Report in JSON, or model directory.",
            show_default=False,
            callback=on_this_machine,
        ),
    ],
    as_json: AsJson = False,
    require_replay: RequireReplay = False,
    work: Work = WORK,
    releases: ReleasesFile = None,
    trusted_key: TrustedKeys = None,
) -> None:
    """Price a report anew with a second accountant and replay its run: exit code 0 if it holds, else 1."""
    from privopt.commands import verifying

    if not verifying.run(
        path,
        as_json=as_json,
        work=work,
        require_replay=require_replay,
        releases=releases,
        trusted_keys=trusted_key or (),
    ):
        raise typer.Exit(1)


@app.command(cls=PlainCommand)
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the reports.", callback=on_this_machine)
    ] = Path("demo-output"),
) -> None:
    """Private models of medical records, beside non-private ones."""
    from privopt import demo

    demo.run(output)


account = typer.Typer(
    name="account",
    cls=PlainGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="One budget for all fits on some data, kept in a file.",
)
app.add_typer(account)
AccountFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="The account; default: PRIVOPT_ACCOUNT or the project's.",
        show_default=False,
        callback=on_this_machine,
    ),
]


AsOf = Annotated[str | None, option("--as-of", "A date or time (UTC): as it was then.")]


@account.command("create", cls=AskingCommand)
def account_create(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The file to make, such as budget.sqlite.", callback=on_this_machine
        ),
    ],
    data_set: Annotated[str, option("--data-set", "Your name of the data.")],
    epsilon: Annotated[float, number_option("--epsilon", "Total epsilon of all fits together.")],
    delta: Annotated[
        float, number_option("--delta", "Total delta of all fits together; choose it well below 1 / n.")
    ],
    relation: Neighbouring = RelationName.REPLACE_ONE,
    unit: Annotated[
        UnitName | None, option("--unit", "What every fit must protect; default: as the first.")
    ] = None,
    composition: Annotated[
        CompositionName, typer.Option("--composition", help="How fits add up; basic pays for sampling too.")
    ] = CompositionName.ZCDP,
    counter: Annotated[
        Path | None,
        place_option(
            "--counter", "On another disk or machine: payments are counted there too.", metavar="FOLDER"
        ),
    ] = None,
) -> None:
    """Open an account, once, by whoever answers for the data."""
    from privopt.commands import accounts

    unit_name = None if unit is None else unit.value
    accounts.create(file, data_set, epsilon, delta, relation.value, unit_name, composition.value, counter)


@account.command("show", cls=PlainCommand)
def account_show(
    file: AccountFile = None,
    as_of: AsOf = None,
    everything: Annotated[bool, typer.Option("--all", help="Every payment, not the latest alone.")] = False,
) -> None:
    """Say what is left, what was paid, and how the budget burnt down."""
    from privopt.commands import accounts

    accounts.show(file, as_of=as_of, everything=everything)


@account.command("export", cls=PlainCommand)
def account_export(
    file: AccountFile = None,
    output: Annotated[Path | None, output_option("JSON file; default: the terminal.")] = None,
    as_of: AsOf = None,
) -> None:
    """Write every payment with its events, price and hash as JSON."""
    from privopt.commands import accounts

    accounts.export(file, output=output, as_of=as_of)


@app.command("audit-map", cls=PlainCommand)
def audit_map(
    solver: Annotated[
        str | None,
        typer.Argument(metavar="SOLVER", help="Its name; default: every solver.", show_default=False),
    ] = None,
    engine: Annotated[
        EngineOption, typer.Option("--engine", help="What computes on the records.")
    ] = EngineOption.FAST,
    as_json: AsJson = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print tables for the documentation.")
    ] = False,
) -> None:
    """Say which files and lines a solver's guarantee rests on: what somebody who checks it has to read."""
    from privopt.commands import audit_map

    with public_arguments():
        audit_map.run(solver, engine=engine.value, as_json=as_json, as_markdown=as_markdown)


audit_commands = typer.Typer(
    cls=PlainGroup, rich_markup_mode=None, help="Attack what is claimed, and say what a guarantee rests on."
)
app.add_typer(audit_commands, name="audit")
audit_commands.command("map", cls=PlainCommand)(audit_map)


@audit_commands.command(cls=PlainCommand)
def attack(
    estimator: Annotated[
        list[str] | None, option("--estimator", "What is attacked; may be repeated.", metavar="NAME")
    ] = None,
    solver: Annotated[
        list[str] | None, option("--solver", "A solver to attack; may be repeated.", metavar="NAME")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Attack every estimator at its defaults: minutes.")
    ] = False,
    epsilon: Annotated[
        float, typer.Option("--epsilon", help="The claim.", parser=typed_number, metavar="FLOAT")
    ] = 1.0,
    delta: Annotated[float, typer.Option("--delta", help="The claim.")] = 1e-6,
    runs: Annotated[int, typer.Option("--runs", help="Pairs of runs of the optimal test.")] = 20,
    pairs: Annotated[int, typer.Option("--pairs", help="Coins of one fit.")] = 200,
    as_json: AsJson = False,
) -> None:
    """Attack models on made-up data: a lower bound on epsilon for each; exit code 0 if no claim is refuted, else 1."""
    from privopt.commands import attacking
    from privopt.ledger.amounts import Budget

    with public_arguments():
        held = attacking.run(
            estimator or [],
            solver or [],
            everything=everything,
            budget=Budget(epsilon, delta),
            runs=runs,
            pairs=pairs,
            as_json=as_json,
        )
    if not held:
        raise typer.Exit(1)


def main() -> None:
    """The entry point of the `privopt` command."""
    app()


if __name__ == "__main__":
    main()
