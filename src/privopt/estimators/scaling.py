"""Public scaling: features into [-1, 1] by declared bounds, a number to predict into [-1, 1], and the way back.

Every map acts on one record alone and depends on public bounds only, so it costs no privacy.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.estimators.arguments import as_range

BLOCK_ENTRIES = 2**16  # entries worked on at a time: half a megabyte of float64, which stays in the cache


@dataclass(frozen=True, eq=False, repr=False)
class FeatureScaling:
    """`a = (x - center) / spread`, clipped to [-1, 1].

    Attributes:
        low: (d,) public lower ends.
        high: (d,) public upper ends.
        centered: whether zero is moved to the middle of the bounds. Not for sparse features, whose zeros must stay
            zeros, and not without an intercept, which undoes the move.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    centered: bool

    @classmethod
    def of(cls, bounds: Any, width: int, *, centered: bool, keep_zero: bool) -> "FeatureScaling":
        """The scaling by (low, high), two numbers or two arrays of `width` entries.

        Args:
            bounds: what the user gave.
            width: number of features.
            centered: whether to move the middle to zero.
            keep_zero: whether the features are sparse, so that 0 must lie within the bounds.
        Raises:
            TypeError, ValueError: the bounds are not usable.
        """
        try:
            low, high = bounds
            ends = [np.asarray(end, np.float64) for end in (low, high)]
        except (TypeError, ValueError):
            raise TypeError(
                f"bounds must be a pair (low, high) of numbers or arrays, got {type(bounds).__name__} that is none."
            ) from None
        for end in ends:
            if end.shape not in ((), (width,)):
                raise ValueError(
                    f"bounds must be numbers or arrays of {width} entries, one for each feature, got shape {end.shape}."
                )
        low, high = (np.broadcast_to(end, (width,)) for end in ends)
        if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low <= high)):
            raise ValueError(f"bounds must be finite with low <= high for every feature, got {bounds!r}.")
        if keep_zero and (np.any(low > 0) or np.any(high < 0)):
            raise ValueError(
                "bounds of sparse features must include 0, which is what an entry that is not stored means, got "
                f"{bounds!r}."
            )
        return cls(low, high, centered and not keep_zero)

    @property
    def center(self) -> NDArray[np.float64]:
        """The value that is mapped to 0."""
        return self.low / 2 + self.high / 2 if self.centered else np.zeros_like(self.low)

    @property
    def inverse_spread(self) -> NDArray[np.float64]:
        """1 / spread; 0 for a feature that its bounds make constant (or zero)."""
        if self.centered:
            spread = self.high / 2 - self.low / 2
        else:
            spread = np.maximum(np.abs(self.low), np.abs(self.high))
        return np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)

    def apply(self, private_features: Any) -> Any:
        """Scale rows; float32, a block at a time. An entry that is NaN or infinite becomes NaN: no number, no record.

        Privacy:
            A row's result depends on that row and on the public bounds.
        """
        with np.errstate(all="ignore"):
            if sparse.issparse(private_features):
                return self._apply_sparse(private_features)
            return self._apply_dense(private_features)

    def _apply_dense(self, private_features: NDArray[Any]) -> NDArray[np.float32]:
        rows, width = private_features.shape
        private_scaled = np.empty((rows, width), np.float32)
        center, inverse = self.center, self.inverse_spread
        unchanged = bool(np.all(center == 0) and np.all(inverse == 1))
        step = max(1, BLOCK_ENTRIES // max(width, 1))
        for start in range(0, rows, step):
            private_block = private_features[start : start + step]
            private_out = private_scaled[start : start + step]
            if unchanged and private_block.dtype == np.float32:
                np.clip(private_block, np.float32(-1), np.float32(1), out=private_out)
            else:
                private_wide = private_block.astype(np.float64)
                if not unchanged:
                    private_wide -= center
                    private_wide *= inverse
                np.clip(private_wide, -1.0, 1.0, out=private_wide)
                private_out[...] = private_wide
            # One sum finds what is not finite: an infinite entry was clipped, a NaN stayed one.
            if not np.isfinite(np.sum(private_block, dtype=np.float64)):
                private_out[~np.isfinite(private_block)] = np.nan
        return private_scaled

    def _apply_sparse(self, private_features: Any) -> "sparse.csr_array":
        private_source = sparse.csr_array(private_features)
        columns = private_source.indices
        private_values = np.clip(private_source.data.astype(np.float64), self.low[columns], self.high[columns])
        private_values *= self.inverse_spread[columns]
        private_values[~np.isfinite(private_source.data)] = np.nan
        return sparse.csr_array(
            (private_values.astype(np.float32), columns, private_source.indptr), shape=private_source.shape
        )

    def undo(self, weights: NDArray[np.float64], offset: NDArray[np.float64]) -> tuple[Any, Any]:
        """Coefficients (outputs, d) and intercepts (outputs,) for unscaled features, from those for scaled ones."""
        unscaled = weights * self.inverse_spread
        return unscaled, offset - unscaled @ self.center

    def describe(self) -> str:
        """The bounds in words."""
        width = len(self.low)
        if np.all(self.low == self.low[0]) and np.all(self.high == self.high[0]):
            return f"every feature lies between {self.low[0]:g} and {self.high[0]:g}"
        return f"each of the {width} features lies between its own two bounds"


@dataclass(frozen=True)
class TargetScaling:
    """`t = (y - center) / spread`, in [-1, 1]."""

    center: float
    spread: float

    @classmethod
    def of(cls, target_bounds: Any, *, centered: bool) -> "TargetScaling":
        """The scaling by public bounds; without centering, 0 stays 0."""
        low, high = as_range("target_bounds", target_bounds)
        if centered:
            return cls(low / 2 + high / 2, high / 2 - low / 2)
        return cls(0.0, max(abs(low), abs(high)))

    def apply(self, private_targets: NDArray[Any]) -> NDArray[np.float64]:
        """Scale targets; values out of bounds are clipped when units are made."""
        with np.errstate(all="ignore"):
            return (private_targets.astype(np.float64) - self.center) / self.spread
