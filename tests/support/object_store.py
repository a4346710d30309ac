"""A store of objects that speaks as much S3 as reading a table needs: who asks, what there is, which version it has.

It also answers a plain URL that is signed, or that names a user and a password.
"""

import base64
import contextlib
import hashlib
import http.server
import os
import re
import threading
import urllib.parse
from collections.abc import Generator
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

KEY, SECRET = "AKIAOFSOMEBODY", "of/some+body"  # the one that may read
USER, PASSWORD, SIGNATURE = "reader", "hunter2", "5164ed"
_BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


class ObjectStore:
    """Objects by bucket and key, and what was asked about them.

    Attributes:
        objects: content by "bucket/key".
        asked: every request, as "METHOD /path?query".
        url: where the store listens, on this machine.
    """

    def __init__(self, url: str) -> None:
        self.url, self.asked = url, list[str]()
        self.objects: dict[str, bytes] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What gives a process access, and keeps it from asking anybody else."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    store: ObjectStore


class _Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._reply()

    def do_HEAD(self) -> None:
        self._reply()

    def log_message(self, *_: object) -> None:
        pass

    def _reply(self) -> None:
        store = self.server.store
        store.asked.append(f"{self.command} {self.path}")
        parsed = urllib.parse.urlsplit(self.path)
        name = urllib.parse.unquote(parsed.path).strip("/")
        query = dict(urllib.parse.parse_qsl(parsed.query, keep_blank_values=True))
        bucket, _, key = name.partition("/")
        told = self.headers.get("Authorization", "")
        if f"Credential={KEY}/" not in told and told != _BASIC and query.get("sig") != SIGNATURE:
            self._refuse(403, "InvalidAccessKeyId")
        elif not any(one.startswith(f"{bucket}/") for one in store.objects):
            self._refuse(404, "NoSuchBucket")
        elif not key:
            self._send(200, _listing(store, bucket, query).encode(), {"x-amz-bucket-region": "us-east-1"})
        elif name not in store.objects:
            self._refuse(404, "NoSuchKey")
        else:
            self._hand_out(store.objects[name])

    def _hand_out(self, content: bytes) -> None:
        named = {
            "ETag": _tag(content),
            "Last-Modified": "Tue, 01 Jan 2030 00:00:00 GMT",
            "Accept-Ranges": "bytes",
        }
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            self._send(200, content, named)
            return
        start, stop = int(asked[1]), min(int(asked[2] or len(content)) + 1, len(content))
        self._send(
            206, content[start:stop], {**named, "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        )

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode(), {})

    def _send(self, status: int, content: bytes, named: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/xml", **named}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _listing(store: ObjectStore, bucket: str, query: dict[str, str]) -> str:
    """What there is in a bucket, or in a folder of it."""
    prefix, mark = query.get("prefix", ""), query.get("delimiter", "")
    told, folders = list[str](), dict[str, None]()
    for name, content in sorted(store.objects.items()):
        held, _, key = name.partition("/")
        if held != bucket or not key.startswith(prefix):
            continue
        below = key[len(prefix) :]
        if mark and mark in below:
            folders[prefix + below.partition(mark)[0] + mark] = None
            continue
        told.append(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2030-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(_tag(content))}</ETag><Size>{len(content)}</Size></Contents>"
        )
    told += [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders]
    return (
        f"<ListBucketResult><Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>"
        f"<KeyCount>{len(told)}</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>"
        f"{''.join(told)}</ListBucketResult>"
    )


@contextlib.contextmanager
def object_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ObjectStore]:
    """A store of a folder's files, as "bucket/t/...", on a port of this machine: the only one this process knows."""
    with _Server(("127.0.0.1", 0), _Answer) as server:
        store = server.store = ObjectStore(f"http://127.0.0.1:{server.server_address[1]}")
        for file in folder.rglob("*"):
            if file.is_file():
                store.objects[f"bucket/t/{file.relative_to(folder)}"] = file.read_bytes()
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()
