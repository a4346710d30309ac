"""The records of a fit, of arrays or of a table in files, to be turned into privacy units as each stage needs them."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, final

from numpy.typing import NDArray
from scipy import sparse

from privopt.data import user_keys
from privopt.data.record_source import Description, RecordSource
from privopt.data.units import Units, UnitsNoise
from privopt.engine.choose import Holding, described, engine_of, most_rows, require_held, settled
from privopt.engine.placement import Placement
from privopt.engine.protocol import Engine, Succession
from privopt.estimators.scaling import ScaledFeatures
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.row_length import SourceColumn

TargetMap = Callable[[NDArray[Any]], NDArray[Any]]


class Records(Protocol):
    """What a fit is given besides its arguments. PRIVATE.

    Attributes:
        private_targets: (rows,), for labels that the user declares to be those that occur; None where targets are not
            held.
        names: of the features, where the records themselves know them.
        columns: of a table, whose features they are; None of arrays.
        kept: where they are kept, in words; None for arrays.
        row_entries: the most entries of a sparse row, where something public says it.
        noise: the fit's secret randomness.
    """

    @property
    def private_targets(self) -> NDArray[Any] | None: ...
    @property
    def names(self) -> Sequence[str] | None: ...
    @property
    def columns(self) -> Sequence[SourceColumn] | None: ...
    @property
    def kept(self) -> str | None: ...
    @property
    def noise(self) -> NoiseSource: ...
    @property
    def width(self) -> int: ...
    @property
    def is_sparse(self) -> bool: ...
    @property
    def row_entries(self) -> int | None: ...
    @property
    def by_user(self) -> bool: ...

    def count(self) -> int:
        """How many units there are: public under replace-one only."""
        ...

    def require(self, plan: Callable[[], Holding]) -> None:
        """Refuse a plan that needs more of the units in this process than fits, before any record is read.

        Args:
            plan: makes it, where the records may lie elsewhere.
        Raises:
            ArgumentError: it does.
        """
        ...

    def in_succession(self) -> AbstractContextManager["Records"]:
        """The same around a run that stores them in one way after the other, see `Succession`."""
        ...

    def units(
        self, features: ScaledFeatures, targets: TargetMap | None, description: Description
    ) -> Units | Engine:
        """The records as privacy units, or an engine on them.

        Args:
            features: what is stored of a row.
            targets: of its target; None for the same.
            description: what is public about the units.
        """
        ...


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HeldRecords:
    """Arrays.

    Attributes:
        private_features: (rows, d).
        private_targets: (rows,).
        groups: (rows,) or (rows, k) keys of users as they were given, since users are laid out by them, as those of a
            table are; None where a record is a unit.
        noise: the fit's secret randomness.
        choice: which records of a user are kept: the same in all stages of a fit.
    """

    private_features: Any
    private_targets: NDArray[Any]
    groups: Any
    noise: NoiseSource
    choice: UnitsNoise
    names: Sequence[str] | None = None

    columns = None
    kept = None
    row_entries = None

    @property
    def width(self) -> int:
        """The number of features."""
        return self.private_features.shape[1]

    @property
    def is_sparse(self) -> bool:
        """Whether the features are sparse."""
        return sparse.issparse(self.private_features)

    @property
    def by_user(self) -> bool:
        """Whether a unit is a user."""
        return self.groups is not None

    def count(self) -> int:
        """See `Records.count`."""
        if self.groups is None:
            return len(self.private_targets)
        codes = user_keys.user_codes(self.groups, len(self.private_targets))
        return user_keys.user_count(int(codes.max(initial=-1)) + 1)

    def require(self, plan: Callable[[], Holding]) -> None:
        """See `Records.require`: arrays are in memory."""
        del plan

    def in_succession(self) -> AbstractContextManager[Records]:
        """See `Records.in_succession`: arrays are in memory."""
        return nullcontext(self)

    def units(self, features: ScaledFeatures, targets: TargetMap | None, description: Description) -> Units:
        """See `Records.units`."""
        return Units.from_arrays(
            features(self.private_features),
            self.private_targets if targets is None else targets(self.private_targets),
            groups=self.groups,
            noise=self.choice,
            **description.arguments(),
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StoredRecords:
    """A table in files, read anew for each stage.

    Attributes:
        source: the records as they are read.
        placement: where they are kept during a stage.
        public_count: counts the units.
        names: of the features.
        columns: whose features they are.
        noise: the fit's secret randomness.
        choice: which records of a user are kept: the same in all stages of a fit.
        told: what engines said of the machines that hold records, in the order in which they were opened.
        succession: of the engines, during a run that stores them in one way after the other.
    """

    source: RecordSource
    placement: Placement
    public_count: Callable[[], int]
    names: Sequence[str]
    columns: Sequence[SourceColumn]
    noise: NoiseSource
    choice: UnitsNoise
    told: dict[str, None] = field(default_factory=dict[str, None])
    succession: Succession | None = None

    private_targets = None

    @property
    def kept(self) -> str:
        """Where they are kept, in words."""
        return self.placement.told(self.told)

    @property
    def width(self) -> int:
        """The number of features."""
        return self.source.width

    @property
    def is_sparse(self) -> bool:
        """Whether the features are sparse."""
        return self.source.is_sparse

    @property
    def row_entries(self) -> int | None:
        """The most entries of a sparse row, by the schema."""
        return self.source.row_entries if self.source.is_sparse else None

    @property
    def by_user(self) -> bool:
        """Whether a unit is a user."""
        return self.source.by_user

    def count(self) -> int:
        """See `Records.count`."""
        return self.public_count()

    def require(self, plan: Callable[[], Holding]) -> None:
        """See `Records.require`."""
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
        """See `Records.in_succession`."""
        with closing(Succession()) as succession:
            yield replace(self, succession=succession)

    def units(self, features: ScaledFeatures, targets: TargetMap | None, description: Description) -> Engine:
        """See `Records.units`."""
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
