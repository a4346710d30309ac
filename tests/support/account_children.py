"""Processes that pay from accounts, and are killed; run as a script, so that a fork copies nothing but this.

    python account_children.py '[["kill", FILE, TIMES, SEED], ["race", FILE, WRITERS], ["fill", FILE, BYTES]]'

Of each job it prints a line of JSON. "kill" kills a paying child TIMES times at random points, "race" has WRITERS
children pay until the account refuses, "fill" pays while no file may grow beyond BYTES.
"""

import json
import os
import random
import resource
import select
import signal
import sys
import time

from privopt.errors import AccountError, BudgetExceeded
from privopt.ledger.account import Account
from privopt.ledger.events import GaussianEvent

RELEASE = GaussianEvent(60.0)


def pay(path: str, told: int) -> None:
    """Pay for ever, and say of every payment that it was made: from then on its data may have been read."""
    account = Account(path=path)
    os.write(told, b"s")  # started
    while True:
        account.spend("a fit", RELEASE, 0.1, 1e-6)
        os.write(told, b"p")


def kill(path: str, times: int, seed: int) -> dict[str, int]:
    """Kill a child that pays, again and again; count what it was told was paid."""
    moments, told_paid = random.Random(seed), 0
    begun, account = time.perf_counter(), Account(path=path)
    account.spend("a fit", RELEASE, 0.1, 1e-6)
    lasts = time.perf_counter() - begun
    for _ in range(times):
        listen, tell = os.pipe()
        child = os.fork()
        if child == 0:
            pay(path, tell)
        os.close(tell)
        assert os.read(listen, 1) == b"s"
        time.sleep(moments.uniform(0.0, 3 * lasts))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while select.select([listen], [], [], 0)[0] and (said := os.read(listen, 4096)):
            told_paid += said.count(b"p")
        os.close(listen)
    before = len(account.file.payments()) - 1
    account.spend("after all of them", RELEASE, 0.1, 1e-6)  # and it still pays
    return {"told": told_paid, "stored": before}


def race(path: str, writers: int) -> dict[str, int]:
    """Have children pay at once until nothing is left."""
    listen, tell = os.pipe()
    account = Account(path=path)
    children = []
    for _ in range(writers):
        child = os.fork()
        if child == 0:
            try:
                while True:
                    account.spend("a fit", RELEASE, 0.1, 1e-6)
                    os.write(tell, b"p")
            except BudgetExceeded:
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    os.close(tell)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    told = b"".join(iter(lambda: os.read(listen, 4096), b""))
    return {"told": len(told), "stored": len(account.file.payments()), "failed": sum(map(bool, codes))}


def fill(path: str, room: int) -> dict[str, int | str]:
    """Pay until the disk has no room left."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    account, paid = Account(path=path), 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        while True:
            account.spend("a fit", RELEASE, 0.1, 1e-6)
            paid += 1
    except AccountError as error:
        refusal = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    stored = len(Account(path=path).file.payments())
    account.spend("with room again", RELEASE, 0.1, 1e-6)
    return {"told": paid, "stored": stored, "refusal": refusal}


if __name__ == "__main__":
    for what, *arguments in json.loads(sys.argv[1]):
        sys.stdout.write(json.dumps({"kill": kill, "race": race, "fill": fill}[what](*arguments)) + "\n")
