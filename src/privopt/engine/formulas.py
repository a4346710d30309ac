"""The compiled building blocks of the kernels: how they are compiled, the exponential, the table of slopes.

Floating point: `FAST` lets the compiler reorder sums and fuse products, which the rounding bound covers (it holds for
any order). It never lets it assume that numbers are finite, since guards against NaN rest on that; and the exponential,
which rests on exact order, is compiled without reordering.

Numba caches compiled code on disk and looks at the file that holds a function, not at those that it calls: a kernel
would go on with a table of slopes that has since been edited. So the stamp of a cached function also holds a digest of
all files that kernels are made of.
"""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from privopt.problems.glm import KernelCode

FAST = {"reassoc", "contract", "arcp", "nsz"}
EXACT = {"contract"}

_SCALAR = [int(code) for code in KernelCode if code is not KernelCode.SOFTMAX]
_LOGISTIC, _SQUARED, _HUBER, _HINGE, _QUANTILE, _POISSON, _RAMP, _CAPPED_ABSOLUTE, _CAPPED_SQUARED = _SCALAR
FORMULAS = frozenset(_SCALAR)  # the codes that `slopes` knows

LARGEST = float(np.finfo(np.float64).max)


def compiled(flags: set[str], *, inline: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile by numba, without the lock of the interpreter; cached on disk where there is a place to write."""

    def compile_function(function: Callable[..., Any]) -> Any:
        options: dict[str, Any] = {
            "nogil": True,
            "fastmath": flags,
            "error_model": "numpy",
            "forceinline": inline,
        }
        try:
            return _stamped(njit(cache=True, **options)(function))
        except RuntimeError:  # no writable cache directory
            return njit(**options)(function)

    return compile_function


def _digest_of_sources() -> str:
    """Of every file that compiled code can come from: the engine's, and the one that numbers the formulas."""
    engine = Path(__file__).parent
    files = [*sorted(engine.glob("*.py")), engine.parent / "problems" / "glm.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


_SOURCES = _digest_of_sources()


def _stamped(function: Any) -> Any:
    """A compiled function whose cache on disk counts as old where any of the sources has changed."""
    index = getattr(getattr(function, "_cache", None), "_cache_file", None)  # numba's own, without a promise
    if index is not None:
        index._source_stamp = (index._source_stamp, _SOURCES)
    return function


def _intrinsic(function: Callable[..., Any]) -> Any:
    """An instruction that numba inserts as it is."""
    return intrinsic(function)


@_intrinsic
def _bits(typingctx: Any, number: Any) -> Any:
    """The bits of a float64 as an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(number), generate


@_intrinsic
def _from_bits(typingctx: Any, bits: Any) -> Any:
    """The float64 of given bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(bits), generate


_LOG2_E = 1.4426950408889634
_LN2_HIGH = 6.93145751953125e-1  # few digits: an integer up to 1024 times it is exact
_LN2_LOW = 1.42860682030941723212e-6
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to an integer, kept in the low bits
_ONE_BITS = 4607182418800017408  # the bits of 1.0


@compiled(EXACT, inline=True)
def exponential(x: float) -> float:
    """exp(x) to a relative error of 1e-14, x moved into [-708, 708] first; vectorises, unlike the library's.

    Source:
        Cody and Waite 1980: exp(x) = 2^k exp(r), |r| <= log(2) / 2; here the Taylor polynomial of degree 11 for
        exp(r) (remainder 6e-15), evaluated in independent halves.
    """
    x = min(max(x, -708.0), 708.0)
    shifted = x * _LOG2_E + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = (1.0 + r) + r2 * (0.5 + r * (1 / 6))
    middle = (1 / 24 + r * (1 / 120)) + r2 * (1 / 720 + r * (1 / 5040))
    high = (1 / 40320 + r * (1 / 362880)) + r2 * (1 / 3628800 + r * (1 / 39916800))
    polynomial = low + r4 * (middle + r4 * high)
    return polynomial * _from_bits((_bits(shifted) << 52) + _ONE_BITS)


@compiled(FAST, inline=True)
def step(x: float, halfwidth: float) -> float:
    """From 0 to 1 around 0, linear over +- halfwidth; 1/2 at a corner."""
    if halfwidth > 0.0:
        return min(max((x + halfwidth) / (2.0 * halfwidth), 0.0), 1.0)
    return 1.0 if x > 0.0 else (0.5 if x == 0.0 else 0.0)


@compiled(FAST)
def slopes(code: int, p0: float, p1: float, t: Any, y: Any, m: int, s: Any) -> None:
    """The formula table: s[:m] = phi'(t, y) of the loss with this `KernelCode`."""
    if code == _LOGISTIC:
        for r in range(m):
            label = min(max(y[r], -1.0), 1.0)
            s[r] = -label / (1.0 + exponential(label * t[r]))
    elif code == _SQUARED:
        for r in range(m):
            s[r] = t[r] - y[r]
    elif code == _HUBER:
        for r in range(m):
            s[r] = min(max(t[r] - y[r], -p0), p0)
    elif code == _HINGE:
        for r in range(m):
            label = min(max(y[r], -1.0), 1.0)
            s[r] = -label * min(max((1.0 + p0 - label * t[r]) / (2.0 * p0), 0.0), 1.0)
    elif code == _QUANTILE:
        for r in range(m):
            s[r] = step(t[r] - y[r], p1) - p0
    elif code == _POISSON:
        for r in range(m):
            s[r] = exponential(min(t[r], p0)) - min(max(y[r], 0.0), p1)
    elif code == _RAMP:
        for r in range(m):
            label = min(max(y[r], -1.0), 1.0)
            margin = label * t[r]
            s[r] = -0.5 * label * (step(1.0 - margin, p0) - step(-1.0 - margin, p0))
    elif code == _CAPPED_ABSOLUTE:
        for r in range(m):
            x = t[r] - y[r]
            s[r] = min(max(2.0 * step(x, p1) - step(x + p0, p1) - step(x - p0, p1), -1.0), 1.0)
    elif code == _CAPPED_SQUARED:
        for r in range(m):
            x = t[r] - y[r]
            ahead, behind = min(max(x + p1, -p0), p0), min(max(x - p1, -p0), p0)
            if p1 > 0.0:
                s[r] = (ahead - behind) * ((ahead + behind) / (4.0 * p1))
            else:
                s[r] = x * (step(x + p0, 0.0) - step(x - p0, 0.0))
            s[r] = min(max(s[r], p1 - p0), p0 - p1)
    else:
        for r in range(m):
            s[r] = math.nan
    for r in range(m):
        if not abs(t[r]) <= LARGEST:  # min and max above may have swallowed a NaN
            s[r] = math.nan


@compiled(FAST, inline=True)
def balance_logistic(t: Any, inverse_norms: Any, radius: float, m: int, s: Any) -> None:
    """Multiply s[r] by min(1, cap (1 + exp(-|t[r]|))), cap = radius / |a_r|: the factor of a balanced gradient."""
    for r in range(m):
        s[r] *= min(1.0, radius * inverse_norms[r] * (1.0 + exponential(-abs(t[r]))))
