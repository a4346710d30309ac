"""What tells one version of a file from another, on this machine and in a store."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from privopt.tables import places as versions


class Bucket:
    """A store that tells times to the second, and may have tags."""

    def __init__(self, tag: str | None) -> None:
        self.tag, self.listings = tag, 0

    def get_file_info(self, path: str) -> Any:
        self.listings += 1
        return fs.FileInfo(path, fs.FileType.File, size=7, mtime_ns=10**9)

    def open_input_file(self, path: str) -> Any:
        if path != "there":
            raise FileNotFoundError(path)
        tag = self.tag

        class Stream(pa.BufferReader):
            def metadata(self) -> dict[str, bytes] | None:
                return None if tag is None else {"ETag": tag.encode(), "Content-Length": b"7"}

        return Stream(b"1234567")


def test_a_store_is_asked_for_its_tag_and_for_a_time_where_it_has_none() -> None:
    tagged = Bucket("a")
    assert versions.version_of(tagged, "there") == (7, "a")
    assert versions.version_of(Bucket("b"), "there") == (7, "b")
    assert versions.version_of(tagged, "gone") == (-1, "")
    assert tagged.listings == 0
    assert versions.version_of(Bucket(None), "there") == (7, "1000000000")


def test_what_fsspec_says_of_versions_counts() -> None:
    class Foreign:
        protocol = "foreign"

        def invalidate_cache(self) -> None:
            pass

        def info(self, path: str) -> dict[str, Any]:
            if path == "gone":
                raise FileNotFoundError(path)
            return {"size": 3, "name": "x", "ETag": "one", "mtime": 2.0}

    system = fs.PyFileSystem(fs.FSSpecHandler(Foreign()))
    assert versions.version_of(system, "there") == (3, "one 2.0")
    assert versions.version_of(system, "gone") == (-1, "")


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_what_is_no_file_has_no_version(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    assert versions.version_of(fs.LocalFileSystem(), str(path)) == (-1, "")


def test_a_file_whose_size_and_time_are_the_same_has_another_version(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"one")
    before, found = path.stat(), versions.version_of(fs.LocalFileSystem(), str(path))
    assert versions.version_of(fs.LocalFileSystem(), str(path)) == found
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert versions.version_of(fs.LocalFileSystem(), str(path)) != found
