"""The cluster of a run: one that is started on this machine, for us alone, or one that is there already.

Ray as shipped listens on all interfaces, makes folders that everybody may write to and leaves its token in a file. Here
a local cluster listens on 127.0.0.1, asks for a token that stands in the environment of its processes and nowhere else,
and keeps what it writes in a folder that only its owner can enter, removed at the end.
"""

import atexit
import contextlib
import importlib
import os
import secrets
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from privopt.engine.on_ray.starting import (
    LOOPBACK,
    TESTED,
    UNENDED,
    Reach,
    admitted,
    as_it_was,
    check_address,
    cores,
    fresh_folder,
    nothing_besides,
    on_loopback,
    private_files,
    require_node,
    require_place,
    require_tested,
    undisturbed,
    without_tokens,
)
from privopt.errors import ArgumentError, PrivoptError
from privopt.process import this_process

STORE_BYTES = 96 * 2**20  # of the object store, through which only points and sums of many numbers travel
_END_SECONDS = 30.0  # that the end of a connection to others' cluster may take
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_automatic_object_spilling_enabled": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_worker_niceness": "0",  # they are the run: no less urgent than this process
    "RAY_worker_register_timeout_seconds": "600",  # on a machine that is busy with something else
}


class Machine(NamedTuple):
    """A machine of the cluster."""

    node: str
    cores: int


class Cluster:
    """A connection to a cluster, shared by all engines of this process: Ray allows for one.

    Made by `joined`, and ended with as many calls of `close`.

    Attributes:
        address: HOST:PORT of one that was there already; None for our own.
        machines: its machines when it was joined.
        has_tokens: whether it asks for tokens.
    """

    def __init__(self, address: str | None, *, trust_network: bool) -> None:
        self.address = address
        self.has_tokens = True
        self._reach = Reach({})
        self._users = 0
        self._guardian: Guardian | None = None
        self._kept_environment: dict[str, str | None] = {}
        self._owner = this_process()
        self._kept_voice = _worker_module().print_to_stdstream
        if address is None:
            self._start()
        else:
            self._connect(address, trust_network=trust_network)
        try:
            self.machines = self._machines()
            if address is not None:
                name = f"the Ray cluster at {address}"
                self._reach = Reach(
                    {f"the head of {name}": address, f"this machine's node of {name}": _own_node()}
                )
        except BaseException:
            self._end()
            raise
        self._kept_voice = _silenced()
        atexit.register(self._end)

    @classmethod
    def joined(cls, address: str | None, *, trust_network: bool = False) -> "Cluster":
        """The cluster at an address, or our own, which is started where it is not running yet.

        Args:
            address: HOST:PORT; None for our own.
            trust_network: whether to use one that asks for no tokens.
        Raises:
            ArgumentError: Ray is not installed, or in a version that no test has passed with; the address is none, the
                cluster cannot be reached, or asks for no tokens; or this process is connected to another one.
        """
        try:
            import ray  # late: an extra
        except ImportError:
            raise ArgumentError(
                "engine='ray' needs Ray, which is not installed: pip install 'privopt[ray]', or choose another engine."
            ) from None

        require_tested()
        if address is not None:
            check_address(address)
        if _Open.cluster is not None and _Open.cluster._owner == this_process() and ray.is_initialized():
            if _Open.cluster.address != address:
                raise ArgumentError(
                    "this process is connected to another Ray cluster, and Ray allows for one: close that engine first."
                )
            if not _Open.cluster.has_tokens and not trust_network:
                raise without_tokens(str(address))
        elif ray.is_initialized():
            raise ArgumentError(
                "this process is connected to a Ray cluster that privopt did not open: call ray.shutdown() first, and "
                "give its address (and its token in RAY_AUTH_TOKEN) if the records shall be held there."
            )
        else:
            if _Open.cluster is not None:  # somebody has shut Ray down
                _Open.cluster._end()
            _Open.cluster = cls(address, trust_network=trust_network)
        _Open.cluster._users += 1
        return _Open.cluster

    def close(self) -> None:
        """One engine less; the last one ends our cluster, or the connection to another's."""
        self._users -= 1
        if self._users <= 0:
            self._end()

    @property
    def lost(self) -> str | None:
        """What of the cluster is gone without which no worker answers, in words; None for nothing."""
        if self.address is not None:
            return self._reach.gone
        node = _worker_module()._global_node
        dead = [] if node is None else node.dead_processes()
        return next((f"this run's own Ray cluster has lost its process {name!r}" for name, _ in dead), None)

    @property
    def described(self) -> str:
        """Where it is and who can reach it, in a sentence for reports."""
        if self.address is None:
            return f"a Ray cluster of this machine's own, on {LOOPBACK}, with a token"
        if self.has_tokens:
            return f"the Ray cluster at {self.address}, with tokens"
        return (
            f"the Ray cluster at {self.address}, WITHOUT tokens: the network was declared trusted, and whoever reaches "
            "it can read the records and the sums before noise"
        )

    def _start(self) -> None:
        """Start our own: on the loopback interface, with a fresh token, in a folder of our own."""
        import ray

        folder = fresh_folder()
        try:
            self._guardian = Guardian(folder)
            require_place(folder)
            self._set_environment(
                {
                    **_QUIET,
                    "RAY_AUTH_MODE": "token",
                    "RAY_AUTH_TOKEN": secrets.token_hex(32),
                    "RAY_AUTH_TOKEN_PATH": None,
                    "RAY_USE_TLS": None,  # of another cluster: what stays on this machine needs no certificates
                }
            )
            with undisturbed(), on_loopback(), nothing_besides(), private_files(), as_it_was():
                ray.init(
                    address="local",
                    num_cpus=cores(),
                    _node_ip_address=LOOPBACK,
                    _temp_dir=str(folder / "r"),
                    include_dashboard=False,
                    log_to_driver=False,
                    configure_logging=False,
                    object_store_memory=STORE_BYTES,
                    namespace="privopt",
                )
            # Its servers listen on the loopback interface exactly where the node has that address.
            if any(node["NodeManagerAddress"] != LOOPBACK for node in ray.nodes()):
                raise PrivoptError(
                    f"this version of Ray does not stay on {LOOPBACK}: install ray {' or '.join(TESTED)}."
                )
        except PrivoptError:
            self._end()
            raise
        except Exception as error:
            self._end()
            raise ArgumentError(
                f"no Ray cluster could be started on this machine ({type(error).__name__}): check that memory is left, "
                f"and room in {str(folder.parent)!r} and /dev/shm, and that processes may be started and listen on "
                f"{LOOPBACK}; or choose another engine."
            ) from error
        except BaseException:
            self._end()
            raise

    def _connect(self, address: str, *, trust_network: bool) -> None:
        import ray

        self.has_tokens = admitted(address, trust_network=trust_network)
        require_node(address)
        self._set_environment({**_QUIET, "RAY_AUTH_MODE": "token" if self.has_tokens else "disabled"})
        try:
            with undisturbed(), private_files(), as_it_was():
                ray.init(address=address, log_to_driver=False, configure_logging=False, namespace="privopt")
        except Exception as error:
            self._end()
            raise ArgumentError(
                f"the Ray cluster at {address} does not let us in ({type(error).__name__}): check the address, the "
                "token, that this machine is one of its own, and that it runs the same version of Ray."
            ) from None
        except BaseException:
            self._end()
            raise

    def _machines(self) -> list[Machine]:
        import ray

        alive = [
            Machine(node["NodeID"], int(node["Resources"].get("CPU", 0)))
            for node in sorted(ray.nodes(), key=lambda node: node["NodeID"])
            if node["Alive"]
        ]
        working = [machine for machine in alive if machine.cores]  # a head often lends none
        if not working:
            raise ArgumentError(
                f"the Ray cluster at {self.address} has no machine that lends cores to workers."
            )
        return working

    def _set_environment(self, values: dict[str, str | None]) -> None:
        """Ray reads its settings from the environment, also where it was imported before."""
        raylet: Any = importlib.import_module("ray._raylet")
        for name, value in values.items():
            self._kept_environment.setdefault(name, os.environ.get(name))
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()

    def _end(self) -> None:
        """End the connection, and our own cluster with its folder; a second time nothing is left to do."""
        if this_process() != self._owner:  # a forked child: its parent's cluster is none of its business
            return
        if self._guardian is not None:
            self._guardian.end()
        try:
            if _Open.cluster in (None, self):
                try:
                    if self.address is None:
                        _shut_down()
                    else:
                        _shut_down_in_time()
                finally:
                    _Open.cluster = None
                    _worker_module().print_to_stdstream = self._kept_voice
        finally:
            kept, self._kept_environment = self._kept_environment, {}
            if kept:
                self._set_environment(kept)
                self._kept_environment = {}
            if self._guardian is not None:
                self._guardian.wait()
            self._guardian = None
            atexit.unregister(self._end)


def _shut_down() -> None:
    """End the connection; once more where Ctrl-C falls into it, since Ray at its own end would make its folder anew."""
    import ray

    try:
        with contextlib.suppress(Exception):
            ray.shutdown()
    except BaseException:
        with contextlib.suppress(Exception):
            ray.shutdown()
        raise


def _shut_down_in_time() -> None:
    """End a connection to others' cluster: where its head is cut off Ray waits for minutes, here and as Python ends."""
    ending = threading.Thread(target=_shut_down, name=UNENDED, daemon=True)
    ending.start()
    ending.join(_END_SECONDS)
    if ending.is_alive():
        atexit.unregister(_worker_module().shutdown)


def _own_node() -> str:
    """HOST:PORT of the node through which this process is connected."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    node = next(node for node in ray.nodes() if node["NodeID"] == own)
    return f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"


def _worker_module() -> Any:
    return importlib.import_module("ray._private.worker")


def _silenced() -> Any:
    """Keep Ray from printing what happens to workers, which would stand between what a command prints.

    It also sends the place where this process fails to the cluster; not here.
    """
    module = _worker_module()
    if sys.excepthook is module.custom_excepthook:
        sys.excepthook = module.normal_excepthook
    kept, module.print_to_stdstream = module.print_to_stdstream, lambda *_, **__: None
    return kept


class _Open:
    """The cluster of this process."""

    cluster: Cluster | None = None


# ---- The guardian: a small process that outlives whoever started a cluster and leaves nothing of it --------
# Ray's processes end with the one that started them, mostly: where it is killed or interrupted while they start, some
# stay, and so does the folder. The guardian waits until it is told, or until that process is gone, kills whoever writes
# into the folder, and removes it.
_GRACE = 1.0  # seconds in which processes may end by themselves where it is told to end them
_SECONDS = 10.0  # in which whoever is killed is gone
# Where a Python finds its libraries, without which some do not start. Of the environment it is told nothing else.
_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")

# Of the cluster is who was started with an option in the folder (`--log_dir=FOLDER/r`), sends its output there, or has
# given itself a name of Ray's and a file there open. A child that the starting process has forked has its open files
# too, and none of these; nor has who only looks at a file there, as `less` does.
_PROGRAM = f"""
import os, select, shutil, signal, sys, time
folder, parent = sys.argv[1], os.getppid()

def belongs(process):
    with open(f"{{process}}/cmdline", "rb") as file:
        words = file.read()
    inside = b"=" + os.fsencode(folder) + b"/"
    if any(word.startswith(b"--") and inside in word for word in words.split(b"\\0")):
        return True
    numbers = os.listdir(f"{{process}}/fd") if words.startswith(b"ray::") else "12"
    return any(os.readlink(f"{{process}}/fd/{{number}}").startswith(folder + "/") for number in numbers)

def members():
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdecimal() and int(name) not in (parent, os.getpid()):
            try:
                if belongs(f"/proc/{{name}}"):
                    yield int(name)
            except OSError:  # it is gone by now, or somebody else's
                pass

def gone():
    for member in set(members()):
        try:
            os.kill(member, signal.SIGKILL)
        except OSError:
            pass
    return not set(members())

os.write(1, b".")
while os.getppid() == parent and not select.select([0], [], [], 0.5)[0]:
    pass
grace = time.monotonic() + {_GRACE}
while os.getppid() == parent and set(members()) and time.monotonic() < grace:
    time.sleep(0.05)
end = time.monotonic() + {_SECONDS}
while not gone() and time.monotonic() < end:
    time.sleep(0.02)
while os.path.exists(folder) and time.monotonic() < end:
    shutil.rmtree(folder, ignore_errors=True)
    time.sleep(0.02)
"""


class Guardian:
    """Ends what is left of a cluster, and its folder, a second after it is told to, or when this process is gone.

    It has neither a token nor anything that travels, takes some 10 MB, and is in a session of its own, so that a
    signal from the terminal does not reach it.

    Args:
        folder: of the cluster, in which nothing else lies; removed where there is no guardian for it.
    Raises:
        PrivoptError: it did not start.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _LIBRARIES if name in os.environ},
                cwd="/",
                start_new_session=True,
            )
            assert self._process.stdout is not None
            with self._process.stdout as said:
                is_there = said.read(1)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if not is_there:
            self.wait()
            raise PrivoptError(
                f"no process could be started to clear up after the Ray cluster ({sys.executable!r} ended at once), so "
                "the cluster was not started: run this with a Python that starts by itself."
            )

    def end(self) -> None:
        """Have it end the cluster; a second time nothing is left to do."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                # A child that was forked meanwhile has the pipe as well, which is not at its end then.
                self._process.stdin.write(b"end")
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def wait(self) -> None:
        """Wait until nothing is left."""
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2 * _SECONDS)
        # Where it was killed, or Ray has written there once more:
        shutil.rmtree(self.folder, ignore_errors=True)
