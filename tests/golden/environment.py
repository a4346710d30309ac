"""The environment in which golden runs compute, pinned so that every x86-64 processor gives the same last bit.

A run is made in a child process that inherits nothing but the path, the home and the folder of temporary files:

* XLA compiles for AVX at most. With AVX2 it would go on tuning for the processor that it finds, from which the width of
  vectors follows; with AVX it names one processor for all. It hands products to no pool of threads, and to no library
  that chooses by the processor.
* NumPy takes no path that it has for AVX-512; OpenBLAS takes those of a Haswell, in one thread.
* Numba compiles for a Haswell. Its kernels sum over fixed lanes, on any number of threads.
* Terminal, time zone and language are fixed; no account of whoever runs it pays.

What remains is the C library, whose elementary functions are those for processors with AVX2 and FMA, the maker of the
processor, and the versions of the libraries that compute: the last two are kept beside the lines.
"""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.support.compilation import QUICK, kept_programs, quick_compilation, understood

ROOT = Path(__file__).resolve().parents[2]
COMPUTING = ("jaxlib", "numpy", "scipy", "numba", "llvmlite", "randomgen", "scikit-learn", "dp-accounting")
INHERITED = ("PATH", "HOME", "TMPDIR", "PYTHONHASHSEED")
HASWELL = (
    *(
        "64bit",
        "avx",
        "avx2",
        "bmi",
        "bmi2",
        "cmov",
        "cx16",
        "cx8",
        "f16c",
        "fma",
        "fxsr",
        "lzcnt",
        "mmx",
        "movbe",
    ),
    *("popcnt", "sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3", "xsave"),
)
ALIKE = {
    "xla_cpu_max_isa": "AVX",
    "xla_cpu_prefer_vector_width": "256",
    "xla_cpu_multi_thread_eigen": "false",
    "xla_cpu_experimental_ynn_fusion_type": "",  # libraries that choose their kernels by the processor
    "xla_cpu_use_xnnpack": "false",
    "xla_cpu_use_onednn": "false",
}


def pinned() -> dict[str, str]:
    """The whole environment of a child process; with an `obstacle`, without what the processor may lack."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    common = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PYTHONWARNINGS": "ignore",
        "NPROC": "1",  # threads of XLA
        "JAX_PLATFORMS": "cpu",
        "JAX_NUMPY_DTYPE_PROMOTION": "strict",
        "JAX_NUMPY_RANK_PROMOTION": "raise",
        "JAX_COMPILATION_CACHE_DIR": kept_programs(),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "2",
        "MPLBACKEND": "Agg",
        "COLUMNS": "80",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }
    if obstacle() is not None:
        return inherited | common | {"XLA_FLAGS": quick_compilation()}
    alike = {
        "XLA_FLAGS": understood(QUICK | ALIKE),
        "NPY_DISABLE_CPU_FEATURES": " ".join(beyond_avx2()),
        "OPENBLAS_CORETYPE": "Haswell",
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in HASWELL),
        "NUMBA_DISABLE_INTEL_SVML": "1",
    }
    return inherited | common | alike


def beyond_avx2() -> list[str]:
    """NumPy's names of what it has for processors with more than AVX2."""
    return [name for name in _numpy().__cpu_dispatch__ if name.startswith("AVX512") or name == "X86_V4"]


def made_with() -> dict[str, str]:
    """The maker of the processor and the versions of what computes: values are promised to the last bit for these."""
    versions = {name: metadata.version(name) for name in COMPUTING}
    return {"processor": _maker(), "python": ".".join(platform.python_version_tuple()[:2])} | versions


def _maker() -> str:
    """Who made the processor, as Linux names it."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), "unknown")


def obstacle() -> str | None:
    """Why this machine cannot give the last bit; None where it can."""
    machine = platform.machine()
    if machine not in ("x86_64", "AMD64"):
        return f"the processor is {machine}, not x86-64"
    found = _numpy().__cpu_features__
    if not (found.get("AVX2") and found.get("FMA3")):
        return "the processor has no AVX2 or no FMA"
    if platform.libc_ver()[0] != "glibc":
        return "the C library is not glibc"
    return None


def _numpy() -> Any:
    from numpy._core import _multiarray_umath

    return _multiarray_umath
