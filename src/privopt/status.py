"""How a solve can end."""

import enum


class Status(enum.Enum):
    """How a solve ended, in a sentence."""

    FINISHED = "The planned steps were all taken."
    BUDGET_SPENT = "The budget was spent; the last affordable iterate is returned."
    DIVERGED = "An iterate was not finite; the last finite average is returned, and the whole budget counts as spent."
