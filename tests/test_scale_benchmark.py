"""What `benchmarks.scale` says of a limit, and of memory; nothing here depends on how fast it is."""

import subprocess
import sys

import numpy as np
from benchmarks.peak_memory import peak_memory_mb, reset_peak_memory
from benchmarks.processes import ROOT
from benchmarks.scale_frame import line


def test_a_line_says_which_limit_it_has_and_whether_it_keeps_it():
    kept = line("round", 2, 1.1, 0.004, at_most={"ratio": 1.2, "overhead_ms": 20})
    assert kept["within"]
    assert kept["at_most"] == {"ratio": 1.2, "overhead_ms": 20}
    assert not line("round", 2, 1.1, 0.021, at_most={"overhead_ms": 20})["within"]
    assert not line("fill", 1, None, at_least={"gb_a_core_second": 0.15}, gb_a_core_second=0.14)["within"]
    assert "within" not in line("round", 8, 1.0)


def test_the_peak_of_a_process_is_not_that_of_the_process_that_started_it():
    """As `ru_maxrss` is: a large caller hid how much its measuring processes differ."""
    held = reset_peak_memory()
    private_ballast = np.ones(2**25)  # 256 MB
    assert peak_memory_mb() - held > 200
    program = "from benchmarks.peak_memory import peak_memory_mb; print(peak_memory_mb())"
    found = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert 1 < float(found.stdout) < 100
    del private_ballast
