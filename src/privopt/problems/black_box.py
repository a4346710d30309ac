"""Losses that are known by their values only: simulators, policies, thresholds, anything that cannot be differentiated.

A black box is a function of the parameters and of *one* record, and of nothing else. State that it keeps from record to
record, or a random generator that records share, would let one record move what all later ones contribute, and no clip
bounds that. What can be done against it is done: the callable gets one record at a time, in arrays that it cannot write
to; the global generators of `numpy.random` and `random`, NumPy's error state and the filters of warnings begin anew at
each call; and a callable that answers otherwise the second time is refused on made-up records, see `black_box_trial`.
"""

import random
import signal
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.later import Array, Float, jax, jnp
from privopt.problems.layout import PytreeLayout

_SMALLEST, _LARGEST = 1e-100, 1e100
_numpy_random: Any = np.random  # its types do not know of the functions that exchange the global generator


@dataclass(frozen=True, eq=False)
class BlackBox:
    """A loss of one record known by its values: `values(params, features, target)`, a number.

    Two of them are equal when they hold the same function object and the same constants.

    Attributes:
        values: any Python callable of (parameters like the start, features (d,), target). It gets read-only NumPy
            arrays, a leaf of shape () as a number; or it is a JAX function, see `host`.
        value_range: public (lo, hi); values outside are moved to its ends. A record whose value is not a number, or for
            which the callable raises or answers in another shape, counts as a bad one, silently.
        scale: how far a parameter may sensibly move, a public positive number, or one for each parameter, shaped like
            the start. Solvers see parameters in these units.
        vectorized: whether the callable gets m points at once (every leaf with a leading axis of length m) and answers
            with m numbers. Always one record at a time.
        host: whether `values` is any Python callable. False: it is pure JAX, traced and compiled.
        warm_start: how many points of the box of one `scale` around the start are tried before a solver begins at the
            best of them, which a fifth of the budget chooses; for up to four parameters, for which 1024 is usual.
        name: the loss's name in reports.
        example: a made-up record (features, target) that the callable is tried on before anything is paid for; default:
            a few simple rows of numbers.
        layout: how the parameters lie in a flat vector, set by `laid_out`.
    Privacy:
        Every guarantee rests on the clip of what a unit contributes, and on `values` being a function of its arguments
        alone. Running time and what the callable itself prints or stores are not protected.
    Raises:
        ValueError, TypeError: a constant is missing or out of its range.
    """

    values: Callable[..., Any]
    value_range: tuple[float, float] | None = None
    scale: Any = None
    vectorized: bool = False
    host: bool = True
    warm_start: int = 0
    name: str = "black box"
    example: tuple[Any, Any] | None = None
    layout: PytreeLayout | None = None

    # What other losses say of themselves, and a black box does not know.
    outputs = 1
    lipschitz = float("inf")
    curvature = float("inf")
    convex: ClassVar[bool | None] = None
    monotone = False
    kernel_code = None
    kernel_parameters = (0.0, 0.0)

    def __post_init__(self) -> None:
        if not callable(self.values):
            raise TypeError(
                f"values must be a function of (params, features, target), got {type(self.values).__name__}."
            )
        given: Any = self.value_range
        if given is None:
            raise ValueError("give `value_range`, the public (lo, hi) between which one record's loss lies.")
        try:
            low, high = (float(end) for end in given)
        except (TypeError, ValueError):
            raise ValueError(f"value_range must be two numbers (lo, hi), got {given!r}.") from None
        if not (-_LARGEST <= low < high <= _LARGEST):
            raise ValueError(f"value_range must be finite with lo < hi, got ({low!r}, {high!r}).")
        object.__setattr__(self, "value_range", (low, high))
        if self.scale is None:
            raise ValueError(
                "give `scale`, how far a parameter may sensibly move: a public number, or one for each parameter, "
                "shaped like the start."
            )
        tried: Any = self.warm_start
        if isinstance(tried, bool) or not isinstance(tried, int) or tried < 0 or tried == 1:
            raise ValueError(
                f"warm_start must be 0 or a whole number of at least 2 points to try, got {tried!r}."
            )
        if self.layout is None:
            for leaf in jax.tree_util.tree_leaves(self.scale):
                _require_scales(leaf)

    @property
    def low(self) -> float:
        """lo, the least value."""
        assert self.value_range is not None
        return self.value_range[0]

    @property
    def high(self) -> float:
        """hi, the largest value."""
        assert self.value_range is not None
        return self.value_range[1]

    @property
    def value_at_zero(self) -> float:
        """A bound on the value at any parameters."""
        return self.high

    def laid_out(self, layout: PytreeLayout) -> "BlackBox":
        """The same loss of the flat vector of parameters in units of `scale`.

        Raises:
            ValueError: the scale has another structure than the parameters, or is not positive.
        """
        whole = _is_one_number(self.scale)
        flat = np.full(layout.size, float(self.scale)) if whole else _flat_scale(self.scale, layout)
        return replace(self, scale=tuple(float(one) for one in flat), layout=layout)

    def inward(self, params: Any) -> Any:
        """Flat parameters in the user's units, in units of `scale`."""
        return jnp.asarray(params) / jnp.asarray(self._scales)

    def outward(self, params: Any) -> Any:
        """The inverse of `inward`."""
        return jnp.asarray(params) * jnp.asarray(self._scales)

    def value(self, params: Any, features: Any, target: Any) -> Any:
        """The loss of one record at flat parameters, within the range; NaN where it is bad."""
        if self.host:
            with quiet_calls():
                at = np.asarray(params, np.float64)[None, :]
                return CallsOfPoints(self, at)(np.asarray(features), float(target))[0]
        return self.values_at(jnp.asarray(params)[None, :], features, target)[0]

    def values_at(
        self, points: Float[Array, "m p"], features: Float[Array, " d"], target: Float[Array, ""]
    ) -> Float[Array, " m"]:
        """The losses of one record at several points, pure JAX.

        Raises:
            TypeError: the callable is no JAX function.
        """
        if self.host:
            raise TypeError(f"the {self.name} is called on the host: it cannot be traced by JAX.")
        layout = self._laid_out
        trees = jax.vmap(lambda point: layout.unravel(self.outward(point)))(points)
        if self.vectorized:
            found = self.values(trees, features, target)
        else:
            found = jax.vmap(lambda tree: self.values(tree, features, target))(trees)
        return jnp.clip(jnp.asarray(found, float), self.low, self.high)

    def gradient(self, params: Any, features: Any, target: Any) -> NoReturn:
        """There is none.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"the {self.name} is known by its values only, so it has no gradient.")

    @property
    def _laid_out(self) -> PytreeLayout:
        if self.layout is None:
            raise ValueError(
                f"the {self.name} does not know the shape of its parameters yet: pose it with "
                "Problem.of_values(loss, start)."
            )
        return self.layout

    @property
    def _scales(self) -> NDArray[np.float64]:
        assert self._laid_out
        return np.asarray(self.scale, np.float64)

    @property
    def _identity(self) -> tuple[Any, ...]:
        scale: Any = self.scale
        if self.layout is None:
            leaves, structure = jax.tree_util.tree_flatten(scale)
            scale = (structure, tuple(np.asarray(leaf).tobytes() for leaf in leaves))
        constants = (
            self.value_range,
            scale,
            self.vectorized,
            self.host,
            self.warm_start,
            self.name,
            self.layout,
        )
        return id(self.values), id(self.example), constants

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlackBox) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


class CallsOfPoints:
    """Calls a black box on the host, one record at a time, at points fixed beforehand.

    Args:
        loss: the black box, `host=True` and laid out.
        points: (m, p), in units of its scale. Public.
    Privacy:
        What a record gets does not depend on the records before it: the arrays are read-only, they and the structure
        that holds them are made anew; the global random generators begin at a number that follows from the points
        alone, the same for every record and point; NumPy's error state and the filters of warnings are those from
        before. A failure is a NaN, for that record alone, of whatever class it is, `KeyboardInterrupt` included: only
        what a signal raises ends a run, and when a signal comes is not for a record to say, see `quiet_calls`.
    """

    def __init__(self, loss: BlackBox, points: NDArray[np.float64]) -> None:
        self._loss = loss
        flat = np.asarray(points, np.float64) * np.asarray(loss.scale, np.float64)
        layout = loss.layout
        assert layout is not None
        self._structure = layout.treedef
        self._count = len(flat)
        widths = [int(np.prod(shape, dtype=int)) for shape in layout.shapes]
        columns = np.split(flat, np.cumsum(widths)[:-1], axis=1)
        blocks = [
            _frozen(column.reshape(len(flat), *shape))
            for column, shape in zip(columns, layout.shapes, strict=True)
        ]
        self._arguments = (
            [blocks] if loss.vectorized else [[block[j] for block in blocks] for j in range(self._count)]
        )
        self._seed = zlib.crc32(flat.tobytes())
        self._state = random.Random(self._seed).getstate()
        self._generator = np.random.MT19937()

    def __call__(self, private_features: NDArray[Any], private_target: float) -> NDArray[np.float64]:
        """The values of one record at the points, within the range; NaN where they are bad."""
        private_row = _frozen(np.array(private_features, np.float64))
        private_values = np.full(self._count, np.nan)
        shape = (self._count,) if self._loss.vectorized else ()
        for j, leaves in enumerate(self._arguments):
            try:
                private_found = self.asked(
                    leaves, private_row, private_target, partial(number_of, shape=shape)
                )
                private_values[slice(None) if self._loss.vectorized else j] = private_found
            except SignalCame:
                raise
            except BaseException:
                continue  # whatever it does for one record is no business of the others
        return np.clip(private_values, self._loss.low, self._loss.high)

    def asked(
        self,
        leaves: list[Any],
        private_row: NDArray[np.float64],
        private_target: float,
        read: Callable[[Any], Any] = lambda answer: answer,
    ) -> Any:
        """What the callable answers, as `read` has it; reading may call code of the answer's class."""
        _numpy_random.set_bit_generator(self._generator)
        np.random.seed(self._seed)  # noqa: NPY002  # so that records share no state of the global generators
        random.setstate(self._state)
        # Views, since the shape of a read-only array can be changed.
        fresh = [leaf.view() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
        params = jax.tree_util.tree_unflatten(self._structure, fresh)
        with warnings.catch_warnings(), np.errstate():
            return copy_context().run(
                lambda: read(self._loss.values(params, private_row, float(private_target)))
            )

    @property
    def first_arguments(self) -> list[Any]:
        """Of the first call for a record."""
        return self._arguments[0]


class SignalCame(BaseException):
    """Around what the handler of a signal raised while a black box was called."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(raised)
        self.raised = raised


@contextmanager
def quiet_calls() -> Generator[None]:
    """Around calls of a black box: no warning leaves it, and the global random generators are as they were after.

    What the handlers of an interrupt or a termination raise is told from what the callable raises by itself.
    """
    generator, numpys, pythons = _numpy_random.get_bit_generator(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"), _marked_signals():
            warnings.simplefilter("ignore")
            yield
    except SignalCame as came:
        raise came.raised from None
    finally:
        _numpy_random.set_bit_generator(generator)
        np.random.set_state(numpys)  # noqa: NPY002
        random.setstate(pythons)


@contextmanager
def _marked_signals() -> Generator[None]:
    """What their handlers raise comes as a `SignalCame`. They run in the main thread only."""
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        handlers = {number: handler for number, handler in found.items() if callable(handler)}
    for number, handler in handlers.items():
        signal.signal(number, _marked(handler))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _marked(handler: Callable[[int, Any], Any]) -> Callable[[int, Any], None]:
    def marked(number: int, frame: Any) -> None:
        try:
            handler(number, frame)
        except BaseException as raised:
            raise SignalCame(raised) from None

    return marked


def number_of(answer: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Real numbers of this shape.

    Raises:
        TypeError: the answer is something else.
    """
    array = np.asarray(answer)
    if array.dtype.kind not in "biuf" or array.shape != shape:
        raise TypeError("not real numbers of the right shape")
    return array.astype(np.float64)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A copy that nobody can make writeable again, since bytes hold it."""
    return np.ndarray(array.shape, array.dtype, buffer=array.tobytes())


def _is_one_number(scale: Any) -> bool:
    return isinstance(scale, int | float | np.integer | np.floating) and not isinstance(scale, bool)


def _flat_scale(scale: Any, layout: PytreeLayout) -> NDArray[np.float64]:
    leaves, structure = jax.tree_util.tree_flatten(scale)
    if structure != layout.treedef or tuple(np.shape(leaf) for leaf in leaves) != layout.shapes:
        made_like_it = jax.tree_util.tree_unflatten(
            layout.treedef, [np.ones(shape) for shape in layout.shapes]
        )
        raise ValueError(
            f"scale must be one number for all parameters, or shaped like the start, got {_shaped(scale)} where the "
            f"start is {_shaped(made_like_it)}."
        )
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in leaves])


def _shaped(tree: Any) -> str:
    """A pytree in words: each leaf by its shape."""
    return str(
        jax.tree_util.tree_map(
            lambda leaf: _Word(f"array{np.shape(leaf)}" if np.ndim(leaf) else "number"), tree
        )
    )


class _Word(str):
    """Shown without quotation marks."""

    __repr__ = str.__str__


def _require_scales(scale: Any) -> None:
    numbers = np.asarray(scale)
    if numbers.dtype.kind not in "iuf" or not bool(np.all((numbers >= _SMALLEST) & (numbers <= _LARGEST))):
        raise ValueError(
            "scale must be positive and finite: how far each parameter may sensibly move, a public number or one for "
            "each parameter."
        )


# ------------------------------------------------------------------------------------------------------------
# A black box on made-up records, before anything is paid for: whether it works, keeps state, and how long
# it takes.


_TIMED_DIRECTIONS, _TIMED_CALLS, _TIMED_SECONDS = 200, 5, 0.2


def try_on_made_up_records(loss: BlackBox, start: ArrayLike, features: int) -> None:
    """Call a black box on made-up records at two points, as a run would.

    Args:
        loss: the black box, `host=True` and laid out.
        start: flat public parameters, in units of its scale.
        features: how many a record has.
    Raises:
        TypeError: it gave no number for any of them; the message says what it did with the first.
        ValueError: it did not answer the same twice for the same record.
    """
    calls = CallsOfPoints(loss, _two_points(start))
    with quiet_calls():
        records = list(_records(loss, features))
        answers = [calls(*record) for record in records]
        good = [record for record, answer in enumerate(answers) if np.all(np.isfinite(answer))]
        if not good:
            raise TypeError(
                f"the {loss.name} failed on made-up records: {_what_it_did(calls, loss, *records[0])}. It must answer "
                f"with {_wanted(loss)}; if it needs records of a certain kind, give one in `example`, made up."
            )
        again = [calls(*records[record]) for record in good]
    if not all(np.array_equal(answers[record], second) for record, second in zip(good, again, strict=True)):
        raise ValueError(
            f"the {loss.name} did not answer the same twice for the same made-up record: it keeps state, or has a "
            "random generator of its own, so that one record could move what it says of others. Make it a function of "
            "its arguments alone; `numpy.random` and `random` begin anew at each call."
        )


@lru_cache(maxsize=64)
def seconds_per_value(loss: BlackBox, features: int) -> float:
    """Roughly how long one value takes on the host, by a few calls on a made-up record; timed once for each loss.

    With several points at once it is that of one among as many as a step asks for.
    """
    layout = loss.layout
    assert layout is not None
    count = 2 * min(layout.size, _TIMED_DIRECTIONS)
    points = np.zeros((count, layout.size)) + np.linspace(-0.1, 0.1, count)[:, None]
    calls = CallsOfPoints(loss, points)
    record = next(_records(loss, features))
    with quiet_calls():
        calls(*record)
        begin, count = time.perf_counter(), 0
        while count < _TIMED_CALLS and (count == 0 or time.perf_counter() - begin < _TIMED_SECONDS):
            calls(*record)
            count += 1
        return (time.perf_counter() - begin) / (count * len(points))


def _two_points(start: ArrayLike) -> Float[NDArray[np.float64], "2 p"]:
    at = np.asarray(start, np.float64).ravel()
    return np.stack([at, at + 0.1 / np.sqrt(len(at))])


def _records(loss: BlackBox, features: int) -> Iterator[tuple[NDArray[np.float64], float]]:
    """The example, or simple rows: small numbers of both signs, zeros, ones, and whole numbers."""
    if loss.example is not None:
        yield _example(loss.example, features)
        return
    places = np.arange(1.0, features + 1.0)
    yield np.cos(places) / np.sqrt(features), 0.0
    yield np.zeros(features), 0.0
    yield np.full(features, 1.0 / np.sqrt(features)), 1.0
    yield places % 5.0, 1.0


def _example(example: Any, features: int) -> tuple[NDArray[np.float64], float]:
    try:
        row, target = example
        found = np.asarray(row, np.float64), float(target)
    except (TypeError, ValueError):
        raise ValueError(
            "example must be one made-up record: a pair of its features, numbers, and its target, a number."
        ) from None
    if found[0].shape != (features,):
        raise ValueError(
            f"example must have the features of one record, of shape ({features},), got shape {found[0].shape}."
        )
    return found


def _what_it_did(calls: CallsOfPoints, loss: BlackBox, row: NDArray[np.float64], target: float) -> str:
    """What the callable did on a made-up record, in words."""
    try:
        row = np.array(row)
        row.flags.writeable = False  # as in a run
        answer: Any = calls.asked(calls.first_arguments, row, target)
    except SignalCame:
        raise
    except BaseException as failure:
        said = str(failure).splitlines()
        return f"it raised {type(failure).__name__}{f' ({said[0]})' if said else ''}"
    shape = (2,) if loss.vectorized else ()
    try:
        found = number_of(answer, shape)
    except SignalCame:
        raise
    except BaseException:
        array = answer if isinstance(answer, np.ndarray | Array) else None
        return f"it answered with {_described(answer) if array is None else _array(array)}"
    return (
        f"it answered with {found!r}"
        if not np.all(np.isfinite(found))
        else "it gave none at the second point"
    )


def _described(answer: Any) -> str:
    return f"a {type(answer).__name__}" if answer is not None else "None"


def _array(array: Any) -> str:
    return f"an array of shape {array.shape} and type {array.dtype}"


def _wanted(loss: BlackBox) -> str:
    return "m real numbers for m points" if loss.vectorized else "one real number for a record"
