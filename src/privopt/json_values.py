"""Public numbers as JSON can hold them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from privopt.later import is_array

MOST_ENTRIES = 64  # of an array that is written out


def plain(value: Any) -> Any:
    """A NumPy scalar, or an array of one number without dimensions, as a Python number; anything else as it is."""
    if isinstance(value, np.generic):
        return value.item()
    if is_array(value) and value.ndim == 0:
        return np.asarray(value).item()
    return value


def described_array(value: Any) -> str | None:
    """An array or a container of numbers in words, without its entries; None for anything else.

    >>> described_array(np.zeros((3, 2))), described_array([1.0]), described_array(2.0)
    ('3 x 2 numbers', '1 number', None)
    """
    value = plain(value)
    if isinstance(value, Mapping):
        return f"{len(value):,} entries"
    if not (is_array(value) or isinstance(value, list | tuple)):
        return None
    shape = np.shape(value)
    size = math.prod(shape)
    return f"{' x '.join(f'{length:,}' for length in shape)} number{'' if size == 1 else 's'}"


def json_value(value: Any) -> Any:
    """A document without what JSON cannot hold: infinity becomes the text "infinity", NumPy scalars become numbers.

    A long array becomes its description.

    >>> json_value({"clip": float("inf"), "steps": (1, 2), "released": np.zeros(100)})
    {'clip': 'infinity', 'steps': [1, 2], 'released': '100 numbers'}
    """
    value = plain(value)
    if is_array(value):
        return (
            json_value(np.asarray(value).tolist()) if value.size <= MOST_ENTRIES else described_array(value)
        )
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "infinity" if value > 0 else "-infinity"
    if isinstance(value, Mapping):
        return {str(key): json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(entry) for entry in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def number_or_text(value: Any) -> Any:
    """The number that `json_value` wrote as a text, such as "infinity"; anything else as it is.

    >>> number_or_text("infinity"), number_or_text("tail"), number_or_text(3)
    (inf, 'tail', 3)
    """
    return float(value) if isinstance(value, str) and value in ("infinity", "-infinity", "nan") else value
