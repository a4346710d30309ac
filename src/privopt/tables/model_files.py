"""A fitted model as a directory: its arrays in `model.safetensors`, everything else in `model.json`. Never pickle.

`model.json` carries the SHA-256 of the arrays' file, so half-written, mixed-up or altered directories are refused. Both
files may come from anywhere and are read within the limits of `privopt.untrusted`.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from privopt.atomic_files import replace_file
from privopt.tables.errors import TableError
from privopt.untrusted import MOST_ARRAY_BYTES, MOST_JSON_BYTES, UntrustedFile, parse_json, read_regular

FORMAT = "privopt-model"
FORMAT_VERSION = 1
ARRAYS_FILE = "model.safetensors"
DOCUMENT_FILE = "model.json"
# JSON has no infinity and no NaN (epsilon may be infinite): such a number is written as {"$float": "inf"}.
FLOAT_KEY = "$float"


def save_model(
    directory: str | Path, *, arrays: Mapping[str, NDArray[Any]], document: Mapping[str, Any]
) -> None:
    """Write a model directory; files of an older model in it are replaced.

    Args:
        directory: where to; created if needed.
        arrays: released arrays by name, of numbers or truth values.
        document: JSON values (mappings with text keys, lists or tuples, text, numbers, truth values, None) and NumPy
            scalars.

    Privacy:
        What is written is what is given: releases and public settings. Nothing else is stored.

    Raises:
        TypeError: an array or a value has no plain form.
        TableError: the directory cannot be written.
    """
    plain = {name: _plain_array(name, array) for name, array in arrays.items()}
    packed = safetensors.numpy.save(plain)
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "arrays_sha256": hashlib.sha256(packed).hexdigest(),
        "document": _to_plain(document, "document"),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / ARRAYS_FILE, packed)
        replace_file(folder / DOCUMENT_FILE, text.encode("utf-8"))  # last: it vouches for the arrays
    except OSError as error:
        raise TableError(
            f"The model directory {str(folder)!r} cannot be written: {error.strerror}."
        ) from None


def load_model(directory: str | Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read a model directory: its arrays and its document, as they were saved (tuples come back as lists).

    Raises:
        TableError: it is no model directory, was written by a newer privopt, or was altered or half-written.
    """
    folder = Path(directory)
    content = _read_document(folder)
    try:
        packed = read_regular(folder / ARRAYS_FILE, MOST_ARRAY_BYTES)
    except UntrustedFile as error:
        raise TableError(
            f"The model directory {str(folder)!r} has no readable {ARRAYS_FILE}: {error}"
        ) from None
    if hashlib.sha256(packed).hexdigest() != content.get("arrays_sha256"):
        raise TableError(
            f"The model directory {str(folder)!r} is damaged: {ARRAYS_FILE} is not the file that {DOCUMENT_FILE} was "
            "written with; save the model again."
        )
    try:
        arrays = safetensors.numpy.load(packed)
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError):
        raise TableError(f"{str(folder / ARRAYS_FILE)!r} is not a safetensors file of numbers.") from None
    document = _from_plain(content.get("document"))
    if not isinstance(document, dict):
        raise TableError(f"{str(folder / DOCUMENT_FILE)!r} holds no document.")
    return dict(arrays), cast("dict[str, Any]", document)


def _read_document(folder: Path) -> dict[str, Any]:
    """The content of `model.json`, of a format and a version that this privopt reads."""
    path = folder / DOCUMENT_FILE
    try:
        packed = read_regular(path, MOST_JSON_BYTES)
    except UntrustedFile as error:
        raise TableError(
            f"{str(folder)!r} is no model directory: it has no readable {DOCUMENT_FILE}: {error}"
        ) from None
    try:
        found = parse_json(packed, repr(str(path)))
    except UntrustedFile as error:
        raise TableError(f"The model directory is damaged: {error}") from None
    if found.get("format") != FORMAT:
        raise TableError(f"{str(path)!r} was not written by privopt.")
    version = found.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise TableError(f"{str(path)!r} states no usable format version.")
    if version > FORMAT_VERSION:
        raise TableError(
            f"{str(path)!r} has format version {version}, and this privopt reads versions up to {FORMAT_VERSION}: "
            "update privopt."
        )
    return found


def _plain_array(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """The array in C order; safetensors would store another order's bytes as they lie."""
    plain = np.array(array, order="C")
    if plain.dtype.kind not in "biuf":
        raise TypeError(f"Array {name!r} has dtype {plain.dtype}: only numbers and truth values are stored.")
    return plain.astype(plain.dtype.newbyteorder("="), copy=False)


def _to_plain(value: Any, place: str) -> Any:
    """The value in JSON's own types; `place` says where it stands."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT_KEY: repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return [_to_plain(item, f"{place}[{index}]") for index, item in enumerate(items)]
    if isinstance(value, Mapping):
        members = cast("Mapping[Any, Any]", value)
        if not all(isinstance(key, str) and key != FLOAT_KEY for key in members):
            raise TypeError(f"{place} has a key that is not a text: JSON keys are.")
        return {key: _to_plain(member, f"{place}.{key}") for key, member in members.items()}
    raise TypeError(
        f"{place} is a {type(value).__name__}, which JSON has no form for; arrays go into `arrays`."
    )


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        if set(members) == {FLOAT_KEY}:
            if members[FLOAT_KEY] not in ("inf", "-inf", "nan"):
                raise TableError(f"The model directory is damaged: it holds a {FLOAT_KEY} that is no number.")
            return float(members[FLOAT_KEY])
        return {key: _from_plain(member) for key, member in members.items()}
    return value
