"""What the format of stored rows means, in words."""

_BITS = {"int8": "8-bit", "int16": "16-bit"}


def meaning_of(storage: str) -> str:
    """A format of `public.STORAGES`, as a reader of a plan or a report needs it."""
    if storage not in _BITS:
        return f"rows of {storage} numbers"
    return f"rows of {_BITS[storage]} integers on a public grid, rounded so that none gets longer"
