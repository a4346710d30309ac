"""Why a tree of events has no price, in sentences."""

from privopt.ledger.composition import Alternative
from privopt.ledger.events import MixtureEvent, SampledEvent


def used_up(way: Alternative, delta: float) -> str | None:
    """Why nothing of `delta` is left for the noise, None if something is.

    Args:
        way: what one unit meets.
        delta: of the budget.
    """
    if way.delta > 0 and (way.delta > delta or (way.delta == delta and way.pure_epsilon is None)):
        return (
            f"bad events of probability {way.delta:.3g} use up delta = {delta:.3g}: nothing is left for the noise. "
            "Raise delta, or make the bad events rarer."
        )
    if way.rounding > 0 and way.delta + 2 * way.rounding > delta:
        return (
            f"rounding of total variation {way.rounding:.3g} adds (1 + e^epsilon) times as much to delta, more than "
            f"delta = {delta:.3g} allows at any epsilon. Give a larger delta; delta = 0 allows no rounding at all."
        )
    return None


def no_price(way: Alternative, relation: str, name: str) -> str:
    """Why no accountant, or not the one that was asked for, can price what one unit meets.

    Args:
        way: what one unit meets.
        relation: the neighbouring relation, in words.
        name: the accountant that was asked for.
    """
    sampled = [leaf for leaf in way.counted if isinstance(leaf, SampledEvent | MixtureEvent)]
    events = sampled or list(way.counted)
    names = list(dict.fromkeys(event.describe() for event in events))
    what = "; ".join(names[:3]) + (f"; and {len(names) - 3} more" if len(names) > 3 else "")
    what = what or "Gaussian noise alone"
    if name != "best":
        return (
            f"the {name!r} accountant cannot price this under {relation}: {what}. Ask for accountant='best'."
        )
    return (
        f"no accountant can price this under {relation}: {what}. On samples, prices are known of "
        "Gaussian releases: on Poisson samples (one release per sample under replace-one), on fixed-size samples "
        "(replace-one only), and on a sample and everybody under one noise (add-or-remove-one only)."
    )
