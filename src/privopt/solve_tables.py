"""A table in files as `minimize` and `minimax` take it: whose its records are, and an engine on them for one run."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, final

from privopt.curator.journals import asking
from privopt.engine.choose import Holding, described, require_held
from privopt.engine.placement import Placement
from privopt.engine.protocol import Engine
from privopt.errors import ArgumentError, ArgumentTypeError
from privopt.ledger.account import Account
from privopt.public import DEFAULT_RECORDS, Public, Relation
from privopt.tables.table import Table


@final
@dataclass(frozen=True, kw_only=True)
class AskedUnits:
    """What a call says of the units of a table; None for what it leaves out.

    Attributes:
        groups: the column or columns that say whose record a row is; without them a record is a unit.
        relation: the neighbouring relation.
        max_records_per_user: public cap on the records of a user that are used.
    """

    groups: str | Sequence[str] | None
    relation: Relation | str | None
    max_records_per_user: int | None

    def check(self, units: Any) -> None:
        """Refuse what has no meaning for the data of the call.

        Raises:
            ArgumentTypeError: something is said of data that say it themselves.
            ArgumentError: a cap on the records of users is given, and no users are.
        """
        given = [name for name, value in vars(self).items() if value is not None]
        if given and not isinstance(units, Table):
            raise ArgumentTypeError(
                f"{given[0]} was given beside {type(units).__name__}: it is for a Table. Units and engines say it "
                "themselves: give it to Units.from_arrays, or to Table.engine."
            )
        if self.groups is None and self.max_records_per_user is not None:
            raise ArgumentError(
                "max_records_per_user is a cap on the records of a user: name the column or columns that say whose "
                "record a row is, groups=..., or leave it out."
            )

    @contextmanager
    def opened(
        self, table: Table, account: Account | None, planned: Callable[[Public], Holding]
    ) -> Generator[tuple[Engine, str]]:
        """An engine on the records of a table, and in words where they are kept.

        Args:
            table: in files.
            account: that pays for the run.
            planned: the plan of the run, from what is public about the units; asked for where rows may lie elsewhere.
        Raises:
            ArgumentError: the plan needs more of the units in this process than fits; no record has been read.
        """
        placements = list[Placement]()

        def ahead(public: Public, placement: Placement) -> None:
            if placement.engine != "memory":
                require_held(planned(public), placement)
            placements.append(placement)

        cap = DEFAULT_RECORDS if self.max_records_per_user is None else self.max_records_per_user
        relation = Relation.REPLACE_ONE if self.relation is None else self.relation
        with asking(table.asked(self.groups), account):
            engine = table.engine(
                groups=self.groups, relation=relation, max_records_per_user=cap, ahead=ahead
            )
            with closing(engine):
                yield engine, placements[-1].told(described(engine))
