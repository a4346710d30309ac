"""Schedules, defaults and forecasts of the games against drawn queries, from public numbers.

A unit moves the signed errors by a range of factor / n. K draws at an inverse temperature beta cost
K (beta factor / n)^2 / 8 of zCDP.
"""

import math
from typing import Any

from privopt.planning.cell_weights import WorkloadTask, fit_seconds, loudness
from privopt.planning.plan import Bound, Finding
from privopt.planning.task import Forecast
from privopt.problems.workload import Workload
from privopt.public import Public

PRESET_ROUNDS, PRESET_DRAWS = 200, 4
LIKELIHOOD_ROUNDS, FEWEST_DRAWS, MOST_DRAWS, DRAWS_SLOPE = 20, 40, 100, 1.0 / 30.0


def check_noise(program: Any, task: WorkloadTask) -> None:
    """Refuse a game without privacy: its draws have a temperature, and so always a price.

    Raises:
        ValueError: epsilon is infinite, or the noise multiplier 0.
    """
    if not task.is_private or program.noise_multiplier == 0:
        raise ValueError(
            f"{program.name} needs a finite epsilon and a noise multiplier above 0, since it draws queries at random: "
            "without privacy use another method, such as gaussian-marginals."
        )


def item_range(public: Public) -> float:
    """By which range one unit moves the signed errors."""
    return public.relation.factor / public.n


def preset_scale(program: Any, public: Public) -> float:
    """s in beta_t = s sqrt t: K sum over t = 1, ..., T of (s factor / n)^2 t / 8 is 1 / (2 z^2)."""
    steps = program.rounds * (program.rounds + 1) / 2
    return 2.0 / (program.noise_multiplier * item_range(public) * math.sqrt(program.draws * steps))


def literal_step(program: Any, public: Public) -> float:
    """tau in beta_t = tau t: K sum over t < T of (tau t factor / n)^2 / 8 is 1 / (2 z^2)."""
    rounds = program.rounds
    squares = (rounds - 1) * rounds * (2 * rounds - 1) / 6
    if squares == 0:
        return 0.0
    return 2.0 / (program.noise_multiplier * item_range(public) * math.sqrt(program.draws * squares))


def default_rounds(program: Any, task: WorkloadTask) -> int:
    """200; literally T = n sqrt(6 rho log N / (K c)) / log(2 m), which balances its bound.

    Source:
        Gonzalez, Guzman, Paquette 2024, Theorem 1.1, with bounded-range prices.
    """
    if program.variant == "preset":
        return PRESET_ROUNDS
    log_cells = _log_cells(task.problem)
    loud = loudness(task) * (1.0 if task.public.relation.factor == 2 else math.sqrt(0.5))
    steps = loud * math.sqrt(3.0 * log_cells / program.draws) / math.log(2 * task.problem.size)
    return min(max(2, round(steps)), 5000)


def default_draws(program: Any, task: WorkloadTask) -> int:
    """4; literally 1."""
    del task
    return PRESET_DRAWS if program.variant == "preset" else 1


def default_likelihood_draws(program: Any, task: WorkloadTask) -> int:
    """kappa / 30, between 40 and 100: more of them only where each can be nearly uniform."""
    del program
    return min(MOST_DRAWS, max(FEWEST_DRAWS, round(DRAWS_SLOPE * loudness(task))))


def game_seconds(program: Any, workload: Workload) -> float:
    """An iteration a round."""
    return fit_seconds(program.rounds, workload)


def game_bound(program: Any, task: WorkloadTask) -> Bound | None:
    """The theorem behind the literal variant, on the expected largest error over the queries.

    sqrt(log N / (2 T)) + log(2 m) / (tau T) + tau / 2.
    """
    if program.variant == "preset" or program.data_player == "oracle" or program.rounds < 2:
        return None
    step = literal_step(program, task.public)
    players = math.sqrt(_log_cells(task.problem) / (2.0 * program.rounds))
    value = players + math.log(2 * task.problem.size) / (step * program.rounds) + step / 2.0
    return Bound(value, 1.0, "the expected largest error over all queries, for any data")


def game_forecast(program: Any, task: WorkloadTask) -> Forecast:
    """The bound of the literal variant; of the others only what is known of their kind."""
    if not (program.rounds and program.draws):
        return Forecast(meaning="no draw: the uniform table, at no cost")
    return Forecast(
        meaning="there is no useful formula for the error of this game; marginals are modelled better by others",
        bound=game_bound(program, task),
    )


def likelihood_forecast(program: Any, task: WorkloadTask) -> Forecast:
    """How sharply a draw tells the worst query from the others."""
    if not (program.rounds and program.draws):
        return Forecast(meaning="no draw: the uniform table, at no cost")
    spread = 1.0 / likelihood_temperature(program, task.public)
    found = {
        "temperature": Finding(
            spread, "the error that makes a query e times as likely to be drawn, as a share of all units"
        )
    }
    meaning = "there is no formula for the error of a model; see the indicators"
    return Forecast(meaning=meaning, indicators=found)


def likelihood_temperature(program: Any, public: Public) -> float:
    """beta: T K (beta factor / n)^2 / 8 is 1 / (2 z^2)."""
    draws = program.rounds * program.draws
    return 2.0 / (program.noise_multiplier * item_range(public) * math.sqrt(draws))


def _log_cells(workload: Workload) -> float:
    return math.fsum(math.log(level) for level in workload.levels)


def default_updates(program: Any, task: WorkloadTask) -> int:
    """sqrt(kappa) / 2 of private multiplicative weights, at most one a query."""
    del program
    return min(max(1, round(math.sqrt(loudness(task)) / 2)), task.problem.size)


def default_threshold(program: Any, task: WorkloadTask) -> float:
    """The error above which a query is answered from the data: six times the noise of a test."""
    if not task.is_private:
        return 1e-6
    return min(0.5, 6.0 * math.sqrt(max(1, program.updates) / program.tests_share) / loudness(task))


def default_questions(program: Any, task: WorkloadTask) -> int:
    """Each query once."""
    del program
    return task.problem.size


def updates_forecast(program: Any, task: WorkloadTask) -> Forecast:
    """How wrong an answer by the model may be."""
    found = {
        "threshold": Finding(
            program.threshold, "about the error of an answer that the model gives, as a share of all units"
        )
    }
    meaning = "the bound of the source holds if the updates suffice; see the indicators"
    return Forecast(meaning=meaning, indicators=found)
