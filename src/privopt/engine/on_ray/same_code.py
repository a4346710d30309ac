"""Whether a worker runs the privopt of this process: clips are enforced by the code that is where the records are."""

import hashlib
from functools import lru_cache
from pathlib import Path


class OtherCode(Exception):
    """A worker has another privopt."""


@lru_cache
def code_digest() -> str:
    """A digest of the sources of the package, as they lie on this machine's disk.

    What nobody can import, such as the files of editors, is none of them.
    """
    package = Path(__file__).parents[2]
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if not all(part.isidentifier() for part in name.with_suffix("").parts):
            continue
        content = path.read_bytes()
        found.update(f"{name.as_posix()} {len(content)} ".encode())
        found.update(content)
    return found.hexdigest()


def require_same(digest: str | None) -> None:
    """Refuse to read records for a driver of another privopt.

    Args:
        digest: of the driver's; None where the driver is this process.
    Raises:
        OtherCode: it is another.
    """
    if digest not in (None, code_digest()):
        raise OtherCode
