"""The table of a command: files, folders, globs and URIs, opened with what was typed about where to keep its rows."""

from collections.abc import Sequence

from privopt.commands.mistakes import Mistake, public_arguments
from privopt.commands.options import PlaceOption, PlaceOptions
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
    of_ray = {
        "--address": options.address is not None,
        "--workers": options.workers is not None,
        "--trust-network": options.trust_network,
    }
    lonely = [name for name, given in of_ray.items() if given]
    if lonely and options.engine is not PlaceOption.RAY:
        raise Mistake(f"{lonely[0]} is about a Ray cluster: ask for one with --engine ray.")
    if options.spool is not None and options.engine not in (PlaceOption.AUTO, PlaceOption.STREAM):
        raise Mistake("--spool is the folder of a streamed table: ask for one with --engine stream, or auto.")
    if options.spool is not None and not options.spool.is_dir():
        raise Mistake(
            f"--spool {str(options.spool)!r} is no folder: give one on a disk with room for the rows."
        )
    with public_arguments():
        return Placement(
            engine=str(options.engine),  # pyright: ignore[reportArgumentType]  # checked by the parser
            memory=bytes_of(options.memory),
            spool=options.spool,
            address=options.address,
            workers=options.workers,
            retries=options.retries,
            trust_network=options.trust_network,
        )


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
