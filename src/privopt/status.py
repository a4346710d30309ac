"""How a solve can end."""

import enum


class Status(enum.Enum):
    """How a solve ended, in a sentence."""

    FINISHED = "The planned steps were all taken."
    BUDGET_SPENT = "The budget was spent; the last affordable iterate is returned."
    DIVERGED = (
        "An iterate was not finite, or beyond 1e30; the last average before that is returned, and the whole budget "
        "counts as spent."
    )
    HALTED = "A private test failed; what was released before it is returned, and the whole budget counts as spent."
    FELL_BACK = "A private test failed, and a mean that needs no test took the place of the one behind it."
