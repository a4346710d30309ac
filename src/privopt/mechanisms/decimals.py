"""Decimal arithmetic that follows from nothing but the number of its digits."""

import decimal


def decimals(digits: int) -> decimal.Context:
    """Arithmetic of so many digits, whatever the program has made of the default context."""
    return decimal.Context(
        prec=digits,
        rounding=decimal.ROUND_HALF_EVEN,
        Emin=decimal.MIN_EMIN,
        Emax=decimal.MAX_EMAX,
        capitals=1,
        clamp=0,
        flags=[],
        traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
    )
