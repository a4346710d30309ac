import gzip
import os
import zipfile

import pytest

from privopt.untrusted import DEEPEST, MOST_JSON_BYTES, UntrustedFile, parse_json, read_json, read_regular


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "no JSON object"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "beyond the range"),
        (b'{"a": ' + b"9" * 50 + b"}", "digits"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "digits"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1), "deep"),
        (b"[" * 200_000, "deep|not JSON"),
        (gzip.compress(b"{}", mtime=0), "gzip"),
        (b"PK\x03\x04", "zip"),
    ],
)
def test_absurd_json_is_refused_in_a_sentence(content, said):
    with pytest.raises(UntrustedFile, match=said):
        parse_json(content, "the file")


def test_a_refusal_quotes_nothing_of_the_content():
    with pytest.raises(UntrustedFile, match="twice") as caught:
        parse_json(b'{"secret": 1, "secret": 2}', "the file")
    assert "secret" not in str(caught.value)


def test_plain_json_is_read(tmp_path):
    path = tmp_path / "plain.json"
    path.write_text('{"a": [1, 2.5, null, "x"], "b": {"c": true}}')
    assert read_json(path) == {"a": [1, 2.5, None, "x"], "b": {"c": True}}
    assert parse_json(b'{"a":' * DEEPEST + b"1" + b"}" * DEEPEST, "the file")


def test_links_pipes_folders_and_large_files_are_refused(tmp_path):
    path = tmp_path / "real.json"
    path.write_text("{}")
    (tmp_path / "link.json").symlink_to(path)
    os.mkfifo(tmp_path / "pipe.json")
    for name, said in {
        "link.json": "symbolic link",
        "pipe.json": "no regular file",
        ".": "cannot be read|no regular file",
        "missing.json": "no such file",
        "nul\0.json": "not readable",
    }.items():
        with pytest.raises(UntrustedFile, match=said):
            read_json(tmp_path / name)
    with pytest.raises(UntrustedFile, match="larger than"):
        read_regular(path, 1)
    sparse = tmp_path / "sparse.json"
    with sparse.open("wb") as file:
        file.truncate(MOST_JSON_BYTES + 1)
    with pytest.raises(UntrustedFile, match="larger than 16 MiB"):
        read_json(sparse)


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.json"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("report.json", b"0" * 10_000_000)
    with pytest.raises(UntrustedFile, match="zip archive"):
        read_json(path)
