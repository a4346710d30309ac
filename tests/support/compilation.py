"""How the tests have their programs compiled: quickly, with the arithmetic that users get."""

import importlib.util
import mmap
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[2] / ".programs"  # git ignores it, `make clean` removes it
MOST_DAYS = 14  # that a program is kept after its last use

# Fewer passes, one part a program, and the older emitter of fused loops. Products are fused with sums as by default.
QUICK = {
    "xla_backend_optimization_level": "1",
    "xla_cpu_parallel_codegen_split_count": "1",
    "xla_cpu_use_fusion_emitters": "false",
}


def quick_compilation() -> str:
    """For `XLA_FLAGS`: those of the options that the installed compiler knows."""
    return understood(QUICK)


def understood(options: Mapping[str, str]) -> str:
    """For `XLA_FLAGS`: those of some options that the installed compiler knows; it ends at one that it does not."""
    found = importlib.util.find_spec("jaxlib")
    folder = Path(found.origin).parent if found is not None and found.origin else Path()
    known = {option for library in sorted(folder.glob("*.so")) for option in options_in(library, options)}
    return " ".join(f"--{option}={value}" for option, value in options.items() if option in known)


def kept_programs() -> str:
    """The folder of compiled programs; JAX finds one by what it computes, the compiler's version and its options."""
    PROGRAMS.mkdir(exist_ok=True)
    oldest = time.time() - MOST_DAYS * 86_400
    for program in PROGRAMS.iterdir():
        with suppress(FileNotFoundError):  # where another run removes it
            status = program.stat()
            if max(status.st_atime, status.st_mtime) < oldest:
                program.unlink()
    return str(PROGRAMS)


def options_in(library: Path, options: Iterable[str]) -> set[str]:
    """Those of some options whose names stand in a compiled library."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return {option for option in options if content.find(option.encode()) >= 0}
