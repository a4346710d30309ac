"""Raw records that are read as they are asked for, from files or from arrays, so that they need never be held. PRIVATE.

A source is what `Units.from_arrays` takes, in pieces: an engine that keeps its rows outside of this process' memory
asks for the records of one part after the other, wherever the part is kept, and again where it was lost.
"""

import abc
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.user_parts import require_known_everywhere
from privopt.public import DEFAULT_RECORDS, DEFAULT_WEIGHTING, Relation, Weighting

BLOCK_RECORDS = 2**14  # of a source that has no blocks of its own


class RecordBlock(NamedTuple):
    """Consecutive records as they are read: not clipped, not checked.

    Attributes:
        private_features: (rows, d), an array or CSR.
        private_targets: (rows,) numbers or labels; None where there are none.
        private_keys: (rows,) or (rows, k) keys of users, see `data.user_keys`; None where a record is a unit.
    """

    private_features: Any
    private_targets: NDArray[Any] | None
    private_keys: Any


class RecordSource(abc.ABC):
    """Records in a fixed order, read in blocks as often as it takes.

    Can be pickled; a source of files holds their names, not records.

    Attributes:
        rows: how many there are. Private under add-or-remove-one.
        width: d, features of a record.
        is_sparse: whether the features of a block are CSR.
        by_user: whether a block has keys of users.
        row_entries: the most entries that a CSR row has, a public number; None where none is known.
    """

    rows: int
    width: int
    is_sparse: bool = False
    by_user: bool = False
    row_entries: int | None = None

    @property
    def most_entries(self) -> int | None:
        """The most entries of a CSR row, its width where no other number is public; None of dense rows."""
        return min(self.width, self.row_entries or self.width) if self.is_sparse else None

    @abc.abstractmethod
    def blocks(self, start: int, stop: int) -> Iterator[RecordBlock]:
        """The records start..stop-1, in order, in blocks of at least one.

        Raises:
            DataUnavailable: the files are not those that were opened, or cannot be read.
        """

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """What the records were read from, as a digest of names, sizes and times; empty for arrays.

        And what is read of it: records of the same files that differ are of sources that differ here.
        """

    def require_portable(self) -> None:  # noqa: B027 - files have nothing to refuse
        """Refuse records whose users can be told apart in this process alone. Those of files have none.

        Raises:
            KeysOfOwnTypes: there are keys of other types than `user_keys` names.
        """

    def mapped(
        self,
        width: int,
        features: Callable[[Any], Any],
        targets: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
    ) -> "MappedRecords":
        """The same records with other features and targets, each a function of the one record behind it.

        Args:
            width: of a new row.
            features: of the features of a block; picklable. A CSR row gets no more entries by it but
                those of columns that are new.
            targets: of its targets; None for the same.
        """
        return MappedRecords(self, width, features, targets)


class MappedRecords(RecordSource):
    """See `RecordSource.mapped`."""

    def __init__(
        self,
        source: RecordSource,
        width: int,
        features: Callable[[Any], Any],
        targets: Callable[[NDArray[Any]], NDArray[Any]] | None,
    ) -> None:
        self._source, self._features, self._targets = source, features, targets
        self.rows, self.width = source.rows, width
        self.is_sparse, self.by_user = source.is_sparse, source.by_user
        new = max(0, width - source.width)
        self.row_entries = None if source.row_entries is None else source.row_entries + new

    def blocks(self, start: int, stop: int) -> Iterator[RecordBlock]:
        """See `RecordSource.blocks`."""
        for block in self._source.blocks(start, stop):
            private_targets = block.private_targets
            if self._targets is not None and private_targets is not None:
                private_targets = self._targets(private_targets)
            # A source of rows computes them as they are asked for; a block is asked for whole.
            private_features = self._features(block.private_features)
            if not sparse.issparse(private_features):
                private_features = np.asarray(private_features)
            yield RecordBlock(private_features, private_targets, block.private_keys)

    def require_portable(self) -> None:
        """See `RecordSource.require_portable`."""
        self._source.require_portable()

    def fingerprint(self) -> str:
        """See `RecordSource.fingerprint`."""
        return self._source.fingerprint()


class ArrayRecords(RecordSource):
    """Records of arrays in memory.

    Args:
        features: (rows, d), an array or CSR.
        targets: (rows,), or None.
        keys: (rows,) or (rows, k) keys of users, or None.
    """

    def __init__(self, features: Any, targets: Any = None, keys: Any = None) -> None:
        self._private = RecordBlock(features, None if targets is None else np.asarray(targets), keys)
        self.rows, self.width = features.shape
        self.is_sparse, self.by_user = sparse.issparse(features), keys is not None

    def blocks(self, start: int, stop: int) -> Iterator[RecordBlock]:
        """See `RecordSource.blocks`."""
        for first in range(start, stop, BLOCK_RECORDS):
            part = slice(first, min(first + BLOCK_RECORDS, stop))
            yield RecordBlock(*(None if private is None else private[part] for private in self._private))

    def require_portable(self) -> None:
        """See `RecordSource.require_portable`: all keys are looked at, as their types may differ."""
        for block in self.blocks(0, self.rows) if self.by_user else ():
            require_known_everywhere(block.private_keys, block.private_features.shape[0])

    def fingerprint(self) -> str:
        """See `RecordSource.fingerprint`."""
        return ""

    def __repr__(self) -> str:
        return f"ArrayRecords(<private>, d={self.width})"


@dataclass(frozen=True, kw_only=True)
class Description:
    """What is public about the units that a source's records are grouped into: the arguments of `Units.from_arrays`.

    See there for each.
    """

    relation: Relation | str = Relation.REPLACE_ONE
    row_bound: float | None = None
    entry_bound: float | None = None
    n: int | None = None
    max_records_per_user: int = DEFAULT_RECORDS
    user_weighting: Weighting = DEFAULT_WEIGHTING
    typical_records: float | None = None
    classes: Any = None
    target_bounds: tuple[float, float] | None = None
    intercept: float | None = None
    storage: Any = "float32"

    def arguments(self) -> dict[str, Any]:
        """As keyword arguments."""
        return dict(vars(self))

    def origin(self, source: RecordSource) -> str:
        """What units of these records are read from, and as what: see `Units.origin`."""
        files = source.fingerprint()
        if not files:
            return ""
        classes = None if self.classes is None else list(self.classes)
        told = {**self.arguments(), "relation": Relation.parse(self.relation).value, "classes": classes}
        return hashlib.sha256(f"{files} {told!r}".encode("utf-8", "surrogatepass")).hexdigest()
