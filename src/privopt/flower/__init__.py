"""Federated private optimization with Flower: one node is one person, and keeps their records.

`UserStrategy` runs a solver of the library at the server, `client_app` answers it at the nodes, and `InProcessGrid`
puts both into one process, for trying things out. Needs the extra: `pip install 'privopt[flower]'`.
"""

import importlib.util

if importlib.util.find_spec("flwr") is None:
    raise ImportError("privopt.flower needs Flower, which is not installed: pip install 'privopt[flower]'.")

from privopt.flower.client import InProcessGrid, client_app
from privopt.flower.strategy import UserResult, UserStrategy

__all__ = ["InProcessGrid", "UserResult", "UserStrategy", "client_app"]
