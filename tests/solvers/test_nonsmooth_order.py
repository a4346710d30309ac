"""On visits to a doctor, epsilon 1: plain steps on all units, then with variance reduction, one pass, the baseline."""

from pathlib import Path

import pytest
from benchmarks import nonsmooth
from benchmarks.nonsmooth_data import randhie


@pytest.mark.audit
def test_the_methods_stand_in_the_order_of_their_noise(shared_data: Path):
    data = randhie(shared_data)
    known = {method.name: method for method in nonsmooth.methods(data)}
    names = (
        "o2nc, not smoothed",
        "variance-reduced, by values",
        "one pass, variance-reduced",
        "Zhang, Tran, Cutkosky",
    )
    plain, reduced, once, zhang = (
        nonsmooth.cell([data], known[name], 1.0, seeds=1)["loss"] for name in names
    )
    assert plain <= 0.643
    assert plain <= reduced + 0.003
    assert reduced < once < 0.68 < zhang < 0.75
