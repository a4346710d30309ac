"""`--resume`: where the releases of a command are kept, so that the same command goes on if it is stopped."""

import contextlib
from pathlib import Path

from privopt.commands.mistakes import Mistake
from privopt.curator.journals import resumable


def resumable_in(
    folder: Path | None, seed: int | None, *, output: Path
) -> contextlib.AbstractContextManager[None]:
    """Around a run: where its releases are kept, if they are.

    Args:
        folder: what was typed.
        seed: likewise.
        output: the directory, or the file, that the result is written to.
    Raises:
        Mistake: that cannot be, with what else was typed.
    """
    if folder is None:
        return contextlib.nullcontext()
    if seed is not None:
        raise Mistake(
            "--resume cannot be given with --random-state: the same noise would be drawn again. Leave out one of them."
        )
    if folder.resolve().is_relative_to(output.resolve()):
        raise Mistake(
            f"--resume {str(folder)!r} must not lie in --output {str(output)!r}: it is for whoever runs this, a result "
            "may be given away."
        )
    return resumable(folder)
