"""The tables of docs/benchmarks-users.md, rendered from the JSON lines."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import users
from benchmarks.results import Record, select
from benchmarks.users_means import WAYS

HELD_HEAD = (
    "data",
    "epsilon",
    "users x median records",
    "zero",
    "peers given",
    "peers, tuned here",
    "default",
)


def thousandths(record: Record | None) -> str:
    """An excess x 1000 with its standard error."""
    if record is None:
        return ""
    if "refused" in record:
        return "refused"
    error = record.get("excess_error")
    spread = "" if error is None else f" ± {1000.0 * error:.1f}"
    return f"{1000.0 * record['excess']:.1f}{spread}"


def one(records: Sequence[Record], **fields: Any) -> Record | None:
    """The record with these values, if there is one."""
    found = select(records, benchmark="users", **fields)
    return found[0] if found else None


def cells(records: Sequence[Record], what: str) -> list[tuple[str, float]]:
    """The data and epsilon of a table's cells, in the order in which they were measured."""
    found = [(record["data"], record["epsilon"]) for record in select(records, benchmark="users", what=what)]
    return list(dict.fromkeys(found))


def held_out_rows(records: Sequence[Record]) -> list[list[str]]:
    """The default beside the peers."""
    rows: list[list[str]] = []
    for data, epsilon in cells(records, users.HELD):
        own = one(records, what=users.HELD, data=data, epsilon=epsilon, method=users.DEFAULT)
        peer = one(records, what=users.PEERS, data=data, epsilon=epsilon)
        given = users.ISSUE_PEERS.get((data, epsilon))
        if own is not None:
            rows.append(
                [
                    data,
                    f"{epsilon:g}",
                    f"{own['users']} x {own['median_records']:g}",
                    f"{1000.0 * own['zero_excess']:.0f}",
                    "" if given is None else f"{given:g}",
                    thousandths(peer),
                    thousandths(own),
                ]
            )
    return rows


def methods_head(records: Sequence[Record], what: str) -> list[str]:
    """One column a method that was run in a table."""
    run = {record["method"] for record in select(records, benchmark="users", what=what)}
    return ["data", "epsilon", *(name for name in users.METHODS if name in run)]


def methods_rows(records: Sequence[Record], what: str) -> list[list[str]]:
    """Every method in every cell of a table."""
    names = methods_head(records, what)[2:]
    return [
        [
            data,
            f"{epsilon:g}",
            *(
                thousandths(one(records, what=what, data=data, epsilon=epsilon, method=name))
                for name in names
            ),
        ]
        for data, epsilon in cells(records, what)
    ]


def peer_rows(records: Sequence[Record]) -> list[list[str]]:
    """The oracle's choices."""
    rows: list[list[str]] = []
    for record in select(records, benchmark="users", what=users.PEERS):
        for peer, found in record["oracle"].items():
            settings = f"T = {found['rounds']}, clip {found['clip']:g}, step {found['step']:g}"
            local = f", local step {found['local_step']:g}" if peer == "fedavg" else ""
            averaged = ", averaged" if found["averaged"] else ""
            rows.append(
                [
                    record["data"],
                    f"{record['epsilon']:g}",
                    peer,
                    thousandths(found),
                    f"{settings}{local}{averaged}",
                ]
            )
    return rows


def means_rows(records: Sequence[Record]) -> list[list[str]]:
    """The error of every mean."""
    rows: list[list[str]] = []
    for data, epsilon in cells(records, users.MEANS):
        row = [data]
        for way in WAYS:
            found = one(records, what=users.MEANS, data=data, epsilon=epsilon, method=way)
            row.append(_error(found))
        rows.append(row)
    return rows


def _error(record: Record | None) -> str:
    if record is None:
        return ""
    if "refused" in record:
        return "refused"
    fell = sum(count for status, count in record["statuses"].items() if status != "finished")
    return f"{record['error']:.3g}" + (f" ({fell} of {record['seeds']} fell back)" if fell else "")


def time_rows(records: Sequence[Record]) -> list[list[str]]:
    """What fits took."""
    return [
        [
            record["data"],
            record["method"],
            str(record["releases"]),
            f"{record['fit_s']:.1f}",
            f"{record['processor_s']:.1f}",
            f"{record['arrays_mb']:.0f}",
            f"{record['memory_added_mb']:.0f}",
        ]
        for record in select(records, benchmark="users", what=users.TIME)
    ]


TIME_HEAD = ("data", "fit", "releases", "seconds", "processor seconds", "MB of arrays", "MB added")
PEERS_HEAD = ("data", "epsilon", "peer", "excess", "settings")
MEANS_HEAD = ("points", *WAYS)

Rows = Callable[[Sequence[Record]], list[list[str]]]
TABLES: Mapping[str, tuple[Callable[[Sequence[Record]], Sequence[str]], Rows]] = {
    "users-held-out": (lambda records: HELD_HEAD, held_out_rows),
    "users-peers": (lambda records: PEERS_HEAD, peer_rows),
    "users-means": (lambda records: MEANS_HEAD, means_rows),
    "users-time": (lambda records: TIME_HEAD, time_rows),
    **{
        f"users-methods-{what}": (
            lambda records, what=what: methods_head(records, what),
            lambda records, what=what: methods_rows(records, what),
        )
        for what in (users.HELD, users.LOSSES, users.SYNTHETIC, users.BUDGETS, users.RECORDS)
    },
}
