"""Whether a cluster of somebody else's lets us in, and nobody who has no token: asked before anything is sent there."""

import importlib
import os
import subprocess
import sys

from privopt.engine.on_ray.reach import why_unreached
from privopt.errors import ArgumentError

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
    """Refuse an address at which nobody listens, for which Ray would wait.

    Raises:
        ArgumentError: likewise.
    """
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
    """Whether a cluster refuses who asks with the token of an environment.

    Raises:
        ArgumentError: it does not answer.
    """
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
