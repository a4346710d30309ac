"""Scaling of features into [-1, 1] by bounds, the rule for missing entries, and the way back.

Every map acts on one record alone and depends on its bounds only, so it costs no privacy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.rows import Positions
from privopt.data.storage import RowSource
from privopt.estimators.bounds import ends_of

BLOCK_ENTRIES = 2**16  # entries worked on at a time: half a megabyte of float64, which stays in the cache
Bounds = tuple[NDArray[np.float64], NDArray[np.float64]]
Filling = Literal["midpoint", "zero", "nothing"]


@final
@dataclass(frozen=True, eq=False, repr=False)
class FeatureScaling:
    """`a = (x - center) / spread`, clipped to [-1, 1].

    Attributes:
        low: (d,) public lower ends.
        high: (d,) public upper ends.
        centered: whether zero is moved to the middle of the bounds. Not for sparse features, whose zeros must stay
            zeros, and not without an intercept, which undoes the move.
        filling: what an entry becomes that is missing (NaN or infinite): "midpoint", the middle of its bounds; "zero",
            NaN, by which the whole record counts as zero; "nothing", a scaled entry of 0, which the estimation of
            bounds counts as no magnitude.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    centered: bool
    filling: Filling = "midpoint"

    @classmethod
    def of(
        cls,
        bounds: Any,
        width: int,
        *,
        centered: bool,
        keep_zero: bool,
        names: Sequence[str] | None = None,
        name: str = "bounds",
        filling: Filling = "midpoint",
        indicators: int = 0,
    ) -> "FeatureScaling":
        """The scaling by the bounds of `width` features, see `ends_of`.

        Args:
            bounds: what the user gave.
            width: number of features as the user gave them.
            centered: whether to move the middle to zero.
            keep_zero: whether the features are sparse, so that 0 must lie within the bounds.
            names: of the features, where they are known.
            name: the argument they were given as.
            filling: of missing entries.
            indicators: number of columns of 0 and 1 that follow the features, see `with_indicators`.
        Raises:
            TypeError, ValueError: the bounds are not usable.
        """
        low, high = ends_of(bounds, width, names, name)
        if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low <= high)):
            raise ValueError(f"{name} must be finite with low <= high for every feature, got {bounds!r}.")
        if np.all(low == high):
            raise ValueError(
                f"{name} must have low < high for at least one feature, got {bounds!r}: every feature would be "
                "constant, and nothing could be learned from it."
            )
        if keep_zero and (np.any(low > 0) or np.any(high < 0)):
            raise ValueError(
                f"{name} of sparse features must include 0, which is what an entry that is not stored means, got "
                f"{bounds!r}."
            )
        low, high = np.append(low, np.zeros(indicators)), np.append(high, np.ones(indicators))
        return cls(low, high, centered and not keep_zero, filling)

    @property
    def width(self) -> int:
        """The number of features."""
        return len(self.low)

    @cached_property
    def center(self) -> NDArray[np.float64]:
        """The value that is mapped to 0."""
        return self.low / 2 + self.high / 2 if self.centered else np.zeros_like(self.low)

    @cached_property
    def midpoint(self) -> NDArray[np.float64]:
        """The middle of the bounds, in the units of the features."""
        return self.low / 2 + self.high / 2

    @cached_property
    def _filled(self) -> NDArray[np.float32]:
        """What a missing entry becomes, scaled."""
        if self.filling == "zero":
            return np.full(self.width, np.nan, np.float32)
        if self.filling == "nothing":
            return np.zeros(self.width, np.float32)
        return ((self.midpoint - self.center) * self.inverse_spread).astype(np.float32)

    @cached_property
    def spread(self) -> NDArray[np.float64]:
        """What is mapped to a length of 1; 0 for a feature that its bounds make constant (or zero)."""
        if self.centered:
            return self.high / 2 - self.low / 2
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @cached_property
    def inverse_spread(self) -> NDArray[np.float64]:
        """1 / spread; 0 for a constant feature, which is thereby mapped to 0."""
        spread = self.spread
        return np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)

    @cached_property
    def _is_identity(self) -> bool:
        """Whether features are only clipped."""
        return bool(np.all(self.center == 0) and np.all(self.inverse_spread == 1))

    def apply(self, private_features: Any, *, unit: bool = False, constant: float | None = None) -> Any:
        """Scale rows; float32, dense ones as they are asked for. A missing entry is filled, see `filling`.

        Args:
            private_features: (rows, d), dense or sparse.
            unit: whether each scaled row is divided by its own length (a zero row stays zero).
            constant: a last entry to append to every row before that.
        Privacy:
            A row's result depends on that row and on the public bounds. A filled entry lies within its bounds, so the
            row is no longer than one without missing entries can be: no sensitivity depends on the filling.
        """
        with np.errstate(all="ignore"):
            if sparse.issparse(private_features):
                return self._apply_sparse(private_features, unit=unit, constant=constant)
            return ScaledRows(self, private_features, unit=unit, constant=constant)

    def scaled(
        self, private_block: NDArray[Any], *, unit: bool, constant: float | None
    ) -> NDArray[np.float32]:
        """A block of dense rows, see `apply`."""
        rows, width = private_block.shape
        private_scaled = np.empty((rows, width + (constant is not None)), np.float32)
        with np.errstate(all="ignore"):
            self._scale_block(private_block, private_scaled[:, :width])
            if constant is not None:
                private_scaled[:, width] = constant
            if unit:
                private_scaled /= _lengths(private_scaled)[:, None]
        return private_scaled

    def _scale_block(self, private_block: NDArray[Any], private_out: NDArray[np.float32]) -> None:
        if self._is_identity and private_block.dtype == np.float32:
            np.clip(private_block, np.float32(-1), np.float32(1), out=private_out)
        else:
            private_wide = private_block.astype(np.float64)
            if not self._is_identity:
                private_wide -= self.center
                private_wide *= self.inverse_spread
            np.clip(private_wide, -1.0, 1.0, out=private_wide)
            private_out[...] = private_wide
        # One sum finds what is not finite: an infinite entry was clipped, a NaN stayed one.
        if not np.isfinite(np.sum(private_block, dtype=np.float64)):
            np.copyto(private_out, self._filled, where=~np.isfinite(private_block))

    def _apply_sparse(
        self, private_features: Any, *, unit: bool, constant: float | None
    ) -> "sparse.csr_array":
        private_source: Any = sparse.csr_array(private_features)
        (rows, width), columns, starts = private_source.shape, private_source.indices, private_source.indptr
        private_values = np.clip(
            private_source.data.astype(np.float64), self.low[columns], self.high[columns]
        )
        private_values *= self.inverse_spread[columns]
        private_missing = ~np.isfinite(private_source.data)
        private_values[private_missing] = self._filled[columns[private_missing]]
        if constant is not None:
            private_values = np.insert(private_values, starts[1:], constant)
            columns = np.insert(columns, starts[1:], width)
            starts, width = starts + np.arange(rows + 1, dtype=starts.dtype), width + 1
        if unit:
            row = np.repeat(np.arange(rows), np.diff(starts))
            private_squares = np.bincount(row, weights=private_values * private_values, minlength=rows)
            private_values /= np.where(private_squares == 0, 1.0, np.sqrt(private_squares))[row]
        return sparse.csr_array((private_values.astype(np.float32), columns, starts), shape=(rows, width))

    def without_missing(self, features: Any) -> Any:
        """Rows to predict from, each missing entry replaced by the middle of its bounds; others as they are."""
        if sparse.issparse(features):
            source: Any = sparse.csr_array(features)
            missing = ~np.isfinite(source.data)
            if not np.any(missing):
                return features
            values = source.data.astype(np.result_type(source.data, np.float32))
            values[missing] = self.midpoint[source.indices[missing]]
            return sparse.csr_array((values, source.indices, source.indptr), shape=source.shape)
        missing = ~np.isfinite(features)
        return np.where(missing, self.midpoint, features) if np.any(missing) else features

    def undo(self, weights: NDArray[np.float64], offset: NDArray[np.float64]) -> tuple[Any, Any]:
        """Coefficients (outputs, d) and intercepts (outputs,) for unscaled features, from those for scaled ones."""
        unscaled = weights * self.inverse_spread
        return unscaled, offset - unscaled @ self.center

    def redo(self, weights: NDArray[np.float64], offset: NDArray[np.float64]) -> tuple[Any, Any]:
        """The inverse of `undo`."""
        return weights * self.spread, offset + weights @ self.center

    def describe(self) -> str:
        """The bounds in words."""
        if np.all(self.low == self.low[0]) and np.all(self.high == self.high[0]):
            return f"every feature lies between {self.low[0]:g} and {self.high[0]:g}"
        return f"each of the {self.width} features lies between its own two bounds"


def with_indicators(private_features: Any, columns: Sequence[int]) -> Any:
    """Features with one column more for each of `columns`, behind all others: 1 where its entry is missing, else 0.

    Privacy:
        A row's result depends on that row alone.
    """
    if not columns:
        return private_features
    if sparse.issparse(private_features):
        private_chosen: Any = sparse.csc_array(private_features)[:, list(columns)]
        private_flags = sparse.csc_array(
            (
                (~np.isfinite(private_chosen.data)).astype(np.float32),
                private_chosen.indices,
                private_chosen.indptr,
            ),
            shape=private_chosen.shape,
        )
        private_flags.eliminate_zeros()
        return sparse.csr_array(sparse.hstack([private_features, private_flags], format="csr"))
    private_missing = ~np.isfinite(private_features[:, list(columns)])
    wide = private_features.dtype if private_features.dtype.kind == "f" else np.float64
    return np.concatenate([private_features.astype(wide, copy=False), private_missing.astype(wide)], axis=1)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ScaledFeatures:
    """What is stored of rows, see `FeatureScaling.apply`: a function that can be pickled.

    Attributes:
        scaling: of the features.
        unit: whether each row is divided by its own length.
        constant: a last entry to append to every row before that.
    """

    scaling: FeatureScaling
    unit: bool = False
    constant: float | None = None

    @property
    def width(self) -> int:
        """Of a row."""
        return self.scaling.width + (self.constant is not None)

    def __call__(self, private_features: Any) -> Any:
        return self.scaling.apply(private_features, unit=self.unit, constant=self.constant)


@final
class ScaledRows(RowSource):
    """Dense rows that are scaled as they are asked for, see `FeatureScaling.apply`."""

    def __init__(
        self, scaling: FeatureScaling, private_features: NDArray[Any], *, unit: bool, constant: float | None
    ) -> None:
        self._scaling, self._unit, self._constant = scaling, unit, constant
        self._private_features = private_features
        rows, width = private_features.shape
        self.shape = (rows, width + (constant is not None))

    def __getitem__(self, positions: Positions) -> NDArray[np.float32]:
        return self._scaling.scaled(
            self._private_features[positions], unit=self._unit, constant=self._constant
        )

    def __repr__(self) -> str:
        return "<private>"


@final
@dataclass(frozen=True, eq=False)
class RowLengths:
    """The length of `(a, constant)`, a the scaled row: what a classifier on rows of length 1 divides scores by.

    Attributes:
        scaling: of the features.
        constant: the appended entry, None for none.
    """

    scaling: FeatureScaling
    constant: float | None

    def of(self, features: Any) -> NDArray[np.float64]:
        """The lengths of rows to predict, whose features may lie beyond the bounds; 1 for a zero row."""
        scale, moved = self.scaling.inverse_spread, self.scaling.center * self.scaling.inverse_spread
        with np.errstate(all="ignore"):
            if sparse.issparse(features):
                source: Any = sparse.csr_array(features)
                row = np.repeat(np.arange(source.shape[0]), np.diff(source.indptr))
                shift = moved[source.indices]
                stored = (source.data * scale[source.indices] - shift) ** 2 - shift**2
                squares = moved @ moved + np.bincount(row, weights=stored, minlength=source.shape[0])
            else:
                squares = np.empty(len(features))
                for part in _blocks(*features.shape):
                    wide = features[part] * scale - moved
                    squares[part] = np.einsum("ij,ij->i", wide, wide)
            lengths = np.sqrt(squares + (0.0 if self.constant is None else self.constant**2))
        return np.where(lengths == 0, 1.0, lengths)


def _blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices of rows that hold at most `BLOCK_ENTRIES` entries each."""
    step = max(1, BLOCK_ENTRIES // max(width, 1))
    return (slice(start, start + step) for start in range(0, rows, step))


def _lengths(private_rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The l2 norms of rows with entries in [-1, 1]; 1 for a zero row."""
    if len(private_rows) == 1:  # a row alone may be rounded otherwise than one among others
        return _lengths(np.repeat(private_rows, 2, axis=0))[:1]
    private_lengths = np.sqrt(np.einsum("ij,ij->i", private_rows, private_rows))
    return np.where(private_lengths == 0, np.float32(1), private_lengths)
