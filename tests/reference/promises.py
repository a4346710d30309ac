"""What every reference solver is held to: replay, price and neighbour audit."""

from collections.abc import Callable

import jax
import numpy as np

from privopt.curator.audit import Audit
from privopt.curator.base import Curator
from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import leaf_counts
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.result import Result

Program = Callable[[Curator], Result]
WIDE = Budget(1e6, 1e-5)  # never refuses a plan that has a finite price
NO_PRIVACY = Budget(float("inf"), 1e-5)


def solve(program: Program, units, *, plan=None, budget=WIDE, noise=None, **filter_options) -> Result:
    """Run a program on data, under a plan or a filter."""
    ledger = Ledger(budget, units.public.relation, plan=plan, **filter_options)
    return program(LocalCurator(units, ledger, noise=NoiseSource(3) if noise is None else noise))


def assert_replays(program: Program, result: Result, public, ledger: Ledger | None = None) -> None:
    """The result follows from the transcript alone, to the last bit."""
    again = program(Replay(result.transcript, public, ledger))
    assert jax.tree.all(jax.tree.map(np.array_equal, again.params, result.params))
    assert again.status is result.status
    assert leaf_counts(again.transcript.event()) == leaf_counts(result.transcript.event())


def assert_costs(result: Result, plan, public) -> None:
    """The transcript costs what the plan announced."""
    assert leaf_counts(result.transcript.event())[0] == leaf_counts(plan)[0]
    assert result.transcript.epsilon(1e-5) == accounting.epsilon(plan, 1e-5, public.relation)


def assert_rehearses(program: Program, plan, public) -> None:
    """A dry run, without data, asks for what the plan announced."""
    assert leaf_counts(program(DryRun(public)).transcript.event())[0] == leaf_counts(plan)[0]


def largest_move(program: Program, left, right, *, understate=0.0, noise=None, **ledger_options) -> float:
    """The largest distance that a query moved between two neighbours, over its stated sensitivity."""
    ledger = Ledger(ledger_options.pop("budget", WIDE), left.public.relation, **ledger_options)
    noise = NoiseSource(3) if noise is None else noise
    audit = Audit(left, right, ledger, noise=noise, understate=understate)
    program(audit)
    assert audit.moves
    return max(ratio for _, ratio in audit.moves)


def assert_tight(program: Program, left, right, **options) -> None:
    """Neighbours that some query tells apart as far as it may: the audit fails if understated by 0.2 %."""
    assert 0.999 <= largest_move(program, left, right, **options) <= 1.0
    assert largest_move(program, left, right, understate=0.002, **options) > 1.0


def hostile_rows(row):
    """What one record may be replaced by."""
    return {
        "turned": -row,
        "huge": np.full_like(row, 1e30),
        "tiny": np.full_like(row, 1e-30),
        "empty": np.zeros_like(row),
        "not a number": np.full_like(row, np.nan),
        "infinite": np.full_like(row, -np.inf),
    }
