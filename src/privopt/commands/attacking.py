"""`privopt audit attack`: what an observer really learns, held against what is claimed; on made-up data."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from privopt.attacks.confidence import CONFIDENCE
from privopt.attacks.one_run import FEWEST_PAIRS, Kind, one_run_attack
from privopt.attacks.optimal import MOST_EPSILON, Attack, optimal_attack
from privopt.attacks.subjects import IN_ONE_RUN, SUBJECTS, solver_subject
from privopt.commands import screen
from privopt.commands.screen import Mistake, check_epsilon
from privopt.json_values import json_value
from privopt.ledger.amounts import Budget
from privopt.public import Relation
from privopt.solvers.registry import NAMES

USUAL = ("descent", "logistic")
KINDS: tuple[Kind, ...] = ("canaries", "membership")
MOST_RUNS, MOST_PAIRS = 100_000, 100_000
HEADER = f"{'attack':<52} {'claimed':>8} {'found':>8}  {'verdict':<11} {'seconds':>7}  tried"


def run(
    names: Sequence[str],
    solvers: Sequence[str],
    *,
    everything: bool,
    budget: Budget,
    runs: int,
    pairs: int,
    as_json: bool,
) -> bool:
    """Print what the attacks found; gives whether no claim was refuted.

    Args:
        names: estimators that are attacked; none, and no solvers, for the usual.
        solvers: solvers that are attacked.
        everything: whether all estimators are attacked.
        budget: the claim.
        runs: of the optimal test.
        pairs: coins of one fit.
        as_json: whether one JSON document is printed instead.

    Raises:
        Mistake: there is nothing of such a name, or the claim is none.
    """
    for option, given, known in (("--estimator", names, SUBJECTS), ("--solver", solvers, NAMES)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise Mistake(f"{option} must be one of {', '.join(known)}, got {unknown[0]!r}.")
    if names and everything:
        raise Mistake("--all attacks every estimator: leave out --estimator, or --all.")
    if check_epsilon(budget.epsilon) > MOST_EPSILON or not 0 < budget.delta < 1:
        raise Mistake(
            f"an attack needs a claim: an --epsilon of at most {MOST_EPSILON:,.0f}, and a --delta above 0 and below 1."
        )
    ranges = (("--runs", runs, 2, MOST_RUNS), ("--pairs", pairs, FEWEST_PAIRS, MOST_PAIRS))
    for option, count, least, most in ranges:
        if not least <= count <= most:
            raise Mistake(f"{option} must be from {least} to {most:,}, got {count}.")
    usual = () if solvers else USUAL
    chosen = list(SUBJECTS) if everything else list(dict.fromkeys(names or usual))
    attacks = planned(chosen, solvers, budget, runs=runs, pairs=pairs)
    terminal, found = screen.console(), list[Attack]()
    if not as_json:
        terminal.out(HEADER)
    for attack in attacks:
        found.append(attack(confidence=1 - (1 - CONFIDENCE) / len(attacks)))
        if not as_json:
            terminal.out("\n".join(lines_of(found[-1])))
    if as_json:
        values = [json_value(asdict(one)) | {"refutes": one.refutes} for one in found]
        terminal.out(json.dumps(values, indent=2))
    else:
        refuted = sum(one.refutes for one in found)
        seconds = sum(one.seconds for one in found)
        terminal.out(
            f"{refuted} of {len(found)} claims refuted, in {seconds:.0f} seconds. All bounds hold together with "
            f"probability {CONFIDENCE}. An attack can refute a claim and never confirm it."
        )
    return not any(one.refutes for one in found)


def planned(
    names: Sequence[str], solvers: Sequence[str], budget: Budget, *, runs: int, pairs: int
) -> list[Callable[..., Attack]]:
    """The attacks on some estimators and solvers, to be called with a confidence."""
    attacks: list[Callable[..., Attack]] = [
        partial(optimal_attack, solver_subject(name), budget, relation=Relation.REPLACE_ONE, runs=runs)
        for name in dict.fromkeys(solvers)
    ]
    for name in names:
        attacks += [
            partial(optimal_attack, SUBJECTS[name], budget, relation=relation, runs=runs)
            for relation in Relation
        ]
        if name in IN_ONE_RUN:
            estimator, of_classes = IN_ONE_RUN[name]
            claim = {"epsilon": budget.epsilon, "delta": budget.delta}
            attacks += [
                partial(
                    one_run_attack, estimator, kind, name=name, of_classes=of_classes, pairs=pairs, **claim
                )
                for kind in KINDS
            ]
    return attacks


def lines_of(attack: Attack) -> list[str]:
    """An attack as lines of a terminal, under `HEADER`."""
    verdict = "REFUTED" if attack.refutes else "not refuted"
    row = f"{attack.name:<52} {attack.claim:>8.4g} {attack.lower_bound:>8.3f}  {verdict:<11} {attack.seconds:>7.1f}"
    return [f"{row}  {attack.detail}", *(f"  BROKEN: {fault}" for fault in attack.faults)]
