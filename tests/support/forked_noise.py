"""Children of one process that draw from its source of noise; run as a script, so that a fork copies nothing but this.

`python forked_noise.py SEED SECONDS` forks twice while another thread draws for the first time, and prints a line of
JSON: what the thread, the parent and both children drew, or null for a child that drew nothing within so many seconds.
SEED is a number or "secret".
"""

import json
import os
import signal
import sys
import threading
import time
import warnings

from numba.core.compiler_lock import global_compiler_lock

from privopt.mechanisms.noise import NoiseSource

DRAWS = 20


def main(seed: str, seconds: float) -> None:
    source = NoiseSource(None if seed == "secret" else int(seed))
    drawn: list[list[int]] = []
    thread = threading.Thread(target=lambda: drawn.append(source.rounded_normal((DRAWS,), 40).tolist()))
    thread.start()
    while thread.is_alive() and _free(global_compiler_lock._lock):
        time.sleep(0.0005)
    children = [_child(source, seconds) for _ in range(2)]
    thread.join()
    drawn.append(source.rounded_normal((DRAWS,), 40).tolist())
    sys.stdout.write(json.dumps(drawn + children))


def _free(lock: threading.RLock) -> bool:
    """Whether no other thread has it."""
    free = lock.acquire(blocking=False)
    if free:
        lock.release()
    return free


def _child(source: NoiseSource, seconds: float) -> list[int] | None:
    """What a child process draws."""
    answers, asked = os.pipe()
    child = os.fork()
    if not child:
        os.write(asked, json.dumps(source.rounded_normal((DRAWS,), 40).tolist()).encode())
        os._exit(0)
    os.close(asked)
    until = time.monotonic() + seconds
    while time.monotonic() < until and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.01)
    if time.monotonic() >= until:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(answers) as answer:
        return json.loads(answer.read() or "null")


if __name__ == "__main__":
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # of forks beside threads, which is what this is about
    main(sys.argv[1], float(sys.argv[2]))
