"""What the caller of `minimize`, `minimax` or `user_mean` declared to be public, in sentences of the report."""

import textwrap
from typing import Any

import numpy as np

from privopt.planning import plan
from privopt.problems.black_box import BlackBox
from privopt.problems.constraints import Unconstrained
from privopt.problems.glm import GLMLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser
from privopt.problems.saddle import BilinearGame, Game
from privopt.public import Public, Relation

LONGEST = 200  # letters of a value that a sentence shows
COUNTED_USERS = (
    "Where it was counted from the keys, the number of those who have a record is published: the guarantee then "
    "compares with data in which the replaced user has at least one record too. With a number n of your own a user "
    "without records is covered as well."
)


def declared_of_problem(problem: Problem, start: Any, public: Public) -> tuple[str, ...]:
    """What `minimize` was told.

    Args:
        problem: what is minimised.
        start: the starting point, flat; None for zero.
        public: of the units.
    """
    sentences = list(declared_of_units(public))
    if not isinstance(problem.loss, GLMLoss | BlackBox):
        sentences.append(
            "Loss, written by the user: a function of the parameters and of one record alone, without state and "
            "without constants that were read off the data."
        )
    if start is not None:
        point = np.asarray(start, np.float64)
        size = float(np.linalg.norm(point))
        sentences.append(
            f"Start, given by the user: {point.size:,} numbers of length {size:.3g}; it is public, or was released."
        )
    for what, part in (("Penalty", problem.regulariser), ("Set of the parameters", problem.constraint)):
        if not isinstance(part, NoRegulariser | Unconstrained):
            sentences.append(f"{what}, given by the user: {_short(part)}.")
    if problem.growth is not None:
        sentences.append(
            f"Growth of the objective, given by the user: {_short(problem.growth)}; the guarantee does not rest on it."
        )
    return tuple(sentences)


def declared_of_game(game: Game, public: Public) -> tuple[str, ...]:
    """What `minimax` was told.

    Args:
        game: what is played.
        public: of the units.
    """
    if isinstance(game, BilinearGame):
        what = f"a table of payoffs of {game.rows:,} x {game.columns:,} strategies, linear in the record"
    else:
        sizes = " and ".join(f"{player.vertices.dimension:,}" for player in game.players.values())
        what = (
            f"a function of both players' strategies ({sizes} numbers) and of one record alone, without state"
        )
    return (*declared_of_units(public), f"Payoff, written by the user: {what}.")


def declared_of_mean(
    public: Public, *, bound: float, radius: float | None, outliers: float
) -> tuple[str, ...]:
    """What `user_mean` was told.

    Args:
        public: of the units.
        bound: on the length of a row.
        radius: around the mean; None where none was given.
        outliers: the share of users who may lie further away.
    """
    around = f"Radius around the mean within which most users' averages lie, given by the user: {radius}."
    return (
        f"Longest row, given by the user: {bound:g}; longer rows were shortened to it.",
        *(() if radius is None else (around,)),
        f"Share of users who may lie further away, chosen beforehand: {outliers:g}.",
        *declared_of_units(public)[1:],
    )


def declared_of_units(public: Public) -> tuple[str, ...]:
    """What was declared of the units: first the bound on their rows."""
    rows = (
        f"Columns of codes, given by the user: {', '.join(map(str, public.levels[:20]))} cells."
        if public.levels
        else f"Longest row, given by the user: {public.row_bound:.6g}; longer rows were shortened to it."
    )
    sentences = [rows]
    if public.entry_bound is not None:
        sentences.append(f"Largest entry of a row, given by the user: {public.entry_bound:g}.")
    units = "users" if public.by_user else "records"
    if public.relation is Relation.REPLACE_ONE:
        counted = f" {COUNTED_USERS}" if public.by_user else ""
        sentences.append(f"Number of {units}: {public.n:,}, public under replace-one.{counted}")
    else:
        sentences.append(f"Number of {units}, given by the user: {public.n:,}, which no data set exceeds.")
    if public.by_user:
        sentences.append("User keys, given by the user: they name the owner of every record.")
        sentences.append(plan.meaning_of_cap(public))
    return tuple(sentences)


def _short(value: Any) -> str:
    """A value of the user's in one line."""
    return textwrap.shorten(repr(value), LONGEST, placeholder=" ...")
