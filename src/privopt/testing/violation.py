"""What a check raises: the promise that was broken, by its name, the case that broke it and how to repeat it."""

import enum


class Rule(enum.Enum):
    """The promises that a third party's parts are held to; the value is the fault's name.

    `CLIP`: a unit's contribution is mapped into the ball of the stated radius.
    `SENSITIVITY`: no unit moves a value by more than its sensitivity.
    `NOT_FINITE`: what is not finite counts as zero.
    `COUNT`: the private number of units shows nowhere; means divide by the public n.
    `SHAPE`: values have the shape that is stated.
    `QUIET`: nothing raises or warns because of what stands in a record.
    `NOISE_REUSED`: every release, and every entry of it, has noise of its own.
    `NOISE_AMOUNT`: the noise is that of the event that is paid for.
    `VALUE`: a mechanism is a value: equal to its copy, hashable, and of one price.
    `GUARDS`: a mechanism acts on value / sensitivity, and refuses a sensitivity that no noise can match.
    `PATHS`: all paths compute the same: host and compiled loop, fast engine and plain one.
    `HIDDEN`: what a stream keeps secret is neither printed nor copied.
    `HIDDEN_MOVE`: no unit moves hidden scores, which vertices are drawn from, by more than was paid for.
    `DRAW`: who takes part in a sample does not depend on what units hold.
    `CONTROL`: what is asked for, how often and with how much noise depends on public numbers and releases.
    `RESULT`: the result is a function of the releases.
    `REPEATABLE`: a run on the same answers gives the same bits.
    `PLAN`: a run releases what its plan prices, no more and no less.
    `FINITE_RESULT`: whatever the data, the parameters are finite and the ending is an ordinary one.
    `NAMES`: a solver names nothing private.
    """

    CLIP = "clip forgotten"
    SENSITIVITY = "sensitivity understated"
    NOT_FINITE = "value that is not finite survives"
    COUNT = "private count leaked"
    SHAPE = "shape other than stated"
    QUIET = "data raise or warn"
    NOISE_REUSED = "noise reused"
    NOISE_AMOUNT = "noise other than priced"
    VALUE = "mechanism is not a value"
    GUARDS = "sensitivity not respected"
    PATHS = "paths that disagree"
    HIDDEN = "hidden state shown"
    HIDDEN_MOVE = "hidden scores move too far"
    DRAW = "sample that depends on data"
    CONTROL = "data-dependent stop"
    RESULT = "result that knows more than the releases"
    REPEATABLE = "run that cannot be repeated"
    PLAN = "releases other than planned"
    FINITE_RESULT = "parameters that are not finite"
    NAMES = "private name in a solver"


class ContractViolation(AssertionError):
    """A part broke a promise that privacy rests on.

    Attributes:
        rule: which promise.
        subject: the class of what was checked.
        found: what happened.
        case: on what.
        repeat: the call that shows it again.
    """

    def __init__(self, rule: Rule, subject: object, found: str, *, case: str, repeat: str) -> None:
        self.rule, self.found, self.case, self.repeat = rule, found, case, repeat
        self.subject = subject.__name__ if isinstance(subject, type) else type(subject).__name__
        super().__init__(
            f"{self.subject}, {rule.value}: {found}.\n  on: {case}\n  again: privopt.testing.{repeat}"
        )
