"""`privopt audit attack`: what an observer really learns, held against what is claimed; on made-up data."""

import json
import math
from dataclasses import asdict

from privopt.attacks.confidence import CONFIDENCE
from privopt.attacks.one_run import one_run_attack
from privopt.attacks.optimal import Attack, optimal_attack
from privopt.commands import screen
from privopt.commands.mistakes import Mistake, check_epsilon
from privopt.commands.task import MODELS
from privopt.json_values import json_value
from privopt.ledger.amounts import Budget

DESCENT = "descent"


def run(model: str | None, *, epsilon: float, delta: float, runs: int, pairs: int, as_json: bool) -> bool:
    """Print what the attacks found; gives whether no claim was refuted.

    Raises:
        Mistake: there is no such model.
    """
    if model not in (None, DESCENT, *MODELS):
        raise Mistake(f"MODEL must be one of {', '.join([DESCENT, *MODELS])}, got {model!r}.")
    if math.isinf(check_epsilon(epsilon)) or not 0 < delta < 1:
        raise Mistake("an attack needs a claim: a finite --epsilon, and a --delta above 0 and below 1.")
    terminal = screen.console()
    found: list[Attack] = []
    if model in (None, DESCENT):
        for relation in ("replace-one", "add-or-remove-one"):
            found.append(optimal_attack(Budget(epsilon, delta), relation=relation, runs=runs))
            if not as_json:
                terminal.out("\n".join(lines_of(found[-1])))
    for name, kind in MODELS.items():
        if model not in (None, name):
            continue
        for attack in ("canaries", "membership"):
            found.append(
                one_run_attack(
                    kind.estimator,
                    attack,
                    epsilon=epsilon,
                    delta=delta,
                    of_classes=kind.of_classes,
                    pairs=pairs,
                )
            )
            if not as_json:
                terminal.out("\n".join(lines_of(found[-1])))
    if as_json:
        values = [json_value(asdict(attack)) | {"refutes": attack.refutes} for attack in found]
        terminal.out(json.dumps(values, indent=2))
    else:
        refuted = sum(attack.refutes for attack in found)
        terminal.out(
            f"{refuted} of {len(found)} claims refuted; each bound holds with probability {CONFIDENCE}. An attack "
            "can refute a claim and never confirm it."
        )
    return not any(attack.refutes for attack in found)


def lines_of(attack: Attack) -> list[str]:
    """An attack as lines of a terminal."""
    bound = max(0.0, attack.lower_bound)
    verdict = "REFUTED" if attack.refutes else "not refuted"
    return [
        f"{attack.name}: epsilon {attack.claim:.4g} claimed, at least {bound:.3g} found: {verdict}",
        f"  {attack.detail}",
        *(f"  BROKEN: {fault}" for fault in attack.faults),
    ]
