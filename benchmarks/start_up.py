"""What start-up costs, in processor seconds: imports, first fits and commands, beside scikit-learn's.

    python -m benchmarks.start_up [--repeats 5]

Every figure is the median over fresh processes, which have compiled files (.pyc) as users have them. Of a first fit the
time of the fit alone counts, in a process that has imported the estimator; of a command the whole process.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

OURS, THEIRS = "from privopt import {}", "from sklearn.linear_model import {}"
SIZES = ((2_000, 10), (20_000, 10))
# A target by name, our estimator with its own arguments, and scikit-learn's.
KINDS = {
    "logistic": ("(z > 0).astype(int)", "LogisticRegression", "classes=[0, 1]", "LogisticRegression()"),
    "ridge": ("z", "Ridge", "target_bounds=(-4, 4)", "Ridge()"),
    "Poisson": (
        "np.minimum(draw.poisson(np.exp(z / 3)), 20)",
        "PoissonRegressor",
        "target_bounds=(0, 20)",
        "PoissonRegressor()",
    ),
    "three classes": (
        "np.digitize(z, [-.5, .5])",
        "LogisticRegression",
        "classes=[0, 1, 2]",
        "LogisticRegression()",
    ),
}
FIT = """
import json, time, numpy as np
{statement}
draw = np.random.default_rng(0)
X = draw.normal(size=({n}, {d})); z = X[:, 0] + draw.normal(size={n}); y = {target}
began = time.process_time(); {model}.fit(X, y)
print(json.dumps(time.process_time() - began))
"""


def processor_seconds(command: Sequence[str], folder: str) -> float:
    """Of a whole child process, with those that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def first_fit(kind: str, n: int, d: int, *, ours: bool) -> float:
    """Processor seconds of the first fit of a process."""
    target, name, arguments, model = KINDS[kind]
    statement = OURS.format(name) if ours else THEIRS.format(name)
    given = f"{name}(epsilon=1, delta=1e-6, bounds=(-3, 3), random_state=0, {arguments})"
    code = FIT.format(statement=statement, n=n, d=d, target=target, model=given if ours else model)
    run = subprocess.run(
        [sys.executable, "-c", code], env=_environment(), capture_output=True, text=True, check=True
    )
    return float(json.loads(run.stdout))


def commands(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Commands by name, on a table and a model that are made first."""
    table, schema = Path(folder, "people.csv"), Path(folder, "schema.json")
    rows = "".join(f"{20 + place % 60},{place * 7 % 11 < 4:d}\n" for place in range(2_000))
    table.write_text(f"age,ill\n{rows}", encoding="utf-8")
    columns = {"age": {"kind": "num", "low": 0, "high": 100}, "ill": {"kind": "flag"}}
    schema.write_text(json.dumps({"target": "ill", "columns": columns}), encoding="utf-8")
    privopt = [sys.executable, "-m", "privopt"]
    budget = ["--epsilon", "1", "--delta", "1e-6"]
    account = str(Path(folder, "account.db"))
    subprocess.run(
        [*privopt, "account", "create", account, *budget, "--data-set", "people"],
        check=True,
        capture_output=True,
    )
    fit = ["fit", str(table), "--schema", str(schema), *budget, "--output", str(Path(folder, "model"))]
    subprocess.run([*privopt, *fit], check=True, capture_output=True, cwd=folder)
    model = str(Path(folder, "model"))
    yield "--help", [*privopt, "--help"]
    yield "account show", [*privopt, "account", "show", account]
    yield "report", [*privopt, "report", model]
    yield "predict", [*privopt, "predict", model, str(table), "--output", str(Path(folder, "predicted.csv"))]
    yield "plan", [*privopt, "plan", str(table), "--schema", str(schema), *budget]


def measure(repeats: int) -> Iterator[dict[str, Any]]:
    """One line a figure."""
    with tempfile.TemporaryDirectory() as folder:

        def median(code: Sequence[str]) -> float:
            return statistics.median(processor_seconds(code, folder) for _ in range(repeats + 1))

        ours, theirs = (
            median([sys.executable, "-c", statement.format("LogisticRegression")])
            for statement in (OURS, THEIRS)
        )
        yield {"what": "import", "seconds": ours, "scikit_learn": theirs, "ratio": ours / theirs}
        for kind in KINDS:
            for n, d in SIZES:
                ours, theirs = (
                    statistics.median(first_fit(kind, n, d, ours=side) for _ in range(repeats))
                    for side in (True, False)
                )
                what = f"first fit, {kind}, {n} x {d}"
                yield {"what": what, "seconds": ours, "scikit_learn": theirs, "more": ours - theirs}
        for name, command in commands(folder):
            yield {"what": f"privopt {name}", "seconds": median(command)}


if __name__ == "__main__":
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--repeats", type=int, default=5)
    for line in measure(given.parse_args().repeats):
        print(
            json.dumps({name: round(x, 3) if isinstance(x, float) else x for name, x in line.items()}),
            flush=True,
        )
