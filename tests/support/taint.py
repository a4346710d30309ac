"""What a computation makes of private values, read off its jaxpr: which of its steps let one record touch another."""

from collections.abc import Iterator
from typing import Any

from jax.extend.core import Literal

# Their loops go on until the slowest of all numbers beside each other has converged, or may do so: the last bits of one
# number, and the running time, follow the others.
UNTIL_ALL_CONVERGE = {
    "regularized_incomplete_beta",
    "igamma",
    "igammac",
    "igamma_grad_a",
    "random_gamma_grad",
    "random_gamma",
}
ALONG_ONE = {"argmax", "argmin", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"}


def touches(closed: Any, private: list[bool], records: int) -> Iterator[str]:
    """The steps of a jaxpr in which one record's value may depend on another's.

    Args:
        closed: the jaxpr.
        private: which of its inputs are private.
        records: how many records or units stand beside each other: the length of an axis that nothing else has.
    """
    yield from _walk(closed.jaxpr, private, records)[1]


def _walk(jaxpr: Any, private: list[bool], records: int) -> tuple[list[bool], list[str]]:
    """Which outputs are private, and what was found."""
    known = dict(zip(jaxpr.invars, private, strict=True))
    found: list[str] = []

    def is_private(var: Any) -> bool:
        return not isinstance(var, Literal) and known.get(var, False)

    for equation in jaxpr.eqns:
        given = [is_private(var) for var in equation.invars]
        outputs, inside = _step(equation, given, records)
        found += inside
        known.update(zip(equation.outvars, outputs, strict=True))
    return [is_private(var) for var in jaxpr.outvars], found


def _step(equation: Any, given: list[bool], records: int) -> tuple[list[bool], list[str]]:
    name, some = equation.primitive.name, equation.params
    if name == "while":
        return _while(equation, given, records)
    if name == "scan":
        return _scan(equation, given, records)
    if name == "cond":
        return _cond(equation, given, records)
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = some.get(key)
        if inner is not None:
            return _walk(getattr(inner, "jaxpr", inner), given, records)
    found: list[str] = []
    if any(given):
        if name in UNTIL_ALL_CONVERGE:
            found.append(f"{name} of private values")
        if records in _lengths_met(equation, given):
            found.append(f"{name} along the records")
    return [any(given)] * len(equation.outvars), found


def _lengths_met(equation: Any, given: list[bool]) -> list[int]:
    """How long the axes of private values are along which the step mixes entries."""
    name, some = equation.primitive.name, equation.params
    shapes = [var.aval.shape for var in equation.invars]
    if name == "dot_general":
        sides = some["dimension_numbers"][0]
        return [
            shape[axis]
            for shape, axes, secret in zip(shapes, sides, given, strict=True)
            if secret
            for axis in axes
        ]
    if name.startswith("reduce_") and "axes" in some:
        return [shapes[0][axis] for axis in some["axes"]]
    if name in ALONG_ONE:
        axes = some.get("axes", (some.get("axis"),))
        return [shapes[0][axis] for axis in axes]
    if name == "sort":
        return [shapes[0][some["dimension"]]]
    if name == "top_k":
        return [shapes[0][some.get("axis", -1)]]
    return []


def _while(equation: Any, given: list[bool], records: int) -> tuple[list[bool], list[str]]:
    some = equation.params
    of_test, of_body = some["cond_nconsts"], some["body_nconsts"]
    test, body, carry = given[:of_test], given[of_test : of_test + of_body], given[of_test + of_body :]
    carry, found = _settled(some["body_jaxpr"].jaxpr, body, carry, [], records)
    (secret,), inside = _walk(some["cond_jaxpr"].jaxpr, [*test, *carry], records)
    stops = ["while: how often follows private values"] if secret else []
    return [one or secret for one in carry], [*found, *inside, *stops]


def _scan(equation: Any, given: list[bool], records: int) -> tuple[list[bool], list[str]]:
    some = equation.params
    fixed, carried = some["num_consts"], some["num_carry"]
    consts, carry, items = given[:fixed], given[fixed : fixed + carried], given[fixed + carried :]
    carry, found = _settled(some["jaxpr"].jaxpr, consts, carry, items, records)
    outputs, _ = _walk(some["jaxpr"].jaxpr, [*consts, *carry, *items], records)
    if some["length"] == records and any(items):
        found = [*found, "scan along the records"]
    return [*carry, *outputs[carried:]], found


def _settled(
    body: Any, consts: list[bool], carry: list[bool], items: list[bool], records: int
) -> tuple[list[bool], list[str]]:
    """What is private of a loop's state, whenever it ends."""
    while True:
        outputs, found = _walk(body, [*consts, *carry, *items], records)
        wider = [one or other for one, other in zip(carry, outputs[: len(carry)], strict=True)]
        if wider == carry:
            return carry, found
        carry = wider


def _cond(equation: Any, given: list[bool], records: int) -> tuple[list[bool], list[str]]:
    chosen, rest = given[0], given[1:]
    found = ["cond: which branch follows private values"] if chosen else []
    outputs = [chosen] * len(equation.outvars)
    for branch in equation.params["branches"]:
        of_branch, inside = _walk(branch.jaxpr, rest, records)
        outputs = [one or other for one, other in zip(outputs, of_branch, strict=True)]
        found += inside
    return outputs, found
