"""The records of a fit, of arrays or of a table in files, to be turned into privacy units as each stage needs them."""

import abc
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, final

from numpy.typing import NDArray
from scipy import sparse

from privopt.data import user_keys
from privopt.data.record_source import Description, RecordSource
from privopt.data.units import Units, UnitsNoise
from privopt.engine.choose import Holding, described, engine_of, most_rows, require_held, settled
from privopt.engine.placement import Placement
from privopt.engine.protocol import Engine, Succession
from privopt.estimators.scaling import ScaledFeatures
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.row_length import SourceColumn
from privopt.public import check_row_entries

TargetMap = Callable[[NDArray[Any]], NDArray[Any]]


@final
@dataclass(frozen=True, kw_only=True)
class Shape:
    """The public sizes of a fit.

    Attributes:
        width: number of features.
        n: number of units.
        by_user: whether a unit is a user.
        is_sparse: whether the features are sparse.
        row_entries: the most entries of a sparse row, where something public says it.
        names: of the features, where they are known.
        columns: of a table, whose features they are; None of plain features.
        budget: of the fit or search; None where released parameters are only translated.
    Raises:
        ValueError: the most entries of a row are no whole number of at least 1.
    """

    width: int
    n: int
    by_user: bool
    is_sparse: bool = False
    row_entries: int | None = None
    names: Sequence[str] | None = None
    columns: Sequence[SourceColumn] | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        check_row_entries(self.row_entries)

    @property
    def known_budget(self) -> Budget:
        """The budget of a fit or search that is planned."""
        assert self.budget is not None
        return self.budget


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Records(abc.ABC):
    """What a fit is given besides its arguments. PRIVATE.

    Attributes:
        noise: the fit's secret randomness.
        choice: which records of a user are kept: the same in all stages of a fit.
        private_targets: (rows,), for labels that the user declares to be those that occur; None where targets are not
            held.
    """

    noise: NoiseSource
    choice: UnitsNoise
    private_targets: NDArray[Any] | None

    @property
    def kept(self) -> str | None:
        """Where they are kept, in words; None for arrays."""
        return None

    @abc.abstractmethod
    def shape(self, n: int | None, names: Sequence[str] | None, budget: Budget | None = None) -> Shape:
        """The public sizes of a fit.

        Args:
            n: public number of units; None for that of the rows or users, which is public under replace-one only.
            names: of the features, where they are known.
            budget: of the fit.
        """

    def require(self, plan: Callable[[], Holding]) -> None:
        """Refuse a plan that needs more of the units in this process than fits, before any record is read.

        Args:
            plan: makes it, where the records may lie elsewhere.
        Raises:
            ArgumentError: it does.
        """
        del plan  # arrays are in memory

    @contextmanager
    def in_succession(self) -> Generator["Records"]:
        """The same around a run that stores them in one way after the other, see `Succession`."""
        yield self

    @abc.abstractmethod
    def units(
        self, features: ScaledFeatures, targets: TargetMap | None, description: Description
    ) -> Units | Engine:
        """The records as privacy units, or an engine on them.

        Args:
            features: what is stored of a row.
            targets: of its target; None for the same.
            description: what is public about the units.
        """


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HeldRecords(Records):
    """Arrays.

    Attributes:
        private_features: (rows, d).
        private_targets: (rows,).
        groups: (rows,) or (rows, k) keys of users as they were given, since users are laid out by them, as those of a
            table are; None where a record is a unit.
    """

    private_features: Any
    private_targets: NDArray[Any]
    groups: Any

    def shape(self, n: int | None, names: Sequence[str] | None, budget: Budget | None = None) -> Shape:
        return Shape(
            width=self.private_features.shape[1],
            n=self._count() if n is None else n,
            by_user=self.groups is not None,
            is_sparse=sparse.issparse(self.private_features),
            names=names,
            budget=budget,
        )

    def _count(self) -> int:
        if self.groups is None:
            return len(self.private_targets)
        codes = user_keys.user_codes(self.groups, len(self.private_targets))
        return user_keys.user_count(int(codes.max(initial=-1)) + 1)

    def units(self, features: ScaledFeatures, targets: TargetMap | None, description: Description) -> Units:
        return Units.from_arrays(
            features(self.private_features),
            self.private_targets if targets is None else targets(self.private_targets),
            groups=self.groups,
            noise=self.choice,
            **description.arguments(),
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StoredRecords(Records):
    """A table in files, read anew for each stage.

    Attributes:
        source: the records as they are read.
        placement: where they are kept during a stage.
        public_count: counts the units.
        columns: whose features they are.
        told: what engines said of the machines that hold records, in the order in which they were opened.
        succession: of the engines, during a run that stores them in one way after the other.
    """

    source: RecordSource
    placement: Placement
    public_count: Callable[[], int]
    columns: Sequence[SourceColumn]
    told: dict[str, None] = field(default_factory=dict[str, None])
    succession: Succession | None = None

    @property
    def kept(self) -> str:
        return self.placement.told(self.told)

    def shape(self, n: int | None, names: Sequence[str] | None, budget: Budget | None = None) -> Shape:
        source = self.source
        return Shape(
            width=source.width,
            n=self.public_count() if n is None else n,
            by_user=source.by_user,
            is_sparse=source.is_sparse,
            row_entries=source.row_entries if source.is_sparse else None,
            names=names,
            columns=self.columns,
            budget=budget,
        )

    def require(self, plan: Callable[[], Holding]) -> None:
        if self.placement.engine == "memory":
            return
        planned, source = plan(), self.source
        public = planned.public
        rows = most_rows(public.n, public.records_per_unit if source.by_user else None)
        require_held(
            planned, settled(self.placement, rows, source.width, public.storage, source.most_entries)
        )

    @contextmanager
    def in_succession(self) -> Generator[Records]:
        with closing(Succession()) as succession:
            yield replace(self, succession=succession)

    def units(self, features: ScaledFeatures, targets: TargetMap | None, description: Description) -> Engine:
        source = self.source.mapped(features.width, features, targets)
        engine = engine_of(source, description, self.placement, noise=self.choice, succession=self.succession)
        self.told.update(dict.fromkeys(described(engine)))
        return engine


@contextmanager
def given_back(data: Units | Engine) -> Generator[Units | Engine]:
    """Around the use of units: what an engine holds outside of this process is given back at the end."""
    try:
        yield data
    finally:
        if not isinstance(data, Units):
            data.close()


class LatestUnits:
    """The units as they were last stored: where they are stored in several ways, there is one copy at a time."""

    def __init__(self) -> None:
        self._key: Any = None
        self._data: Units | Engine | None = None

    def units(self, key: Any, made: Callable[[], Units | Engine]) -> Units | Engine:
        """Those of a key, made anew unless they are those at hand."""
        if self._data is None or self._key != key:
            self.close()
            self._key, self._data = key, made()
        return self._data

    def close(self) -> None:
        """Give back what they hold."""
        data, self._data = self._data, None
        if data is not None and not isinstance(data, Units):
            data.close()
