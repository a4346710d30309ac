"""The arguments of `minimize`, `minimax` and `plan`: what is no budget, data, start, loss or game gets one sentence.

Everything here is public and is looked at before anything is charged. A loss of the user's own is traced on shapes
alone, as the engine will differentiate it.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from privopt.data.units import Units
from privopt.engine.protocol import Engine
from privopt.later import jax, jnp
from privopt.ledger.account import checked_account
from privopt.ledger.amounts import Budget
from privopt.named_arguments import check_observer
from privopt.precision import in_float64
from privopt.problems.black_box import BlackBox, try_on_made_up_records
from privopt.problems.glm import GLMLoss, RecordLoss
from privopt.problems.problem import Problem
from privopt.problems.saddle import BilinearGame, Game
from privopt.public import Public
from privopt.tables.table import Table


def _not_traced() -> tuple[type[Exception], ...]:
    """What JAX raises where a function asks for the values of what it is given."""
    return (
        jax.errors.ConcretizationTypeError,
        jax.errors.NonConcreteBooleanIndexError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    )


def check_arguments(units: Any, budget: Any, account: Any, observer: Any) -> None:
    """Refuse what is of another kind than `minimize` asks for.

    Raises:
        TypeError: one of them is.
    """
    if not isinstance(units, Units | Engine | Table):
        raise TypeError(
            f"units must be Units, got {type(units).__name__}: make them of your arrays with Units.from_arrays(X, y, "
            "row_bound=...), which says what is public about the data, or open files with Table.open."
        )
    check_payment(budget, account, observer)


def check_payment(budget: Any, account: Any, observer: Any) -> None:
    """Refuse what cannot pay for a run, or watch it.

    Raises:
        TypeError: one of them is of another kind.
    """
    if not isinstance(budget, Budget):
        raise TypeError(
            f"budget must be a Budget, got {type(budget).__name__}: give both numbers, such as Budget(1.0, 1e-6)."
        )
    checked_account(account)
    check_observer(observer)


def posed_problem(problem: Any, start: Any) -> Problem:
    """The problem that a loss, a problem or a function of parameters like `start` poses.

    Raises:
        TypeError: it is none of these, or the start holds something that is no number.
        ValueError: the start of a function is missing.
    """
    if isinstance(problem, BlackBox):
        problem = Problem(problem)
    if isinstance(problem, Problem):
        return _laid_out(problem, start)
    if isinstance(problem, GLMLoss | RecordLoss):
        return Problem(problem)
    if not callable(problem):
        raise TypeError(
            f"the loss must be one of privopt.problems.losses, a Problem, or a function of (params, features, target), "
            f"got {type(problem).__name__}."
        )
    if start is None:
        raise ValueError(
            "give `start`: the parameters at which your loss function begins; their shapes define it."
        )
    check_takes("loss", problem, ("params", "features", "target"))
    loss: Callable[..., Any] = problem
    return Problem.from_pytree(loss, start)


def _laid_out(problem: Problem, start: Any) -> Problem:
    """The problem itself; of a black box that does not know the shape of its parameters yet, with that of the start."""
    if not isinstance(problem.loss, BlackBox) or problem.loss.layout is not None:
        return problem
    if start is None:
        raise ValueError(
            "give `start`: the parameters at which your black box begins; their shapes define what it is called with."
        )
    return Problem.of_values(
        problem.loss, start, regulariser=problem.regulariser, constraint=problem.constraint
    )


def flat_start(problem: Problem, start: Any, public: Public) -> Any:
    """The start as the library's array, None for none.

    Raises:
        TypeError: it holds something that is no number.
        ValueError: its shape is not the problem's, or a number is not finite.
    """
    if start is None:
        return None
    if problem.layout is None and np.asarray(start).dtype.kind not in "iuf":
        raise TypeError(f"start must be an array of numbers, got {type(start).__name__} that is none.")
    flat = jnp.asarray(problem.ravel(start))
    if flat.shape != problem.parameter_shape(public):
        raise ValueError(
            f"start must have shape {problem.parameter_shape(public)}, that of the parameters, got {flat.shape}."
        )
    if not bool(jnp.all(jnp.isfinite(flat))):
        raise ValueError("start must be finite: it holds a number that is NaN or infinite.")
    return flat


def check_loss(problem: Problem, public: Public, start: Any = None) -> None:
    """Refuse a loss of the user's own that cannot be computed record by record, before any data is read.

    A loss that is called on the host is called on made-up records, at `start` (flat) or at zero; any other is traced.

    Raises:
        TypeError: its value is no single real number, or it cannot be traced and has to be.
        ValueError: it keeps state.
    """
    loss = problem.loss
    if isinstance(loss, BlackBox):
        _check_black_box(loss, problem.parameter_shape(public), public, start)
    if not isinstance(loss, RecordLoss):
        return
    features = f"features of shape ({public.d},) and a target of shape ()"
    with in_float64():
        shapes = [
            jax.ShapeDtypeStruct(shape, jnp.float64)
            for shape in (problem.parameter_shape(public), (public.d,), ())
        ]
        given = f"parameters of the shapes of the start, {features}"
        value = _traced("loss", given, lambda: jax.eval_shape(loss.value, *shapes))
        if not _is_number(value):
            raise TypeError(
                f"the loss of one record must be one real number, got {_described(value)}: given {features}, sum "
                "or average what belongs to the record."
            )
        _traced("loss", given, lambda: jax.eval_shape(loss.gradient, *shapes))


def _traced(what: str, given: str, compute: Callable[[], Any]) -> Any:
    """What a function of the user's own gives on shapes alone; `what` names it, `given` its arguments."""
    try:
        return compute()
    except _not_traced() as traced:
        raise TypeError(
            f"the {what} cannot be differentiated: it turns its arguments into NumPy arrays or Python numbers, or "
            "decides by their values. Write it with jax.numpy in place of NumPy and math, and jnp.where or "
            "jax.lax.cond in place of `if`."
        ) from traced
    except Exception as error:
        raise TypeError(
            f"the {what} cannot be computed for one record ({type(error).__name__}): given {given}. Compare these "
            f"shapes with what the {what} does; the error above says where it fails."
        ) from error


def check_takes(what: str, function: Any, names: tuple[str, ...]) -> None:
    """Refuse a function of the user's own that cannot be called with its arguments.

    Args:
        what: the function: "loss" or "payoff".
        function: to be called.
        names: of the arguments it will be given, by position.
    Raises:
        TypeError: it takes fewer, or needs more.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a builtin nothing is known
        return
    try:
        signature.bind(*names)
    except TypeError:
        raise TypeError(
            f"the {what} must take {len(names)} arguments, ({', '.join(names)}), got a function of {signature}."
        ) from None


def _check_black_box(loss: BlackBox, shape: tuple[int, ...], public: Public, start: Any) -> None:
    if loss.host:
        try_on_made_up_records(loss, np.zeros(shape) if start is None else start, public.d)
        return
    with in_float64():
        shapes = [jax.ShapeDtypeStruct(one, jnp.float64) for one in ((2, *shape), (public.d,), ())]
        try:
            found = jax.eval_shape(loss.values_at, *shapes)
        except _not_traced() as traced:
            raise TypeError(
                "the black box is declared to be JAX (host=False), but it turns its arguments into NumPy arrays or "
                "Python numbers, or decides by their values: leave out host=False, and it is called as it is."
            ) from traced
    if found.shape != (2,):
        one = "m numbers for m points" if loss.vectorized else "one number for a record"
        raise TypeError(f"the black box must answer with {one}, got an array of shape {found.shape[1:]}.")


def check_game(game: Any, public: Public) -> None:
    """Refuse what is no game, a game of other records, and a payoff that cannot be differentiated.

    Raises:
        TypeError: it is no game, or its payoff is no single real number or cannot be traced.
        ValueError: its records have another number of features.
    """
    if not isinstance(game, Game):
        what = game.__name__ + " itself" if isinstance(game, type) else type(game).__name__
        raise TypeError(
            f"the game must be a BilinearGame(rows=..., columns=...) or a SaddleProblem(payoff, x=..., y=..., "
            f"sizes=...), got {what}."
        )
    obstacle = game.obstacle(public)
    if obstacle is not None:
        raise ValueError(f"the game does not fit the records: {obstacle}.")
    if isinstance(game, BilinearGame):
        return
    check_takes("payoff", game.payoff, ("x", "y", "features", "target"))
    sizes = [player.vertices.dimension for player in game.players.values()]
    with in_float64():
        shapes = [
            jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((sizes[0],), (sizes[1],), (public.d,), ())
        ]
        given = (
            f"x of shape ({sizes[0]},), y of shape ({sizes[1]},), features of shape ({public.d},) and a target of "
            "shape ()"
        )
        value = _traced("payoff", given, lambda: jax.eval_shape(game.payoff, *shapes))
        if not _is_number(value):
            raise TypeError(
                f"the payoff of one record must be one real number, got {_described(value)}: given {given}, sum or "
                "average what belongs to the record."
            )
        for who in ("x", "y"):
            _traced("payoff", given, partial(jax.eval_shape, partial(game.slope, who), *shapes))


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, jax.ShapeDtypeStruct)
        and value.shape == ()
        and jnp.issubdtype(value.dtype, jnp.floating)
    )


def _described(value: Any) -> str:
    if not isinstance(value, jax.ShapeDtypeStruct):
        return f"a {type(value).__name__}"
    return f"an array of shape {value.shape}" if value.shape else f"a number of type {value.dtype}"
