"""The table of a command: files, folders, globs and URIs, opened with what was typed about where to keep its rows."""

from collections.abc import Sequence

from privopt.commands.mistakes import Mistake, public_arguments
from privopt.commands.options import PlaceOptions
from privopt.commands.task import Task
from privopt.engine.placement import Placement
from privopt.tables.amounts import bytes_of
from privopt.tables.places import located
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
