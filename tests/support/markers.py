"""A private number and a private text that are planted in data, and the search for them in whatever comes out."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np

NUMBER = 0.7312345678901234
TEXT = "zqPATIENTxk"


def forms_of(number: float) -> set[bytes]:
    """How a number may be written: its digits, float32 and float64 in both byte orders, those in hex and base64."""
    found = {
        repr(number)[:10].encode(),
        repr(float(np.float32(number)))[:8].encode(),
        float(number).hex()[:12].encode(),
    }
    for kind in ("<f4", ">f4", "<f8", ">f8"):
        found |= forms_of_bytes(np.asarray(number, kind).tobytes())
    return found


def forms_of_bytes(secret: bytes) -> set[bytes]:
    """Bytes as they are, in hex, and in base64 wherever they begin in a longer text."""
    shifted = (base64.b64encode(b"\0" * shift + secret)[4 if shift else 0 : -4] for shift in range(3))
    return {
        secret,
        secret.hex().encode(),
        secret.hex().upper().encode(),
        *(form for form in shifted if len(form) > 5),
    }


MARKERS = forms_of(NUMBER) | forms_of_bytes(TEXT.encode())


def found_in(thing: Any, markers: set[bytes] = MARKERS) -> set[bytes]:
    """Which markers stand in bytes or in a text."""
    content = thing if isinstance(thing, bytes) else str(thing).encode("utf-8", "surrogatepass")
    return {marker for marker in markers if marker in content}


def linked(error: BaseException) -> Iterator[BaseException]:
    """An exception, what caused it, and what it came up in."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or any(one is other for other in seen):
            continue
        seen.append(one)
        yield one
        waiting += [one.__cause__, one.__context__]


def said_by(error: BaseException) -> list[str]:
    """Whatever an exception carries to somebody who logs it, without the variables of the frames it passed."""
    return [
        text
        for one in linked(error)
        for text in (
            str(one),
            repr(one),
            repr(one.args),
            repr(getattr(one, "__notes__", [])),
            repr(vars(one)),
        )
    ]
