"""Hostile models of at most 1 MB: what verifying them, reporting on them and predicting with them takes.

Run as `python -m tests.support.hostile_files FOLDER`: it runs every command line on every file in this process, and
writes a JSON list to FOLDER/said.json: name, command, exit code, seconds of processor time (those of children
included), the largest memory in GiB, and what went to stderr.
"""

import contextlib
import copy
import gc
import hashlib
import io
import json
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from tests.support.saved_models import save_small_model

from privopt.report.kept import INDEX, digest_of_index

GAUSSIAN = {"event": "GaussianEvent", "noise_multiplier": 5.0}


def poisson(rate: float, multiplier: float) -> dict[str, Any]:
    """A Gaussian release on a Poisson sample."""
    return {
        "event": "SampledEvent",
        "sampling": {"kind": "poisson", "rate": rate},
        "of": {"event": "GaussianEvent", "noise_multiplier": multiplier},
    }


def repeated(event: Any, count: int) -> dict[str, Any]:
    """An event so many times."""
    return {"event": "Repeated", "count": count, "of": event}


def sequence(events: Any) -> dict[str, Any]:
    """Events one after another."""
    return {"event": "Sequence", "of": list(events)}


def parallel(events: Any) -> dict[str, Any]:
    """Events on disjoint blocks."""
    return {"event": "Parallel", "of": list(events)}


def events() -> Iterator[tuple[str, Any]]:
    """Trees of events that take long to price, or to read."""
    for count in (1, 10**3, 10**6, 10**9, 10**12):
        for rate, multiplier in ((1e-9, 0.3), (1e-4, 1.0), (0.5, 300.0), (0.999, 1e5)):
            yield f"{count} samples of {rate}, {multiplier}", repeated(poisson(rate, multiplier), count)
    for kinds in (10, 100, 400, 3000):
        yield f"{kinds} rates", sequence(poisson(1e-4 * (1 + i), 1.0 + i) for i in range(kinds) if i < 9999)
        yield (
            f"{kinds} noises",
            sequence({"event": "GaussianEvent", "noise_multiplier": 1.0 + i} for i in range(kinds)),
        )
        yield (
            f"{kinds} Laplaces",
            sequence({"event": "LaplaceEvent", "noise_multiplier": 10.0 + i} for i in range(kinds)),
        )
        yield (
            f"{kinds} blocks in turn",
            sequence(parallel([GAUSSIAN, poisson(1e-3, 1.0 + i)]) for i in range(kinds)),
        )
        yield f"{kinds} branches", parallel(poisson(1e-3, 1.0 + i) for i in range(kinds))
        yield (
            f"{kinds} mixtures",
            sequence(
                {"event": "MixtureEvent", "noise_multiplier": 9.0 + i, "rate": 0.1, "sampled_ratio": 0.5}
                for i in range(kinds)
            ),
        )
    for rho in (1e-300, 1e-9, 1.0, 99.0, 1e300):
        yield f"zCDP {rho}", sequence([{"event": "ZCDPEvent", "rho": rho}, poisson(1e-3, 2.0)])
        yield (
            f"objective {rho}",
            sequence(
                [{"event": "ShiftedGaussianEvent", "mu": rho, "shift": 0.1, "two_signed": True}, GAUSSIAN]
            ),
        )
        yield f"selections {rho}", repeated({"event": "SelectionsEvent", "rho": rho, "epsilon": 9.0}, 77)
    deep = GAUSSIAN
    for level in range(20):  # less deep than what is refused unread
        deep = parallel([deep, sequence([deep if level < 8 else GAUSSIAN, poisson(1e-3, 1.0 + level)])])
    yield "blocks in blocks", deep
    wide = sequence(parallel([GAUSSIAN, {"event": "PureEvent", "epsilon": 1e-3 * (1 + i)}]) for i in range(5))
    for count in (2, 7, 60, 10**6, 10**12):
        yield f"{count} times five divisions", repeated(wide, count)
    fixed = {"kind": "fixed-size", "batch": 1, "n": 10**9}
    yield "fixed sizes", repeated({"event": "SampledEvent", "sampling": fixed, "of": GAUSSIAN}, 10**9)
    tested = {"event": "TestedSampleEvent", "rate": 1e-3, "noise_multiplier": 2.0}
    tested |= {"epsilon_threshold": 0.1, "epsilon_queries": 0.1, "tests": 10**9}
    yield "tested samples", repeated(tested, 10**3)


def changes(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Reports that are hostile in another member than the event."""

    def other(**members: Any) -> dict[str, Any]:
        return copy.deepcopy(report) | members

    picture = {"title": "t", "caption": "c", "x": "x", "y": "y", "categories": []}
    line = {"name": "l", "xs": [], "ys": [], "errors": []}
    long = {**line, "xs": [float(i) for i in range(30_000)], "ys": [1.0] * 30_000}
    yield "5,000 pictures", other(pictures=[{**picture, "series": [line]}] * 5000)
    yield "a long picture", other(pictures=[{**picture, "series": [long]}])
    yield (
        "endless numbers",
        other(pictures=[{**picture, "series": [{**line, "xs": [-1e308, 1e308], "ys": [1e308, -1e308]}]}]),
    )
    yield (
        "many categories",
        other(pictures=[{**picture, "categories": ["x"] * 9000, "series": [{**line, "ys": [1.0] * 9000}]}]),
    )
    group = report["releases"][0]
    yield "many releases", other(releases=[group] * 900)
    yield "a long schedule", other(releases=[{**group, "schedule": [[i, 1.0] for i in range(40_000)]}])
    yield "many events", other(releases=[{**group, "events": group["events"] * 4000}])
    yield "a long curve", other(curve=report["curve"] * 250)
    yield "a huge epsilon", other(guarantee={**report["guarantee"], "epsilon": 1e308})
    yield "a tiny delta", other(guarantee={**report["guarantee"], "delta": 5e-324})
    yield "a huge size", other(guarantee={**report["guarantee"], "n": 10**39})
    yield "long words", other(summary=["x" * 900_000], title="t" * 90_000)
    yield "many findings", other(findings={f"f{i}": {"value": 1.0, "meaning": "m"} for i in range(20_000)})
    yield "many metrics", other(metrics={f"m{i}": 1.0 for i in range(40_000)})
    path = [[i, 0, 2] for i in range(30_000)]
    yield (
        "deep blocks",
        other(releases=[{**group, "blocks": [{"event": 0, "of": path, "count": group["count"]}]}]),
    )
    blocks = [{"event": 0, "of": [[1, i, 10**7]], "count": 1} for i in range(15_000)]
    yield "many blocks", other(releases=[{**group, "blocks": blocks, "count": 15_000}])


def recipes(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Reports whose recipes describe runs that take long, or fill memory."""
    index = report["replay"]
    for name, members in {
        "wide": {"width": 900_000},
        "many units": {"n": 10**8},
        "a tiny epsilon": {"epsilon": 1e-300},
        "a huge epsilon": {"epsilon": 1e6},
        "a tiny delta": {"delta": 1e-300},
        "many classes": {"classes": [f"c{i}" for i in range(50_000)]},
        "another solver": {"solver": "newton"},
        "a slow solver": {"solver": "sampled-dual-averaging"},
        "a black box": {"solver": "black-box"},
        "users": {"by_user": True, "max_records_per_user": 10**8},
        "loose bounds": {"bounds": None, "loose_bounds": {"$tuple": [-1e300, 1e300]}},
        "bounds of columns": {"bounds": {"$tuple": [[-1.0] * 20_000, [1.0] * 20_000]}, "width": 20_000},
    }.items():
        recipe = copy.deepcopy(index["recipe"])
        for key, value in members.items():
            (recipe if key in recipe else recipe["arguments"])[key] = value
        yield name, copy.deepcopy(report) | {"replay": index | {"recipe": recipe}}


def encoders(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Models whose tables or numbers are hostile: documents and arrays."""
    wide = 60_000
    levels = [f"{i:x}" for i in range(wide)]
    for sparse in (True, False, "auto"):
        other = copy.deepcopy(document)
        other["encoder"]["schema"]["columns"]["a"] = {"kind": "cat", "levels": levels}
        other["encoder"]["sparse_output"] = sparse
        yield f"many levels, {sparse}", other, {"coef": np.zeros((1, wide + 1)), "intercept": np.zeros(1)}
    other = copy.deepcopy(document)
    other["encoder"]["schema"]["columns"]["a"] = {"kind": "pixels", "size": 2**24, "low": 0, "high": 1}
    yield "many pixels", other, {"coef": np.zeros((1, 3)), "intercept": np.zeros(1)}
    other = copy.deepcopy(document)
    other["estimator"]["arguments"]["classes"] = [f"c{i}" for i in range(50_000)]
    yield "many classes", other, {"coef": np.zeros((50_000, 2)), "intercept": np.zeros(50_000)}
    for name, value in {"not a number": np.nan, "infinite": np.inf}.items():
        yield name, document, {"coef": np.asarray([[value, 1.0]]), "intercept": np.zeros(1)}
    yield "truths", document, {"coef": np.asarray([True, False]), "intercept": np.zeros(())}
    yield "another shape", document, {"coef": np.zeros((2, 2, 2)), "intercept": np.zeros(())}


Hostile = tuple[str, dict[str, Any], dict[str, Any], bytes]


def files(good: Path) -> Iterator[Hostile]:
    """Every hostile model: its name, document, arrays and releases."""
    document = json.loads((good / "model.json").read_text())["document"]
    arrays = safetensors.numpy.load((good / "model.safetensors").read_bytes())
    packed = (good / "releases.safetensors").read_bytes()
    report = document["report"]

    def with_report(other: dict[str, Any]) -> dict[str, Any]:
        return {**document, "report": other, "plan": other.get("plan")}

    for name, event in events():
        other = copy.deepcopy(report) | {"event": event}
        other["plan"]["event"] = event
        yield f"event: {name}", with_report(other), arrays, packed
        yield f"event alone: {name}", with_report(other | {"plan": None}), arrays, packed
        other["guarantee"] = {**other["guarantee"], "relation": "add-or-remove-one"}
        yield f"event, added: {name}", with_report(other), arrays, packed
    for name, other in changes(report):
        yield f"report: {name}", with_report(other), arrays, packed
    for name, other in recipes(report):
        index = other["replay"]
        again = safetensors.numpy.save(safetensors.numpy.load(packed), {INDEX: digest_of_index(index)})
        other["replay"] = index | {"sha256": hashlib.sha256(again).hexdigest()}
        yield f"recipe: {name}", with_report(other), arrays, again
    for name, other, numbers in encoders(document):
        yield f"model: {name}", other, numbers, packed


def seconds() -> float:
    """Processor time of this process and of its children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + used.ru_utime + used.ru_stime


def forget_largest_memory() -> None:
    """Measure the largest memory of this process from now on, which holds what commands before have left."""
    jax.clear_caches()
    gc.collect()
    if (forget := Path("/proc/self/clear_refs")).exists():
        forget.write_text("5")


def largest_memory() -> float:
    """The largest memory of this process since then, or of any of its children, in GiB."""
    status, own = Path("/proc/self/status"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if status.exists():
        own = int(
            next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:")).split()[1]
        )
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 2**20


def attempts(
    folder: Path, hostile: Iterable[Hostile], forget: Callable[[], None] = forget_largest_memory
) -> Iterator[dict[str, Any]]:
    """What every command makes of hostile files.

    Args:
        folder: where to write them.
        hostile: some of `files`.
        forget: called before each command; by default all that the process holds is forgotten, to measure its memory.
    """
    from privopt.cli import app

    (folder / "rows.csv").write_text("a,b\n" + "0.5,0.1\n" * 5000)
    for name, document, arrays, packed in hostile:
        model = folder / "hostile"
        shutil.rmtree(model, ignore_errors=True)
        model.mkdir()
        numbers = safetensors.numpy.save(arrays)
        content = {"format": "privopt-model", "format_version": 1, "document": document}
        content["arrays_sha256"] = hashlib.sha256(numbers).hexdigest()
        (model / "model.json").write_text(json.dumps(content))
        (model / "model.safetensors").write_bytes(numbers)
        (model / "releases.safetensors").write_bytes(packed)
        predicted = ("predict", str(model), str(folder / "rows.csv"), "--output", str(model / "p.parquet"))
        for arguments in (("verify", str(model), "--json"), predicted, ("report", str(model), "--open-path")):
            forget()
            begun, code = seconds(), None
            out, complaint = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaint):
                try:
                    app(list(arguments))
                except SystemExit as left:
                    code = left.code
            yield {
                "name": name,
                "command": arguments[0],
                "code": code,
                "seconds": seconds() - begun,
                "memory": largest_memory(),
                "said": complaint.getvalue(),
                "is_verified": '"verified"' in out.getvalue(),
            }


def main(folder: Path) -> None:
    """Run everything; see above."""
    said: list[dict[str, Any]] = []
    for each in attempts(folder, files(save_small_model(folder / "good", of_table=True))):
        said.append(each)
        (folder / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
