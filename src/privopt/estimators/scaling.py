"""Scaling of features into [-1, 1] by bounds, the rule for missing entries, and the way back.

Every map acts on one record alone and depends on its bounds only, so it costs no privacy.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.rows import Positions
from privopt.data.storage import RowSource

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
    def filled(self) -> NDArray[np.float32]:
        """(d,): what a missing entry becomes, scaled."""
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

    def scale(self, private_block: NDArray[Any], private_out: NDArray[np.float32]) -> None:
        """Write a block of dense rows, scaled, into `private_out`."""
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
            np.copyto(private_out, self.filled, where=~np.isfinite(private_block))

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
@dataclass(frozen=True, eq=False)
class ScaledFeatures:
    """What is stored of rows, a function that can be pickled: float32, dense rows as they are asked for.

    Attributes:
        scaling: of the features. A missing entry is filled, see `FeatureScaling.filling`.
        unit: whether each scaled row is divided by its own length (a zero row stays zero).
        constant: a last entry to append to every row before that.
    Privacy:
        A row's result depends on that row and on the public bounds. A filled entry lies within its bounds, so the
        row is no longer than one without missing entries can be: no sensitivity depends on the filling.
    """

    scaling: FeatureScaling
    unit: bool = False
    constant: float | None = None

    @property
    def width(self) -> int:
        """Of a row."""
        return self.scaling.width + (self.constant is not None)

    def __call__(self, private_features: Any) -> Any:
        """Scale rows (rows, d), dense or sparse."""
        if not sparse.issparse(private_features):
            return ScaledRows(self, private_features)
        with np.errstate(all="ignore"):
            return self._sparse(sparse.csr_array(private_features))

    def block(self, private_block: NDArray[Any]) -> NDArray[np.float32]:
        """A block of dense rows."""
        private_scaled = np.empty((len(private_block), self.width), np.float32)
        with np.errstate(all="ignore"):
            self.scaling.scale(private_block, private_scaled[:, : self.scaling.width])
            if self.constant is not None:
                private_scaled[:, -1] = self.constant
            if self.unit:
                private_scaled /= _lengths(private_scaled)[:, None]
        return private_scaled

    def _sparse(self, private_source: Any) -> "sparse.csr_array":
        scaling, (rows, width) = self.scaling, private_source.shape
        columns, starts = private_source.indices, private_source.indptr
        private_values = np.clip(
            private_source.data.astype(np.float64), scaling.low[columns], scaling.high[columns]
        )
        private_values *= scaling.inverse_spread[columns]
        private_missing = ~np.isfinite(private_source.data)
        private_values[private_missing] = scaling.filled[columns[private_missing]]
        if self.constant is not None:
            private_values = np.insert(private_values, starts[1:], self.constant)
            columns = np.insert(columns, starts[1:], width)
            starts, width = starts + np.arange(rows + 1, dtype=starts.dtype), width + 1
        if self.unit:
            row = np.repeat(np.arange(rows), np.diff(starts))
            private_squares = np.bincount(row, weights=private_values * private_values, minlength=rows)
            private_values /= np.where(private_squares == 0, 1.0, np.sqrt(private_squares))[row]
        return sparse.csr_array((private_values.astype(np.float32), columns, starts), shape=(rows, width))


@final
class ScaledRows(RowSource):
    """Dense rows that are scaled as they are asked for."""

    def __init__(self, features: ScaledFeatures, private_features: NDArray[Any]) -> None:
        self._features, self._private_features = features, private_features
        self.shape = (len(private_features), features.width)

    def __getitem__(self, positions: Positions) -> NDArray[np.float32]:
        return self._features.block(self._private_features[positions])

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


# ---- The ways to write down the bounds of features, and the one that each of them means. Public ------------


MOST_NAMED = 5  # features that a notice or an error names
Ends = tuple[NDArray[np.float64], NDArray[np.float64]]


def ends_of(bounds: Any, width: int, names: Sequence[str] | None, name: str) -> Ends:
    """The lower and the upper end of each feature.

    Args:
        bounds: two numbers, or a tuple of two arrays (the lower ends, the upper ends); or one pair (low, high) for each
            feature: a list or an array of pairs, or a mapping from the name of a column to its pair.
        width: number of features.
        names: of the features, where they are known.
        name: the argument that they were given as.
    Raises:
        TypeError, ValueError: they are none of these, or could be read in two ways.
    """
    if isinstance(bounds, Mapping):
        bounds, paired = _by_name(bounds, names, name), True
    elif not isinstance(bounds, list | tuple | np.ndarray):
        raise _no_pair(name, bounds)
    else:
        paired = _is_paired(bounds, width, name)
    try:
        if paired:
            pairs = np.asarray([[float(end) for end in pair] for pair in bounds]).reshape(len(bounds), -1)
            low, high = pairs.T
        else:
            low, high = (np.asarray(end, np.float64) for end in bounds)
    except (TypeError, ValueError, OverflowError):
        raise _no_pair(name, bounds) from None
    for end in (low, high):
        if end.shape not in ((), (width,)):
            given = f"{len(low)} pairs" if paired else f"shape {end.shape}"
            raise ValueError(
                f"{name} must be numbers or arrays of {width} entries, one for each feature, or {width} pairs "
                f"(low, high), got {given}."
            )
    return np.broadcast_to(low, (width,)), np.broadcast_to(high, (width,))


def constant_features(low: NDArray[np.float64], high: NDArray[np.float64], names: Any) -> tuple[str, ...]:
    """A notice on features whose bounds leave them one value; none where there is no such feature.

    Args:
        low: the lower ends.
        high: the upper ends.
        names: of the features, None where they are not known.
    """
    places = np.flatnonzero(low == high)
    if not len(places):
        return ()
    listed = ", ".join(
        f"{f'feature {place}' if names is None else repr(str(names[place]))} ({low[place]:g})"
        for place in places[:MOST_NAMED]
    )
    more = f" and {len(places) - MOST_NAMED} others" if len(places) > MOST_NAMED else ""
    return (
        f"The bounds of {listed}{more} have the same lower and upper end: the model sees a constant there and learns "
        "nothing from it. If the bounds were meant as one pair (low, high) per feature, give a list of pairs.",
    )


def _is_paired(bounds: Any, width: int, name: str) -> bool:
    """Whether bounds are one pair (low, high) per feature, rather than lower ends and upper ends.

    Raises:
        TypeError, ValueError: they are neither, or could be both.
    """
    try:
        in_pairs = all(np.shape(entry) == (2,) for entry in bounds)
    except ValueError:  # lists of different lengths
        raise _no_pair(name, bounds) from None
    if not in_pairs and len(bounds) != 2:
        raise _no_pair(name, bounds)
    if not in_pairs or len(bounds) != 2:
        return in_pairs
    if isinstance(bounds, list) and all(isinstance(entry, tuple) for entry in bounds):
        return True
    if width != 2 or (isinstance(bounds, tuple) and not any(isinstance(entry, tuple) for entry in bounds)):
        return False
    try:
        (first, second), (third, fourth) = ([float(end) for end in entry] for entry in bounds)
    except (TypeError, ValueError):
        raise _no_pair(name, bounds) from None
    raise ValueError(
        f"{name} of two features can be read in two ways: as pairs per feature, the first feature from {first:g} to "
        f"{second:g} and the second from {third:g} to {fourth:g}; or as lower and upper ends, the first feature from "
        f"{first:g} to {third:g} and the second from {second:g} to {fourth:g}. Give a list of two tuples (low, high) "
        "for the first reading, a tuple of two arrays (lows, highs) for the second."
    )


def _by_name(bounds: Mapping[Any, Any], names: Sequence[str] | None, name: str) -> list[Any]:
    """The pairs of a mapping, in the order of the features.

    Raises:
        TypeError, ValueError: the features have no names, or others.
    """
    if names is None:
        raise TypeError(
            f"{name} is a dictionary by column name, but the features have no names: pass a data frame, or give "
            f"{name} as a list with one pair (low, high) for each feature."
        )
    unknown = [str(key) for key in bounds if key not in names]
    missing = [str(one) for one in names if one not in bounds]
    if unknown or missing:
        said: list[str] = []
        if missing:
            said.append(f"lacks {_listed(missing)}")
        if unknown:
            near = difflib.get_close_matches(unknown[0], [str(one) for one in names], n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            said.append(f"names {_listed(unknown)}{hint}, which the features do not have")
        raise ValueError(
            f"{name} needs one pair (low, high) for each feature by its name: it {' and '.join(said)}."
        )
    return [bounds[one] for one in names]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} others" if len(names) > MOST_NAMED else ""
    return ", ".join(map(repr, names[:MOST_NAMED])) + more


def _no_pair(name: str, bounds: Any) -> TypeError:
    return TypeError(
        f"{name} must be a pair (low, high) of numbers or arrays, or one pair for each feature (a list of pairs, or a "
        f"dictionary by column name), got {type(bounds).__name__} that is none."
    )
