"""Federated averaging with user-level privacy: a person's records stay on their own node. Run it by `make federated`.

Four hundred made-up people keep a diary of up to sixty days each: did they sleep badly, given what they did that day?
The model is a logistic regression. Server and nodes run in this process, on a grid that only passes messages; with
Flower's own grid the same two objects, `strategy` and `app`, run on a server and on people's devices.
"""

import argparse
import time
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from rich.console import Console
from sklearn.metrics import roc_auc_score

from privopt import Budget, Units, minimize
from privopt.flower import InProcessGrid, UserStrategy, client_app
from privopt.problems import losses
from privopt.solvers.user_federated_averaging import UserFederatedAveraging

PEOPLE, COLUMNS, MOST_DAYS = 400, 5, 60
ROW_BOUND = np.sqrt(COLUMNS)  # the columns lie in [-1, 1]: a public fact about them
EPSILON = 2.0
PUBLIC = {
    "row_bound": ROW_BOUND,
    "max_records_per_user": MOST_DAYS,
    "typical_records": 30.0,
    "classes": [0, 1],
}


def made_up_people(people: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """The diaries: (columns of each day, whether the night was bad) of each person; people differ a little."""
    rng = np.random.default_rng(seed)
    taste = np.array([1.5, -1.0, 0.8, 0.0, 0.5])
    diaries: list[tuple[np.ndarray, np.ndarray]] = []
    for days in rng.integers(1, MOST_DAYS + 1, people):
        columns = np.concatenate([rng.uniform(-1.0, 1.0, (days, COLUMNS - 1)), np.ones((days, 1))], axis=1)
        log_odds = 2.0 * columns @ (taste + 0.3 * rng.normal(size=COLUMNS))
        diaries.append((columns, (rng.random(days) < 1.0 / (1.0 + np.exp(-log_odds))).astype(int)))
    return diaries


def run(*, people: int = PEOPLE, rounds: int | None = None, seed: int | None = None) -> dict[str, Any]:
    """Fit the model on the nodes, print what it cost, and compare it with a model that saw all diaries in the clear."""
    begin = time.perf_counter()
    diaries = made_up_people(people)

    # What a node runs. `load` finds the person's own records; here the configuration of the node says who it is.
    def load(context: Context) -> tuple[np.ndarray, np.ndarray]:
        return diaries[int(context.node_config["person"])]

    app = client_app(losses.logistic, load)

    # What the server runs. All it is told about the people are public numbers.
    solver = UserFederatedAveraging() if rounds is None else UserFederatedAveraging(rounds=rounds)
    strategy = UserStrategy(
        losses.logistic,
        n=people,
        d=COLUMNS,
        budget=Budget(EPSILON, 1.0 / people**2),
        solver=solver,
        random_state=seed,
        **PUBLIC,
    )
    grid = InProcessGrid(app, {node: {"person": node} for node in range(people)})
    result = strategy.start(grid, ArrayRecord({"weights": Array(np.zeros(COLUMNS))}))
    private = result.private
    assert private is not None
    screen = Console(highlight=False)
    screen.print(str(private.report), markup=False)

    columns, nights = (np.concatenate(parts) for parts in zip(*diaries, strict=True))
    in_the_clear = minimize(
        losses.logistic,
        Units.from_arrays(columns, nights, row_bound=ROW_BOUND, classes=[0, 1]),
        budget=Budget(np.inf, 1e-6),
    ).params
    fresh, fresh_nights = (np.concatenate(parts) for parts in zip(*made_up_people(200, seed=1), strict=True))
    scores = {
        name: float(roc_auc_score(fresh_nights, fresh @ np.asarray(weights)))
        for name, weights in (
            ("federated, private", result.arrays["weights"].numpy()),
            ("in the clear", in_the_clear),
        )
    }
    screen.print(
        "\nAUC on people who took no part:", ", ".join(f"{name} {auc:.3f}" for name, auc in scores.items())
    )
    screen.print(f"Done in {time.perf_counter() - begin:.0f} seconds.")
    return {"scores": scores, "private": private}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    run()
