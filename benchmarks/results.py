"""Results as JSON lines: one object a measured cell, appended; the last one of a cell counts."""

import json
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]

RESULTS = Path(__file__).resolve().parent / "results"
SCRATCH = RESULTS / "tmp"  # encoded data, optima and the results of quick runs; not under version control
CELL = ("benchmark", "data", "method", "relation", "epsilon", "threads", "what", "rows")
DIGITS = 6


def machine() -> str:
    """The machine in general words."""
    return f"{os.cpu_count()}-core server CPU ({platform.machine()})"


def rounded(value: Any) -> Any:
    """Floats cut to a few significant digits, inside any JSON value."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value


def append(record: Record, folder: Path) -> None:
    """Add one measured cell to the file of its benchmark."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{record['benchmark']}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(rounded(record)) + "\n")


def read(folder: Path) -> list[Record]:
    """The latest record of every cell, in the order in which the cells were first measured."""
    latest: dict[tuple[Any, ...], Record] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            latest[tuple(record.get(key) for key in CELL)] = record
    return list(latest.values())


def select(records: Iterable[Record], **fields: Any) -> list[Record]:
    """The records with these values."""
    return [record for record in records if all(record.get(key) == value for key, value in fields.items())]
