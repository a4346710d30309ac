"""Measuring processes: one at a time, started fresh, heard line by line."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def lines_of(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Run Python with these arguments; its JSON lines as they come.

    Raises:
        RuntimeError: it failed; its last words are in the message.
    """
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    variables = {**os.environ, "PYTHONPATH": paths, **(environment or {})}
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=variables
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode != 0:
        raise RuntimeError(f"the measuring process {arguments} ended with {process.returncode}.")
