"""Signatures of reports and models: Ed25519 over the content of every file, so that whoever has the key vouches for it.

A signature stands in a file of its own beside what was signed: `signature.json` in a model's directory,
`NAME.signature.json` beside `NAME.json`. It names the files by what they are, not by their names, so that they may be
renamed together. The page is not among them: `privopt report` writes it anew from the report.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from privopt.untrusted import UntrustedFile, read_json, read_regular
from privopt.verification.checks import Check, Outcome
from privopt.verification.tree import Fields, Malformed

SIGNATURE_FILE = "signature.json"
FORMAT, FORMAT_VERSION = "privopt-signature", 1
ROLES = ("model", "arrays", "report", "releases")
SUBJECT = "signature"
_PREFIX = b"privopt-signature 1\n"
_MOST_KEY_BYTES = 2**14
_MISSING = "signatures need the package `cryptography`: pip install 'privopt[sign]'."


class KeyProblem(UntrustedFile):
    """A key cannot be used; the sentence says why and quotes nothing of it."""


def sign(target: Path, files: Mapping[str, bytes], key: Path) -> Path:
    """Sign files, and write the signature.

    Args:
        target: where the signature stands; see `signature_beside`.
        files: the content of each, by what it is (`ROLES`).
        key: a file with an Ed25519 private key without a passphrase, PEM or OpenSSH.

    Raises:
        KeyProblem: it is no such key.
    """
    private = _private_key(key)
    digests = digests_of(files)
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "public_key": private.public_key().public_bytes_raw().hex(),
        "files": digests,
        "signature": private.sign(_message(digests)).hex(),
    }
    target.unlink(missing_ok=True)  # a link that came with other files leads elsewhere
    with target.open("x", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=2) + "\n")
    return target


def digests_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256 of files by what they are."""
    return {role: hashlib.sha256(files[role]).hexdigest() for role in ROLES if role in files}


def signature_beside(path: Path) -> Path:
    """Where the signature of a report or of a model's directory is written."""
    return path / SIGNATURE_FILE if path.is_dir() else path.with_name(f"{path.stem}.{SIGNATURE_FILE}")


def signature_of(path: Path) -> Path:
    """Where a signature is read from: a report in a model's directory may have that of the directory."""
    own, of_a_model = signature_beside(path), path.with_name(SIGNATURE_FILE)
    return of_a_model if of_a_model.is_file() and not own.exists() and not path.is_dir() else own


def signed(signature: Path, files: Mapping[str, bytes], trusted: Sequence[Path]) -> Check | None:
    """Whether the files are those that were signed, by somebody who is trusted.

    Args:
        signature: the file of the signature.
        files: the content of what is there, by what it is.
        trusted: files of public keys; none where anybody's signature will do.

    Returns:
        None where nothing was signed and no key is trusted.

    Raises:
        KeyProblem: a file holds no public key.
        UntrustedFile: the signature is beyond what is read.
    """
    keys = {_public_bytes(path): path.name for path in trusted}
    if not signature.exists() and not signature.is_symlink():
        return Check(SUBJECT, Outcome.FAILS, "nobody has signed it") if trusted else None
    found = Fields(read_json(signature), "the signature")
    if found.text("format") != FORMAT or found.whole("format_version", 1, 10**6) != FORMAT_VERSION:
        raise Malformed("the signature is none of privopt, or of a version that is not known here.")
    if not trusted and find_spec("cryptography") is None:
        return Check(SUBJECT, Outcome.UNCHECKED, f"there is one, and {_MISSING.rstrip('.')}")
    public, stated = _hex(found, "public_key", 32), found.fields("files").values
    if not _is_valid(public, _hex(found, "signature", 64), _message(stated)):
        return Check(SUBJECT, Outcome.FAILS, "the signature is not that of its key")
    wrong = [role for role, digest in digests_of(files).items() if stated.get(role) != digest]
    if wrong:
        return Check(SUBJECT, Outcome.FAILS, f"not what was signed: {', '.join(wrong)}")
    name = f"ed25519:{public.hex()}"
    if not trusted:
        return Check(SUBJECT, Outcome.UNCHECKED, f"signed by {name}, whom no --trusted-key names")
    if public not in keys:
        return Check(SUBJECT, Outcome.FAILS, f"signed by {name}, who is none of the trusted")
    absent = [role for role in ROLES if role in stated and role not in files]
    rest = f"; signed as well, and not there: {', '.join(absent)}" if absent else ""
    return Check(SUBJECT, Outcome.HOLDS, f"every file that is there is as it was signed by {name}{rest}")


def _message(digests: Mapping[str, Any]) -> bytes:
    return _PREFIX + json.dumps(digests, sort_keys=True, separators=(",", ":")).encode()


def _hex(fields: Fields, name: str, size: int) -> bytes:
    try:
        found = bytes.fromhex(fields.text(name))
    except ValueError:
        found = b""
    if len(found) != size:
        raise Malformed(f"{fields.place}.{name} must be {size} bytes in hexadecimal digits.")
    return found


def _is_valid(public: bytes, signature: bytes, message: bytes) -> bool:
    _, ed25519, exceptions = _library()
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (exceptions.InvalidSignature, ValueError):
        return False
    return True


def _library() -> tuple[Any, Any, Any]:
    """What reads keys, what signs, and what it raises."""
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise KeyProblem(_MISSING) from None
    return serialization, ed25519, exceptions


def _private_key(path: Path) -> Any:
    serialization, ed25519, _ = _library()
    content = _key_file(path)
    of_openssh = b"OPENSSH" in content.split(b"\n", 1)[0]
    load = serialization.load_ssh_private_key if of_openssh else serialization.load_pem_private_key
    try:
        found = load(content, None)
    except Exception:  # whatever a library says of a key stays unsaid
        found = None
    if not isinstance(found, ed25519.Ed25519PrivateKey):
        raise KeyProblem(
            f"{str(path)!r} holds no Ed25519 private key without a passphrase: make one with `openssl genpkey "
            "-algorithm ed25519`."
        )
    return found


def _public_bytes(path: Path) -> bytes:
    serialization, ed25519, _ = _library()
    content = _key_file(path)
    of_openssh = content.startswith(b"ssh-")
    load = serialization.load_ssh_public_key if of_openssh else serialization.load_pem_public_key
    found: Any
    try:
        found = load(content)
    except Exception:  # as above
        found = None
    if not isinstance(found, ed25519.Ed25519PublicKey):
        raise KeyProblem(
            f"{str(path)!r} holds no Ed25519 public key: `openssl pkey -in KEY -pubout` writes that of a private one."
        )
    return found.public_bytes_raw()


def _key_file(path: Path) -> bytes:
    try:
        return read_regular(path, _MOST_KEY_BYTES, follow=True)
    except UntrustedFile as error:
        raise KeyProblem(f"no key: {error}") from None


def check_key(path: Path) -> None:
    """Refuse a key that cannot sign, before anything is paid.

    Raises:
        KeyProblem: it is no Ed25519 private key without a passphrase.
    """
    _private_key(path)
