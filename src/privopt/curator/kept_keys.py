"""Keys that lie beside a run's journal until the run has ended: of its cuts, and of where its users stand."""

import os
from pathlib import Path

from privopt.atomic_files import keep_names
from privopt.curator.journal import open_own
from privopt.data.user_digests import laid_out_by
from privopt.data.user_secret import UserSecret
from privopt.errors import DataUnavailable
from privopt.mechanisms.noise import RepeatedChoice

KEY_BYTES = 32
CUTS, USERS = ".key", ".users"  # in place of a journal's suffix


def stored_key(path: Path) -> bytes:
    """What is stored of a key; nothing where it was not written, or lost with the power.

    Raises:
        ArgumentError: the file is not ours alone.
    """
    if not path.exists():
        return b""
    handle = open_own(path)
    try:
        found = os.pread(handle, KEY_BYTES, 0)
    finally:
        os.close(handle)
    return found if len(found) == KEY_BYTES and found.strip(b"\0") else b""


def new_key(path: Path, undone: str) -> bytes:
    """A key from the operating system, on disk for good, in a file of mode 0600.

    Args:
        path: of the file; whatever was in it is written over.
        undone: what did not happen where it cannot be written, in words.
    Raises:
        ArgumentError: the file is not ours alone.
        DataUnavailable: it cannot be written.
    """
    handle = open_own(path)
    try:
        key = os.urandom(KEY_BYTES)
        written = os.pwrite(handle, key, 0)
        os.fsync(handle)
        keep_names(path.parent)
    except OSError as error:
        raise DataUnavailable(
            f"the key {str(path)!r} cannot be written: {(error.strerror or '').lower()}. {undone} "
            "Make room, and start the same run again to go on."
        ) from None
    finally:
        os.close(handle)
    if written < KEY_BYTES:
        raise DataUnavailable(f"the key {str(path)!r} cannot be written whole. {undone}")
    return key


def users_key(journal: Path) -> bytes:
    """The key that lays out the users of a run, and chooses their records, wherever the run goes on.

    Args:
        journal: of the run.
    """
    path = journal.with_suffix(USERS)
    return stored_key(path) or new_key(path, "Nothing was read.")


def kept_layout(journal: Path) -> str:
    """What tells how users are laid out by the key beside a journal, see `Units.laid_out`; empty without one."""
    key = stored_key(journal.with_suffix(USERS))
    return laid_out_by(UserSecret.drawn(RepeatedChoice.of(key), 0)) if key else ""


def forget_keys(journal: Path) -> None:
    """Delete the keys beside a journal: that of its cuts first, without which no block answers any more.

    Raises:
        DataUnavailable: one cannot be deleted.
    """
    paths = [path for path in map(journal.with_suffix, (CUTS, USERS)) if path.exists()]
    for path in paths:
        try:
            path.unlink(missing_ok=True)
            keep_names(path.parent)
        except OSError as error:
            raise DataUnavailable(
                f"the key {str(path)!r} of a run that has ended cannot be deleted: "
                f"{(error.strerror or '').lower()}. Delete it: it tells which records were in which block."
            ) from None
