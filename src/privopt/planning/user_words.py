"""What is promised to users and what is minimised for them, in words. Public numbers only."""

from privopt.public import Public, Weighting

COUNTS: dict[Weighting, str] = {
    "user": "each person counts the same",
    "sqrt": "each person counts by the square root of their number of records",
    "record": "each person counts by their number of records",
}
WEIGHTS: dict[Weighting, str] = {"user": "1", "sqrt": "sqrt(k / M)", "record": "k / M"}


def records(count: float) -> str:
    """A number of records with its noun, rounded."""
    shown = f"{count:,.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"
    return f"{shown} record{'' if count == 1 else 's'}"


def promise(public: Public) -> str:
    """What is protected of a user."""
    return f"everything a person contributed; at most {records(public.records_per_unit)} of each are used"


def aim(public: Public) -> str:
    """Which objective the weighting of users minimises, in short."""
    return f"the mean over people of their own average loss, where {COUNTS[public.weighting]}"


def objective(public: Public) -> str:
    """Which objective the weighting of users minimises."""
    weight = WEIGHTS[public.weighting]
    used = (
        ""
        if public.weighting == "user"
        else f" for k records used of at most M = {public.records_per_unit:,}"
    )
    return (
        f"{aim(public)}: the sum of u F over the sum of u, F a person's average loss and u = {weight}{used}"
    )


def meaning_of_cap(public: Public) -> str:
    """What the cap on a user's records is."""
    return (
        f"At most {records(public.records_per_unit)} of each person are used, drawn at random if there are more. The "
        "cap was chosen beforehand and is enforced: however many somebody has, no more count."
    )


def meaning_of_typical(public: Public) -> str:
    """What the typical number of records is."""
    return (
        f"Guessed beforehand, used of a typical person: {records(public.typical_records)}. The "
        "guess sets clips and predictions; where it is wrong, the model is worse and the "
        "guarantee the same."
    )
