"""How Ray's processes are started: on the loopback interface, with files of their owner's, and only who is needed."""

import contextlib
import importlib
import operator
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NoReturn

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
    """Something of Ray's replaced, in a module or a class that has it."""
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


# ------------------------------------------------------------------------------------------------------------
# Whether a cluster of somebody else's lets us in, and nobody who has no token: asked before anything is
# sent there.


_LAST_PORT = 65_535
_PROBE_SECONDS = 30
_LISTENER_SECONDS = 5
_REFUSED, _ANSWERED = 10, 11

# Asks a cluster for something small. In another process, which can leave out our token, and imports nothing from the
# folder that it runs in.
_PROBE = f"""
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"privopt", None, timeout=10)
except AuthenticationError:
    sys.exit({_REFUSED})
sys.exit({_ANSWERED})
"""


def check_address(address: str) -> None:
    """Refuse what is no address of a head.

    Raises:
        ArgumentError: it is none.
    """
    host, _, port = address.rpartition(":")
    if "://" in address:
        raise ArgumentError(
            f"address must be HOST:PORT of a cluster's head, got {address!r}: Ray Client is not used, since its proxy "
            "would hold what belongs to this process. Run this command on a machine of the cluster's network."
        )
    if not host or not port.isdecimal() or not 0 < int(port) <= _LAST_PORT:
        raise ArgumentError(f"address must be HOST:PORT of a cluster's head, got {address!r}.")


def without_tokens(address: str) -> ArgumentError:
    """The refusal of a cluster that lets everybody in."""
    return ArgumentError(
        f"the Ray cluster at {address} asks for no tokens, so whoever reaches it can read the records: start it with "
        "RAY_AUTH_MODE=token, or say that you trust everybody on its network (--trust-network), which the report says."
    )


def admitted(address: str, *, trust_network: bool) -> bool:
    """Whether a cluster that lets us in asks for tokens.

    Args:
        address: of its head.
        trust_network: whether one that asks for none may be used.
    Raises:
        ArgumentError: it cannot be reached, asks for no tokens, or for another than ours.
    """
    _require_listener(address)
    has_tokens = asks_for_tokens(address)
    if not has_tokens and not trust_network:
        raise without_tokens(address)
    if has_tokens and not (os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")):
        raise ArgumentError(
            f"the Ray cluster at {address} asks for a token: set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that "
            "only you can read."
        )
    if has_tokens and _refused(address, {**os.environ, "RAY_AUTH_MODE": "token"}):
        raise ArgumentError(
            f"the Ray cluster at {address} does not accept our token: set RAY_AUTH_TOKEN to its own."
        )
    return has_tokens


def require_node(address: str) -> None:
    """Refuse to join from a machine on which no node of Ray runs, for which Ray itself would wait a minute.

    Raises:
        ArgumentError: this is one.
    """
    services = importlib.import_module("ray._private.services")
    if not services.find_node_ids():
        raise ArgumentError(
            f"this machine is none of the Ray cluster's at {address}: run this command on one of them, or make this "
            f"one of them, which lends no cores (ray start --address {address} --num-cpus 0)."
        )


def _require_listener(address: str) -> None:
    """Refuse an address at which nobody listens, for which Ray would wait."""
    if (why := why_unreached(address, _LISTENER_SECONDS)) is not None:
        raise ArgumentError(
            f"the Ray cluster at {address} cannot be reached ({why}): check the address, and that its head runs."
        )


def asks_for_tokens(address: str) -> bool:
    """Whether a cluster refuses who has no token.

    Raises:
        ArgumentError: it does not answer.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH_TOKEN")}
    return _refused(address, {**environment, "RAY_AUTH_MODE": "disabled"})


def _refused(address: str, environment: dict[str, str]) -> bool:
    """Whether a cluster refuses who asks with the token of an environment."""
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE, address],
            env=environment,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        asked = None
    if asked not in (_REFUSED, _ANSWERED):
        raise ArgumentError(
            f"the Ray cluster at {address} cannot be reached: check the address, that it runs, and, where it encrypts, "
            "that RAY_USE_TLS and RAY_TLS_... name certificates that it accepts."
        )
    return asked == _REFUSED


# ------------------------------------------------------------------------------------------------------------
# The servers of others' cluster on which a run rests: whether they can be reached while answers are waited
# for.
# Ray ends this process, without a word on what was charged, a minute after it has lost the head's server of facts; and
# where this machine's own node is gone it makes no worker anew, and waits.


SILENCE = 30.0  # seconds out of reach after which a server counts as gone: it may have started anew before
_LOOK = 3.0  # seconds between looks
_PATIENCE = 2.0  # seconds that a server has to accept

UNENDED = "a connection to Ray that does not end"  # name of the thread that waits for it


class Reach:
    """Servers that are looked at.

    Args:
        servers: HOST:PORT of each, by what it is called.
    """

    def __init__(self, servers: Mapping[str, str]) -> None:
        self._servers = servers
        self._looked = time.monotonic()
        self._since: dict[str, float] = {}  # when one was first found out of reach, of those that still are

    @property
    def gone(self) -> str | None:
        """Which server all looks have missed for `SILENCE` seconds, in words; None for none."""
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            missed = [name for name, where in self._servers.items() if why_unreached(where, _PATIENCE)]
            self._since = {name: self._since.get(name, now) for name in missed}
            self._looked = time.monotonic()
        gone = next((name for name, since in self._since.items() if now - since >= SILENCE), None)
        return None if gone is None else f"{gone} has been out of reach for {SILENCE:.0f} seconds"


def why_unreached(address: str, seconds: float) -> str | None:
    """Why nobody is reached at HOST:PORT, in a few words; None where somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
    except (OSError, OverflowError, UnicodeError) as error:
        return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
    return None


def leave(code: int) -> NoReturn:
    """End this process with an exit code; without Python's own where Ray still waits, which would crash."""
    if any(each.name == UNENDED for each in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
