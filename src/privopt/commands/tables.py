"""The table of a command: files, folders, globs and URIs, opened with what was typed about where to keep its rows."""

from collections.abc import Sequence

from rich.console import Console

from privopt.commands import screen
from privopt.commands.mistakes import Mistake, public_arguments
from privopt.commands.options import PlaceOptions
from privopt.commands.task import Task, named
from privopt.engine.placement import Placement
from privopt.tables.amounts import bytes_of
from privopt.tables.places import located, shown_name
from privopt.tables.table import Table


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


def units_of(table: Table, files: Sequence[str], task: Task, terminal: Console) -> tuple[int, str]:
    """The public number of units, and where it comes from; a terminal is told of what takes a while.

    Raises:
        Mistake: the table has fewer than two.
        TableError: it cannot be read.

    Privacy:
        Counted only under replace-one, where the number of records (or users) is public by definition.
    """
    n = task.options.n
    if n is not None:
        return n, "given by --n"
    if task.groups:
        keys = named(task.groups)
        with screen.working(terminal, f"Counting users: {keys} is read for it once; --n would save that."):
            n, how = table.user_count(task.groups), f"counted in {keys}"
    else:
        with screen.working(terminal, "Counting records: texts are read for it once."):
            n, how = table.row_count(), "the table's rows"
    if n < 2:
        raise Mistake(
            f"the table {' '.join(map(shown_name, files))!r} has {n} {task.unit}s: a private mean needs at least 2, "
            "and useful ones many."
        )
    return n, how
