"""Keys of users as 128 bits of a secret hash: equal for equal keys, whoever reads them, in whatever block. PRIVATE.

What makes two keys one is said in `user_keys`. A key is written as a text that is the same for all keys equal to it,
and the text is hashed twice by SipHash-2-4 under keys of `UserSecret`, two others for each kind of texts. The first
half of a digest tells the part, and whether the key is missing; both together tell the user.
"""

import dataclasses
import datetime
import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.util import hash_array

from privopt.data.cells import unheard
from privopt.data.user_keys import (
    INTEGERS,
    TEXTS,
    are_of,
    integer_key,
    key_cells,
    key_columns,
    key_of,
    number_key,
    text_key,
)
from privopt.data.user_secret import UserSecret
from privopt.errors import ArgumentError

Digests = NDArray[np.uint64]  # one half of each, or (2, rows) both
Kind = Literal["text", "bytes", "time", "span", "clock", "tuple", "other", "columns"]
Written = tuple[Kind, Any]

NOBODY = np.uint64(0)  # both halves of the digest of a missing key
_SIPHASH: Any = hash_array


class KeysOfOwnTypes(ArgumentError):
    """There are keys that only the process that holds them can tell apart. Says which can be told apart anywhere."""

    def __init__(self) -> None:
        super().__init__(
            "keys of users that several processes read are numbers, texts, bytes, truth values, UUIDs, times, or "
            "tuples of these: what any other value is equal to is known where it was made. Give such a key's "
            "text, or read the records in one process (engine='memory' or 'stream')."
        )


def require_known_everywhere(private_keys: Any, rows: int) -> None:
    """Refuse keys that processes cannot tell apart which did not make them.

    Privacy:
        The types of keys are part of how data are given, as their number is, and not of what they hold; the message is
        the same whichever they are, and whosever.
    Raises:
        KeysOfOwnTypes: there are some.
        ArgumentError: there is not one key for each record.
    """
    elsewhere = dataclasses.replace(UserSecret.drawn(None, 0), process=b"")
    user_digests(private_keys, rows, elsewhere)


def user_digests(private_keys: Any, rows: int, secret: UserSecret) -> Digests:
    """The digest of each user key, (2, rows); `NOBODY` where it is missing.

    Args:
        private_keys: (rows,) keys, or (rows, k) for keys of several columns, see `user_keys.user_codes`.
        rows: how many records there are.
        secret: whose hash it is.
    Privacy:
        All records of a person are one unit: keys that `user_codes` takes for one have one digest, in every process and
        whatever the type of the column that holds them. Two people of one digest would be one unit, which one of them
        leaves changed and not gone: that could move a result by more than a unit may. The hash being secret, a person
        shares a digest with one of n others with probability n / 2^128 at most, below 2^-95 for 2^33 of them: as
        unlikely as that the key of a noise generator is guessed.
    Raises:
        ArgumentError: there is not one key for each record.
        KeysOfOwnTypes: there is a key of a type of its own, and this is not the process that drew the secret, which has
            numbered such keys.
    """
    private_columns = [_column_digests(column, secret) for column in key_columns(private_keys, rows)]
    if len(private_columns) == 1:
        return private_columns[0]
    private_table = np.ascontiguousarray(np.concatenate(private_columns).T)  # (rows, 2 k)
    private_texts = private_table.view(f"V{private_table.shape[1] * 8}").ravel().astype(object)
    private_digests = _hashed(private_texts, "columns", secret)
    private_digests[:, np.any(private_table[:, ::2] == NOBODY, axis=1)] = NOBODY
    return private_digests


def laid_out_by(secret: UserSecret) -> str:
    """What tells a secret, and how it is made use of, from others: equal where the same keys have the same digests.

    Empty where keys of types of their own were met, whose digests another process does not know.

    Privacy:
        It is a hash of two digests of public keys: without the secret, random letters.
    """
    if secret.private_others:
        return ""
    private_digests = user_digests(np.array([0, 1]), 2, secret)
    return hashlib.blake2b(
        private_digests.tobytes(), key=secret.private_seed, person=b"privopt layout", digest_size=32
    ).hexdigest()


def _column_digests(private_keys: Any, secret: UserSecret) -> Digests:
    """The digests of one column; each case is one of `user_keys`'s."""
    dtype = getattr(private_keys, "dtype", None)
    if isinstance(dtype, np.dtype):
        private_values = np.asarray(private_keys)
        if dtype.kind in "iu":
            return _of_distinct(private_values, lambda known: known.astype(str).astype(object), secret)
        if dtype.kind == "f" and dtype.itemsize <= 8:
            private_values = private_values.astype(np.float64) + 0.0
            return _of_distinct(
                private_values, lambda known: _objects(map(number_key, known.tolist())), secret
            )
        if dtype.kind == "b":
            return _of_distinct(private_values, lambda known: known.astype(str).astype(object), secret)
        if dtype.kind in "mM":
            private_codes, private_known = pd.factorize(private_values.astype(np.int64))
            return _of_cells(private_known.view(dtype.newbyteorder("=")), secret)[:, private_codes]
    private_cells = key_cells(private_keys)
    if are_of(private_cells, TEXTS):
        return _hashed(_objects(map(text_key, private_cells)), "text", secret)
    if are_of(private_cells, INTEGERS):
        return _hashed(_objects(map(integer_key, map(int, private_cells))), "text", secret)
    return _of_cells(private_cells, secret)


def _of_distinct(
    private_values: NDArray[Any], written: Callable[[NDArray[Any]], NDArray[Any]], secret: UserSecret
) -> Digests:
    """The digests of numbers, each different one written once; NaN is missing."""
    private_codes, private_known = pd.factorize(private_values)
    private_digests = _hashed(written(np.asarray(private_known)), "text", secret)
    private_missing = np.full((2, 1), NOBODY)
    return np.append(private_digests, private_missing, axis=1)[
        :, private_codes
    ]  # the last one is where -1 points


def _of_cells(private_cells: Any, secret: UserSecret) -> Digests:
    """The digests of cells of any types."""
    with unheard():
        private_written = [_written(private_cell) for private_cell in private_cells]
    private_digests = np.full((2, len(private_written)), NOBODY)
    kinds: set[Kind] = {written[0] for written in private_written if written is not None}
    for kind in kinds:
        if kind == "other" and not secret.is_at_home:
            raise KeysOfOwnTypes
        private_places = [j for j, written in enumerate(private_written) if written and written[0] == kind]
        private_texts = [written[1] for written in private_written if written and written[0] == kind]
        if kind == "other":
            private_texts = [_numbered(private_key, secret) for private_key in private_texts]
        private_digests[:, private_places] = _hashed(_objects(private_texts), kind, secret)
    return private_digests


def _numbered(private_key: Hashable, secret: UserSecret) -> str:
    """The text of a key of a type of its own; empty where it cannot be compared."""
    try:
        return str(secret.number(private_key))
    except Exception:
        return ""


def _hashed(private_texts: NDArray[Any], kind: Kind, secret: UserSecret) -> Digests:
    """The hash of texts or bytes of one kind, (2, texts); an empty text is missing."""
    keys = secret.hash_keys(kind)
    try:
        private_halves = [_SIPHASH(private_texts, hash_key=key, categorize=False) for key in keys]
    except UnicodeEncodeError:  # half of a pair of surrogates
        private_bytes = _objects(_encoded(private_text) for private_text in private_texts)
        private_halves = [_SIPHASH(private_bytes, hash_key=key, categorize=False) for key in keys]
    private_digests = np.maximum(np.stack(private_halves), np.uint64(1))
    private_digests[:, private_texts == ""] = NOBODY
    return private_digests


def _written(private_cell: Any) -> Written | None:
    """A cell as a text, by its kind; None where it is missing, or cannot be hashed or compared."""
    try:
        private_key = key_of(private_cell)
        hash(private_key)
        return None if private_key is None else _written_key(private_key)
    except Exception:
        return None


def _written_key(private_key: Hashable) -> Written:
    """A key of `user_keys.key_of` as a text, the same for all that are equal to it; itself of a type of its own."""
    match private_key:
        case str():
            return "text", private_key
        case ("bytes", bytes() as private_bytes):
            return "bytes", bytes(private_bytes)
        case ("time", str() as private_text):
            return "time", private_text
        case ("span", str() as private_text):
            return "span", private_text
        case (_, datetime.time(tzinfo=None) as private_clock) if type(private_clock) is datetime.time:
            return "clock", private_clock.replace(fold=0).isoformat()
        case ("tuple", *private_parts):
            private_listed = [_written_key(private_part) for private_part in private_parts]
            if any(kind == "other" for kind, _ in private_listed):
                return "other", private_key
            return "tuple", _listed(private_listed)
        case _:
            return "other", private_key


def _listed(private_parts: Sequence[Written]) -> bytes:
    """Written keys one after the other, each with its kind and its length, so that no two lists are alike."""
    private_pieces = list[bytes]()
    for kind, private_text in private_parts:
        private_bytes = _encoded(private_text)
        private_pieces += [f"{kind} {len(private_bytes)} ".encode(), private_bytes]
    return b"".join(private_pieces)


def _encoded(private_text: str | bytes) -> bytes:
    return private_text if isinstance(private_text, bytes) else private_text.encode("utf-8", "surrogatepass")


def _objects(private_values: Any) -> NDArray[Any]:
    private_list = list(private_values)
    private_array = np.empty(len(private_list), dtype=object)
    private_array[:] = private_list
    return private_array
