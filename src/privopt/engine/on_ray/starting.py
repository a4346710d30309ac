"""How Ray's processes are started: on the loopback interface, with files of their owner's, and only who is needed."""

import contextlib
import importlib
import operator
import os
import shutil
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from privopt.errors import ArgumentError

LOOPBACK = "127.0.0.1"
# Versions of Ray with which the tests of clusters have passed; a test holds this to the one that is installed.
TESTED = ("2.60",)
# What a cluster of our own and a connection to another's rest on that Ray does not publish, by module: it may go, or
# mean something else, in any version. What Ray documents is set in the environment and by `ray.init`, see `cluster`.
RELIED_ON: dict[str, tuple[str, ...]] = {
    "ray._private.ray_constants": ("ENABLE_RAY_CLUSTER",),
    "ray._private.node": (
        "Node.start_api_server",
        "Node.start_monitor",
        "Node.start_log_monitor",
        "Node.dead_processes",
    ),
    "ray._private.utils": ("get_dashboard_dependency_error",),
    "ray._private.services": ("find_node_ids",),
    "ray._private.worker": (
        "_global_node",
        "print_to_stdstream",
        "custom_excepthook",
        "normal_excepthook",
        "shutdown",
    ),
    "ray._raylet": ("Config.initialize", "AuthenticationTokenLoader.instance", "GcsClient"),
}
_ROOM = 32 * 2**20  # bytes for sockets, logs and settings, of which Ray writes 1 MB in a short run
_REACHED = 5.0  # seconds in which this machine answers itself
_LONGEST_PLACE = 24  # letters: the path of a socket has 107 at most, and Ray takes 63 of them
_ELSEWHERE = f"Make room, or name a folder that has some in TMPDIR, in at most {_LONGEST_PLACE} letters."


def require_tested() -> None:
    """Refuse a version of Ray with which nobody has seen that it stays on this machine, asks for tokens and is silent.

    Raises:
        ArgumentError: it is none of those tested, or lacks a name that this rests on; nothing was started or sent.
    """
    import ray

    version = str(ray.__version__)
    if ".".join(version.split(".")[:2]) not in TESTED:
        raise _other_version(f"privopt was not tested with ray {version}")
    for module, names in RELIED_ON.items():
        try:
            place = importlib.import_module(module)
        except ImportError:
            raise _other_version(f"ray {version} has no {module}") from None
        for name in names:
            try:
                operator.attrgetter(name)(place)
            except AttributeError:
                raise _other_version(f"ray {version} has no {module}.{name}") from None


def _other_version(why: str) -> ArgumentError:
    return ArgumentError(
        f"{why}, and that a cluster keeps to itself rests on how Ray works inside: install ray {' or '.join(TESTED)}, "
        "or choose another engine."
    )


def fresh_folder() -> Path:
    """A folder that only its owner can enter, in a place of a short name: sockets lie in it.

    Raises:
        ArgumentError: none can be made.
    """
    place = "/tmp"
    try:
        usual = tempfile.gettempdir()
        place = usual if len(usual) <= _LONGEST_PLACE else place
        return Path(tempfile.mkdtemp(prefix="privopt-", dir=place))
    except OSError as error:
        raise ArgumentError(
            f"no Ray cluster can be started on this machine: no folder can be made in {place!r} "
            f"({error.strerror or type(error).__name__}). {_ELSEWHERE}"
        ) from None


def require_place(folder: Path) -> None:
    """Refuse to start where Ray would try for minutes, and say nothing that helps.

    Raises:
        ArgumentError: the folder's disk has no room, or this machine cannot reach itself.
    """
    free = shutil.disk_usage(folder).free
    if free < _ROOM:
        raise ArgumentError(
            f"no Ray cluster can be started on this machine: {str(folder.parent)!r} has {free / 2**20:.0f} MB "
            f"free, and its files need {_ROOM / 2**20:.0f}. {_ELSEWHERE}"
        )
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=_REACHED).close()
    except OSError as error:
        raise ArgumentError(
            f"no Ray cluster can be started on this machine: it cannot listen on {LOOPBACK} and be reached there "
            f"({error.strerror or type(error).__name__}). Have its loopback interface up, or choose another engine."
        ) from None


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def on_loopback() -> Generator[None]:
    """Have Ray take the address that it is given: elsewhere than on a Mac it replaces 127.0.0.1 by a public one."""
    with _instead("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", False):
        yield


@contextlib.contextmanager
def nothing_besides() -> Generator[None]:
    """Have Ray start its store, its scheduler and workers alone.

    Told to leave out its dashboard it starts the process all the same, and one each that watches its logs and asks for
    more machines. Where the extra `ray[default]` is installed they would listen, some without asking for a token.
    """
    node: Any = importlib.import_module("ray._private.node")
    with contextlib.ExitStack() as stack:
        for name in ("start_api_server", "start_monitor", "start_log_monitor"):
            stack.enter_context(_instead(node.Node, name, _nothing))
        # The agents that it does need then have no server of their own, as if the extra were not there.
        stack.enter_context(
            _instead("ray._private.utils", "get_dashboard_dependency_error", lambda: ImportError())
        )
        yield


@contextlib.contextmanager
def private_files() -> Generator[None]:
    """Files that are made from here on, by processes started from here on too, are their owner's."""
    kept = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(kept)


@contextlib.contextmanager
def as_it_was() -> Generator[None]:
    """Ray puts a handler of its own for the request to end; ours stays. Its forks only start other programs."""
    in_main = threading.current_thread() is threading.main_thread()
    kept = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)  # JAX's
            yield
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, kept)


@contextlib.contextmanager
def undisturbed() -> Generator[None]:
    """Ctrl-C waits until Ray has started: halfway it leaves processes behind, and the end of this one fails in Ray."""
    in_main = threading.current_thread() is threading.main_thread()
    if (
        not in_main or signal.getsignal(signal.SIGINT) is None
    ):  # elsewhere than in Python it is not ours to change
        yield
        return
    came: list[tuple[int, Any]] = []
    kept = signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, kept)
        if came and callable(kept):
            kept(*came[-1])


@contextlib.contextmanager
def _instead(place: Any, name: str, value: Any) -> Generator[None]:
    """Something of Ray's replaced, in a module or a class that has it.

    Raises:
        ArgumentError: it is not there, so that what it would do is not prevented.
    """
    place = importlib.import_module(place) if isinstance(place, str) else place
    if not hasattr(place, name):
        raise _other_version(f"this version of ray has no {name}")
    kept: Callable[..., Any] | bool = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, kept)


def _nothing(*_: Any, **__: Any) -> None:
    pass
