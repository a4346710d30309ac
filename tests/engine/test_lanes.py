"""Lanes of a pass on several threads: all are run, and whatever stops one leaves none behind."""

import threading

import pytest

from privopt.engine.fast_path import run_lanes


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_lane_is_run_once(threads: int) -> None:
    met: list[int] = []
    run_lanes(lambda first, last: met.extend(range(first, last)), 5, threads)
    assert sorted(met) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_pass_that_is_stopped_waits_for_its_threads(where: str) -> None:
    here, begun, ended = threading.get_ident(), threading.Event(), list[int]()
    stopping = threading.Event()

    def run(first: int, last: int) -> None:
        mine = threading.get_ident() == here
        if mine is (where == "here"):
            begun.wait(5.0)
            stopping.set()
            raise KeyboardInterrupt("by the user")
        begun.set()
        stopping.wait(5.0)
        threading.Event().wait(0.02)
        ended.append(first)

    with pytest.raises(KeyboardInterrupt, match="by the user"):
        run_lanes(run, 2, 2)
    assert len(ended) == 1
