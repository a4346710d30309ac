"""The engine on Ray: the bits of one process, whoever holds the parts, dies or is late; and nobody else gets in."""

import dataclasses
import functools
import itertools
import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from tests.contracts.cases import BUDGET, CASES, as_units, toy_arrays
from tests.contracts.cases import N as TOY_N
from tests.contracts.queries import EVERY_QUERY, D, is_of_codes
from tests.support.file_records import FileRecords

from privopt import LogisticRegression
from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.data import blocks
from privopt.data.participants import draw_groups
from privopt.data.places import DealtPlaces, GivenPlaces, Stretch
from privopt.data.record_source import ArrayRecords, Description, RecordBlock
from privopt.data.rows import take_rows
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.parts import ROUND, ExactSum, shown_by
from privopt.engine.placement import Placement
from privopt.engine.reference import group_ranges
from privopt.errors import ArgumentError, DataUnavailable
from privopt.ledger.events import FixedSize, Poisson
from privopt.ledger.ledger import Ledger
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.public import Public, Relation
from privopt.queries.base import ArgminQuery, MeanQuery, PassQuery
from privopt.queries.minimisers import PerturbedMinimiser
from privopt.queries.slopes import ClippedGradient

ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")

from privopt.engine.on_ray import cluster as cluster_module  # noqa: E402
from privopt.engine.on_ray import engine as engine_module  # noqa: E402
from privopt.engine.on_ray import starting  # noqa: E402
from privopt.engine.on_ray.cluster import Cluster  # noqa: E402
from privopt.engine.on_ray.engine import RayEngine, open_on_ray  # noqa: E402
from privopt.engine.on_ray.layout import cut, lay_out, read_part  # noqa: E402
from privopt.engine.on_ray.shard import (  # noqa: E402
    SOURCE,
    Failure,
    Preparation,
    Shard,
    question_of,
    total_of,
    warm,
)

N = 150
SMALL = 32  # units of a part
SUMS = {name: query for name, query in EVERY_QUERY.items() if isinstance(query, MeanQuery)}
QUERY = ClippedGradient(loss=losses.logistic, at=np.linspace(-1, 2, D), clip=0.3)
LAYOUTS = ("dense", "sparse", "int8")


@pytest.fixture(autouse=True, scope="module")
def _small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, double_precision():
        patch.setattr("privopt.engine.parts.PART_UNITS", SMALL)
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One for all tests; engines that join it and close leave it standing."""
    joined = Cluster.joined(None)
    yield joined
    joined.close()


def records(layout: str, relation: str = "replace-one") -> tuple[ArrayRecords, Description]:
    rng = np.random.default_rng(1)
    features: Any = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.7)
    features[3], features[40], features[70] = np.nan, 1e200, 0.0
    targets = rng.integers(0, 2, N)
    rows = sparse.csr_array(features) if "sparse" in layout else features
    n = None if relation == "replace-one" else N + 7
    storage = layout if layout == "int8" else "float32"
    about = Description(
        row_bound=1.5, classes=(0, 1), max_records_per_user=2, relation=relation, n=n, storage=storage
    )
    return ArrayRecords(rows, targets), about


def in_memory(source: ArrayRecords, about: Description) -> InProcessEngine:
    private = source._private
    return InProcessEngine(
        Units.from_arrays(
            private.private_features,
            private.private_targets,
            groups=private.private_keys,
            noise=NoiseSource(1),
            **about.arguments(),
        )
    )


def opened(
    source: Any, about: Description, workers: int, *, retries: int = 3, patience: float = 60.0
) -> RayEngine:
    placement = Placement(engine="ray", workers=workers, retries=retries)
    return open_on_ray(source, about, placement, noise=NoiseSource(1), patience=patience)


class OpenedAsAsked(dict[int, RayEngine]):
    """Engines on dense records by their number of workers, which take seconds to start."""

    def __missing__(self, workers: int) -> RayEngine:
        engine = self[workers] = opened(*records("dense"), workers)
        return engine


@pytest.fixture(scope="module")
def engines(cluster: Cluster) -> Iterator[dict[int, RayEngine]]:
    """The same dense records with as many workers as a test asks for."""
    made = OpenedAsAsked()
    yield made
    for engine in made.values():
        engine.close()


def pids_of(engine: RayEngine) -> list[int]:
    return [
        ray.get(worker.actor.__ray_call__.remote(lambda _: os.getpid())) for worker in engine._fleet.workers
    ]


# The parts of a worker, without a cluster: a `Shard` is what an actor runs.


@functools.cache
def shards(layout: str, relation: str, workers: int) -> tuple[Any, list[Shard]]:
    source, about = records(layout, relation)
    layout_of = lay_out(source, about, NoiseSource(1))
    made = [Shard(source, about, layout_of.public, plans, 1) for plans in cut(layout_of.plans, workers)]
    assert [shard.load(part) for shard in made for part in shard._plans] == [None] * len(layout_of.plans)
    return layout_of, made


def sum_of(query: MeanQuery, layout: str, relation: str, workers: int, order: Callable[[Any], Any]) -> bytes:
    _, made = shards(layout, relation, workers)
    question = pickle.loads(pickle.dumps(question_of(query)))
    answers = [
        shard.answer(Preparation([], []), SOURCE, question, dict.fromkeys(order(list(shard._plans))))
        for shard in order(made)
    ]
    assert not any(isinstance(answer, Failure) for answer in answers)
    return np.asarray(total_of(answers).value(question.radius)).tobytes()


@pytest.mark.at_once("dense-add-or-remove-one", "int8-add-or-remove-one")
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_have_the_bits_of_one_process_however_parts_are_dealt_out(layout: str, relation: str) -> None:
    memory = in_memory(*records(layout, relation))
    assert shards(layout, relation, 1)[0].public == memory.public
    for workers, order in itertools.product((1, 2, 3, 8), (list, lambda items: items[::-1])):
        found = sum_of(QUERY, layout, relation, workers, order)
        assert found == memory.clipped_sum(QUERY).tobytes()


def _asked(name: str, layout: str) -> bool:
    query = SUMS[name]
    return not is_of_codes(query) and (layout, name) != ("sparse", "magnitudes of columns")


@pytest.mark.audit
@pytest.mark.parametrize(
    ("layout", "name"), [(lay, name) for lay in LAYOUTS[:2] for name in SUMS if _asked(name, lay)]
)
def test_every_query_has_the_bits_of_one_process(layout: str, name: str) -> None:
    memory, query = in_memory(*records(layout)), SUMS[name]
    if np.isinf(float(query.radius())):
        pytest.skip("no grid, see `test_without_privacy_the_order_is_that_of_the_parts`")
    try:
        expected = memory.clipped_sum(query).tobytes()
    except ValueError:
        pytest.skip("not of such rows")
    for workers in (1, 2, 8):
        assert sum_of(query, layout, "replace-one", workers, lambda items: items[::-1]) == expected


def test_each_part_holds_the_rows_that_memory_holds() -> None:
    for layout in LAYOUTS:
        source, about = records(layout)
        layout_of, memory = lay_out(source, about, NoiseSource(1)), in_memory(source, about)
        for plan, part in zip(layout_of.plans, memory._parts, strict=True):
            found, expected = read_part(source, about, layout_of.public, plan), part.units
            assert (found.public, found.first) == (expected.public, expected.first)
            for name in ("targets", "norms", "present"):
                np.testing.assert_array_equal(
                    getattr(found, f"private_{name}"), getattr(expected, f"private_{name}")
                )
            every = np.arange(len(found.private_targets))
            dense = [take_rows(units.private_features, every) for units in (found, expected)]
            np.testing.assert_array_equal(*dense)


def test_an_error_of_a_worker_names_its_kind_and_the_part_alone() -> None:
    source, about = records("dense")
    layout_of = lay_out(source, about, None)
    shard = Shard(source, about, layout_of.public, layout_of.plans, 1)
    assert shard.load(3) is None
    secret = np.full((2, 2), 12345.678)
    assert shard.answer(Preparation([], []), SOURCE, (secret,), {3: None}) == Failure("AttributeError", 3)
    assert shard.load(99) == Failure("KeyError", 99)
    assert shard.combine(ExactSum.of_part(np.ones(2), 1.0), Failure("KeyError", 7)) == Failure("KeyError", 7)


@pytest.mark.parametrize(
    "layout", ["dense", *(pytest.param(later, marks=pytest.mark.audit) for later in LAYOUTS[1:])]
)
def test_a_worker_sums_over_records_of_its_format_while_it_reads(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, about = records(layout)
    summed: list[Any] = []
    whole = InProcessEngine.clipped_sum

    def noted(engine: InProcessEngine, query: MeanQuery) -> Any:
        found = whole(engine, query)
        if (
            threading.current_thread() is threading.main_thread()
        ):  # else a shard of another test that still warms
            summed.append((engine.units, found))
        return found

    monkeypatch.setattr(InProcessEngine, "clipped_sum", noted)
    warm(source.width, source.is_sparse, source.by_user, about)
    ((units, total),) = summed
    real = in_memory(source, about).units
    assert type(units.private_features) is type(real.private_features)
    assert (units.private_offsets is None) == (real.private_offsets is None)
    assert not np.any(total)  # nothing of anybody is in it
    warm(-1, False, False, about)  # what fails here fails where it is asked for


def test_no_records_are_one_part_of_nobody() -> None:
    source = ArrayRecords(np.zeros((0, D)), np.zeros(0))
    about = Description(row_bound=1.0, classes=(0, 1), relation="add-or-remove-one", n=10)
    layout_of = lay_out(source, about, None)
    assert [(plan.units, plan.first) for plan in layout_of.plans] == [(0, 0)]
    assert read_part(source, about, layout_of.public, layout_of.plans[0]).private_count == 0


@pytest.mark.audit
def test_where_ray_is_not_installed_every_module_can_be_read() -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "import importlib, pkgutil, privopt.engine.on_ray as room\n"
        "for module in pkgutil.iter_modules(room.__path__, room.__name__ + '.'): importlib.import_module(module.name)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_cluster_that_does_not_start_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cluster_module, "fresh_folder", lambda: tmp_path)
    monkeypatch.setattr(ray, "init", _no_start)
    if ray.is_initialized():
        pytest.skip("this process' cluster is in use: another order of the tests")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ArgumentError, match=r"could be started on this machine \(RuntimeError\): check that"):
        Cluster(None, trust_network=False)
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN" not in os.environ
    assert not tmp_path.exists()


def _no_start(**_: Any) -> None:
    raise RuntimeError("no start")


# On a cluster.


def test_the_cluster_is_ours_alone(cluster: Cluster) -> None:
    assert cluster._guardian is not None
    folder = cluster._guardian.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    token = os.environ["RAY_AUTH_TOKEN"]
    assert len(token) == 64
    assert os.environ["RAY_AUTH_MODE"] == "token"
    listening = []
    for process in psutil.Process().children(recursive=True):
        try:
            assert token not in " ".join(process.cmdline())
            listening += [c.laddr for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        except psutil.NoSuchProcess:
            continue
    mine = psutil.Process().net_connections("tcp")
    listening += [c.laddr for c in mine if c.status == psutil.CONN_LISTEN]
    assert len(listening) >= 3
    assert {address.ip for address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}
    shared = Path("/dev/shm")
    assert not shared.exists() or not [p for p in shared.iterdir() if "plasma" in p.name or "ray" in p.name]
    readable = [p for p in folder.rglob("*") if p.is_file() and p.stat().st_mode & 0o077]
    assert not readable
    assert not any(token in p.read_text(errors="ignore") for p in folder.rglob("*") if p.is_file())
    assert "with a token" in cluster.described


def test_who_has_no_token_or_a_wrong_one_gets_no_answer(cluster: Cluster) -> None:
    address = ray.get_runtime_context().gcs_address
    assert starting.asks_for_tokens(address)
    wrong = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    code = "import sys; from privopt.engine.on_ray.cluster import Cluster; Cluster.joined(sys.argv[1])"
    tried = subprocess.run(
        [sys.executable, "-c", code, address], env=wrong, capture_output=True, text=True, check=False
    )
    assert "does not accept our token" in tried.stderr
    assert tried.returncode == 1


@pytest.mark.parametrize(
    "address", ["ray://head:10001", "auto", "head", "head:port", "http://head:80", "head:0", "head:65536"]
)
def test_an_address_is_that_of_a_head(address: str) -> None:
    with pytest.raises(ArgumentError, match="HOST:PORT"):
        Cluster.joined(address)


def test_a_cluster_without_tokens_is_refused_unless_its_network_is_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starting, "asks_for_tokens", lambda _: False)
    with (
        socket.create_server(("127.0.0.1", 0)) as head,
        pytest.raises(ArgumentError, match="asks for no tokens"),
    ):
        Cluster(f"127.0.0.1:{head.getsockname()[1]}", trust_network=False)
    trusted = object.__new__(Cluster)
    trusted.address, trusted.has_tokens = "head:6379", False
    assert "WITHOUT tokens" in trusted.described


def test_the_cluster_of_another_is_not_used(cluster: Cluster) -> None:
    with pytest.raises(ArgumentError, match="connected to another Ray cluster"):
        Cluster.joined("elsewhere:6379")


@pytest.mark.audit
def test_blocks_that_workers_find_by_their_keys_have_the_bits_of_one_process(
    engines: dict[int, RayEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "DEALT", 16)
    everywhere = [in_memory(*records("dense")), *engines.values()]
    for relation, unit in (
        ("replace-one", "record"),
        ("replace-one", "user"),
        ("add-or-remove-one", "record"),
    ):
        public = dataclasses.replace(everywhere[0].public, relation=Relation(relation), unit=unit)
        for found, size in blocks.block_assignment(
            public, [50, 31], np.random.default_rng(4), private_count=N
        ):
            assert isinstance(found, DealtPlaces)
            inner = blocks.block_assignment(
                Public(n=40, d=D), [18, 22], np.random.default_rng(5), private_count=40
            )
            sums = set()
            for engine in everywhere:
                block = engine.subset(found, size)
                assert block.private_count == len(found)
                sums.add(
                    (
                        block.clipped_sum(QUERY).tobytes(),
                        block.gather(QUERY).tobytes(),
                        *(block.subset(places, 20).clipped_sum(QUERY).tobytes() for places, _ in inner),
                    )
                )
            assert len(sums) == 1


@pytest.mark.at_once("2")
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_sums_views_and_subsets_have_the_bits_of_one_process(
    engines: dict[int, RayEngine], workers: int
) -> None:
    memory = in_memory(*records("dense"))
    rng = np.random.default_rng(2)
    matrix, at = rng.normal(size=(D, 3)), np.ones(3)
    mapped = ClippedGradient(loss=losses.logistic, at=at, clip=0.5)
    draw, block = np.flatnonzero(rng.random(N) < 0.3), GivenPlaces(np.flatnonzero(rng.random(N) < 0.5))
    last = Stretch(N - 3, N)  # of one part alone

    def asked(engine):
        return [
            engine.clipped_sum(QUERY),
            engine.clipped_sum(QUERY, draw),
            engine.clipped_sum(QUERY, np.zeros(0, np.int64)),
            engine.view(matrix, 1.2).clipped_sum(mapped),
            engine.subset(block, 70).clipped_sum(QUERY),
            engine.subset(last, 3).clipped_sum(QUERY),
            engine.subset(block, 70)
            .view(matrix, 1.2)
            .subset(Stretch(5, 60), 55)
            .clipped_sum(mapped, np.arange(9, 50)),
            engine.gather(QUERY),
            engine.subset(block, 70).gather(QUERY),
            engine.view(matrix, 1.2).gather(mapped),
            engine.presence(),
        ]

    expected = [value.tobytes() for value in asked(memory)]
    engine = engines[workers]
    assert engine.public == memory.public
    assert engine.subset(block, 70).public == memory.subset(block, 70).public
    assert engine.view(matrix, 1.2).public == memory.view(matrix, 1.2).public
    assert [value.tobytes() for value in asked(engine)] == expected


def test_draws_are_those_of_one_process(engines: dict[int, RayEngine]) -> None:
    memory = in_memory(*records("dense"))
    for sampling in (Poisson(0.2), FixedSize(30, N)):
        draws = [engine.draw(sampling, np.random.default_rng(4)) for engine in (memory, engines[2])]
        np.testing.assert_array_equal(*draws)


def test_drawn_rows_are_those_of_one_process(
    engines: dict[int, RayEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_PIECE_BYTES", 200)  # three at a time
    memory = in_memory(*records("dense"))
    for draw in ([0, 31, 32, 149, 1, 31, 33], []):
        positions = np.array(draw, np.int64)
        for found, expected in zip(engines[2].rows(positions, 9), memory.rows(positions, 9), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


@pytest.mark.audit
def test_held_vectors_travel_piece_by_piece_and_not_the_rows(
    engines: dict[int, RayEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = in_memory(*records("dense"))
    monkeypatch.setattr(engine_module, "_PIECE_BYTES", 200)
    monkeypatch.setattr(RayEngine, "_fetched", property(lambda _: pytest.fail("all rows were fetched")))
    assert engines[3].gather(QUERY).tobytes() == memory.gather(QUERY).tobytes()
    assert engines[3].presence().all()
    source, about = records("users", "add-or-remove-one")
    by_user = opened(source, about, 2)
    in_one = in_memory(source, about)
    assert by_user.presence().tobytes() == in_one.presence().tobytes()
    assert by_user.gather(QUERY).tobytes() == in_one.gather(QUERY).tobytes()
    by_user.close()


@pytest.mark.audit
def test_groups_are_fetched_some_at_a_time(
    engines: dict[int, RayEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = in_memory(*records("dense"))
    monkeypatch.setattr("privopt.engine.reference._GROUPED_ROWS", 50)
    monkeypatch.setattr(RayEngine, "_fetched", property(lambda _: pytest.fail("all rows were fetched")))
    draw = draw_groups(memory.public, 11, np.random.default_rng(3), private_count=N)
    assert len(group_ranges(memory.public, 11)) == 4
    found = engines[3].gather_groups(QUERY, draw)
    assert found.tobytes() == memory.gather_groups(QUERY, draw).tobytes()
    monkeypatch.setattr(engine_module, "GATHERED_BYTES", 100)
    with pytest.raises(ValueError, match="is to be held for each unit"):
        engines[3].gather_groups(QUERY, draw)


def test_shares_of_a_round_are_told_as_workers_answer(engines: dict[int, RayEngine]) -> None:
    told: list[tuple[str, float]] = []
    with shown_by(lambda what, share: told.append((what, share))):
        engines[2].clipped_sum(QUERY)
        engines[2].clipped_sum(QUERY, np.arange(9))
    of_round = [share for what, share in told if what == ROUND]
    assert of_round[-1] == 1.0
    assert len(of_round) == 2


def test_what_cannot_be_held_is_refused_before_a_run() -> None:
    seen: list[tuple[type, int]] = []
    rehearsal = DryRun(
        in_memory(*records("dense")).public, require=lambda kind, held: seen.append((kind, held))
    )
    rehearsal.hold(QUERY)
    rehearsal.hold(QUERY, groups=7)
    assert seen == [(ClippedGradient, N * D), (ClippedGradient, 7 * D)]


def test_without_privacy_the_order_is_that_of_the_parts(engines: dict[int, RayEngine]) -> None:
    query = ClippedGradient(loss=losses.logistic, at=np.ones(D), clip=np.inf)
    expected = in_memory(*records("dense")).clipped_sum(query).tobytes()
    assert {engine.clipped_sum(query).tobytes() for engine in engines.values()} == {expected}


@pytest.mark.audit
def test_no_backend_of_jax_is_started_where_a_kernel_serves(cluster: Cluster) -> None:
    del cluster
    engine = opened(*records("dense"), 1)
    engine.clipped_sum(QUERY)
    backends = engine._fleet.workers[0].actor.__ray_call__.remote(
        lambda _: len(sys.modules["jax._src.xla_bridge"]._backends)
    )
    assert ray.get(backends) == 0
    engine.close()


def test_what_needs_all_rows_is_refused_before_a_charge_where_they_do_not_fit(
    engines: dict[int, RayEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    one_pass = next(type(query) for query in EVERY_QUERY.values() if isinstance(query, PassQuery))
    engines[2].require(one_pass)
    monkeypatch.setattr(engine_module, "GATHERED_BYTES", 100)
    with pytest.raises(ValueError, match="needs all rows in this process"):
        engines[2].require(one_pass)
    with pytest.raises(ValueError, match="is to be held for each unit in this process"):
        engines[2].gather(QUERY)
    minimiser = next(type(query) for query in EVERY_QUERY.values() if isinstance(query, ArgminQuery))
    engines[2].require(minimiser)  # it asks for sums


def test_sums_of_losses_have_the_bits_of_one_process(
    engines: dict[int, RayEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, at, vector = in_memory(*records("dense")), np.linspace(-1, 1, D), np.linspace(2, -1, D)
    for clip, matrix in ((0.4, None), (np.inf, None), (0.2, np.diag(np.linspace(0.5, 2.0, D)))):
        objective = HuberisedObjective(
            problem=Problem(losses.squared),
            ridge=0.1,
            clip=clip,
            units=N,
            width=D,
            row_bound=1.5,
            matrix=matrix,
        )
        expected = memory.objective(objective)
        for engine in engines.values():
            found = engine.objective(objective)
            assert found.private_rows == expected.private_rows == N
            assert found.gradient(at).tobytes() == expected.gradient(at).tobytes()
            assert found.hessian(at).tobytes() == expected.hessian(at).tobytes()
            product = found.hessian_product(at)
            assert product(vector).tobytes() == expected.hessian_product(at)(vector).tobytes()
    monkeypatch.setattr(engine_module, "GATHERED_BYTES", 0)
    query = PerturbedMinimiser(problem=Problem(losses.logistic, Ridge(0.1)), clip=0.5, ridge=0.1)
    solutions = [
        query.minimise(memory.public, private.objective(query.objective(memory.public)), at, 1e-9)
        for private in (engines[2], memory)
    ]
    assert solutions[0].tobytes() == solutions[1].tobytes()


@pytest.mark.audit
def test_many_answers_are_added_up_by_workers(
    engines: dict[int, RayEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privopt.engine.on_ray.fleet._BRANCHES", 2)
    assert (
        engines[3].clipped_sum(QUERY).tobytes() == in_memory(*records("dense")).clipped_sum(QUERY).tobytes()
    )


def solved(case: Any, data: Any) -> tuple[bytes, str]:
    """The parameters and the transcript of a run."""
    public = data.public
    solver = case.solver.configure(Instance(case.problem, public, BUDGET))
    curator = LocalCurator(data, Unlimited(public.relation), noise=NoiseSource(3))
    result = solver.solve(curator, case.problem)
    return np.asarray(result.params).tobytes(), curator.transcript.to_json(values=True)


def on_toy_data(case: Any, relation: str, workers: int) -> tuple[Units, RayEngine]:
    features, targets = toy_arrays(case)
    keys = np.arange(TOY_N) // 2 if case.by_user else None
    about = (
        Description(
            row_bound=1.0, relation=relation, n=TOY_N // 2 if case.by_user else TOY_N, max_records_per_user=3
        )
        if case.by_user
        else Description(row_bound=1.0, relation=relation, n=TOY_N)
    )
    placement = Placement(engine="ray", workers=workers)
    engine = open_on_ray(ArrayRecords(features, targets, keys), about, placement, noise=NoiseSource(7))
    return as_units(features, targets, relation, by_user=case.by_user), engine


BY_NAME = {case.name: case for case, _ in CASES}
TRIED = (
    "gradient descent",
    "stochastic gradient descent, fixed size",
    "frank-wolfe, own loss",
    "newton, hessian",
)


@pytest.mark.audit
def test_solvers_have_the_transcript_of_one_process(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", 16)
    del cluster
    by_data: dict[bytes, tuple[Units, RayEngine]] = {}
    for name in TRIED:
        case = BY_NAME[name]
        key = toy_arrays(case)[1].tobytes()
        if key not in by_data:
            by_data[key] = on_toy_data(case, "replace-one", 2)
        units, engine = by_data[key]
        assert solved(case, engine) == solved(case, units), name
    for _, engine in by_data.values():
        engine.close()


@pytest.mark.audit
@pytest.mark.parametrize(("case", "relation"), [pytest.param(c, r, id=f"{c.name}, {r}") for c, r in CASES])
def test_every_solver_has_the_transcript_of_one_process(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, case: Any, relation: str
) -> None:
    del cluster
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", 5)
    monkeypatch.setattr("privopt.data.user_parts.MEAN_USERS", 5)
    units, engine = on_toy_data(case, relation, 8)
    try:
        assert solved(case, engine) == solved(case, units)
    finally:
        engine.close()


@pytest.mark.audit
def test_an_estimator_fits_the_same_model(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    del cluster
    private = records("dense")[0]._private
    model = LogisticRegression(epsilon=1.0, delta=1e-5, classes=[0, 1], bounds=(-2, 2), random_state=5)
    expected = model.fit(private.private_features, private.private_targets).coef_.tobytes()
    made: list[RayEngine] = []

    def on_workers(units: Units, name: str) -> RayEngine:
        assert name == "fast"
        source = ArrayRecords(units.private_features, units.private_targets)
        made.append(opened(source, Description(row_bound=units.public.row_bound), 2))
        return made[-1]

    monkeypatch.setattr("privopt.curator.local.engine_on", on_workers)
    found = model.fit(private.private_features, private.private_targets).coef_.tobytes()
    assert len(made) == 1
    made[0].close()
    assert found == expected


# Workers that are lost.


def released(engine: Any, before: Callable[[int], None] = lambda _: None) -> tuple[str, float]:
    """Three releases of one plan, and what they were charged."""
    mechanism = Gaussian(noise_multiplier=5.0)
    ledger = Ledger(BUDGET, engine.public.relation)
    curator = LocalCurator(engine, ledger, noise=NoiseSource(3))
    for step in range(3):
        before(step)
        curator.release(ClippedGradient(loss=losses.logistic, at=np.full(D, 0.1 * step), clip=0.3), mechanism)
    return curator.transcript.to_json(values=True), ledger.spent_epsilon()


@pytest.mark.audit
def test_a_worker_that_dies_or_stops_is_replaced_on_the_same_charge(cluster: Cluster) -> None:
    del cluster
    memory = in_memory(*records("dense"))
    engine = opened(*records("dense"), 2, retries=2, patience=8.0)
    engine.subset(Stretch(0, 9), 9).close()  # which is not the end of the workers
    whole = engine.subset(Stretch(0, N), N)
    view = whole.view(np.eye(D)[:, :3], 1.0)
    mapped = ClippedGradient(loss=losses.logistic, at=np.ones(3), clip=0.5)
    view.clipped_sum(mapped)
    whole.close()  # what was made of it stays

    def fail(step: int) -> None:
        first, second = pids_of(engine) if step else (0, 0)
        if step == 1:  # while it is asked
            os.kill(first, signal.SIGSTOP)
            threading.Timer(0.5, os.kill, (first, signal.SIGKILL)).start()
        if step == 2:  # it never answers
            os.kill(second, signal.SIGSTOP)

    assert released(engine, fail) == released(memory)
    assert engine._fleet.retries_left == 0
    expected = memory.view(np.eye(D)[:, :3], 1.0).clipped_sum(mapped).tobytes()
    assert view.clipped_sum(mapped).tobytes() == expected  # made anew by those who came later
    view.close()
    assert not engine._fleet._steps
    os.kill(pids_of(engine)[0], signal.SIGKILL)
    with pytest.raises(
        DataUnavailable, match=r"no retries are left: .* What the run was charged stays charged"
    ):
        engine.clipped_sum(QUERY)
    engine.close()
    with pytest.raises(DataUnavailable, match="the engine is closed"):
        engine.clipped_sum(QUERY)


@pytest.mark.audit
def test_records_that_have_changed_are_not_read_again(cluster: Cluster, tmp_path: Path) -> None:
    del cluster
    private = records("dense")[0]._private
    source = FileRecords(tmp_path, private.private_features, private.private_targets)
    engine = opened(source, records("dense")[1], 1)
    expected = in_memory(*records("dense")).clipped_sum(QUERY).tobytes()
    assert engine.clipped_sum(QUERY).tobytes() == expected
    np.save(tmp_path / "features.npy", np.zeros((N, D + 1)))
    assert engine.clipped_sum(QUERY).tobytes() == expected  # what has been read is not read again
    os.kill(pids_of(engine)[0], signal.SIGKILL)
    with pytest.raises(DataUnavailable, match="the records have changed"):
        engine.clipped_sum(QUERY)
    engine.close()


class LaterRecordsFail(ArrayRecords):
    """Records of which those of the first part alone can be read."""

    def blocks(self, start: int, stop: int) -> Iterator[RecordBlock]:
        if start > 0:
            raise KeyError("a cell")
        yield from super().blocks(start, stop)


@pytest.mark.audit
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_a_failure_to_read_ends_the_opening_and_names_its_part_only_where_the_number_of_records_is_public(
    relation: str, cluster: Cluster
) -> None:
    del cluster
    plain, about = records("dense", relation)
    private = plain._private
    where = " at part 1 of the records" if relation == "replace-one" else ""
    with pytest.raises(DataUnavailable, match=rf"^a worker failed{where} \(KeyError\): "):
        opened(LaterRecordsFail(private.private_features, private.private_targets), about, 1)


def with_users(n: int | None = TOY_N // 2) -> tuple[ArrayRecords, Description]:
    rng = np.random.default_rng(9)
    keys = rng.integers(0, TOY_N // 2, TOY_N)
    keys[: TOY_N // 2] = np.arange(TOY_N // 2)
    about = Description(row_bound=1.0, n=n, max_records_per_user=3)
    return ArrayRecords(rng.normal(size=(TOY_N, D)), rng.choice([-1.0, 1.0], TOY_N), keys), about


@pytest.fixture
def sum_of_users(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """What users sum to in memory, where there are few in a part."""
    monkeypatch.setattr("privopt.data.user_parts.MEAN_USERS", 5)
    monkeypatch.setattr("privopt.engine.on_ray.user_fleet._SPAN_RECORDS", 7)
    return in_memory(*with_users()).clipped_sum(QUERY).tobytes()


@pytest.mark.audit
def test_users_are_exchanged_between_workers_and_again_where_one_is_lost(
    cluster: Cluster, sum_of_users: bytes
) -> None:
    del cluster
    engine = opened(*with_users(), 2)
    view = engine.view(np.eye(D)[:, :3], 1.0)
    mapped = ClippedGradient(loss=losses.logistic, at=np.ones(3), clip=0.5)
    expected = view.clipped_sum(mapped).tobytes()
    assert engine.private_count == TOY_N // 2
    assert engine.clipped_sum(QUERY).tobytes() == sum_of_users
    os.kill(pids_of(engine)[0], signal.SIGKILL)
    assert engine.clipped_sum(QUERY).tobytes() == sum_of_users
    assert view.clipped_sum(mapped).tobytes() == expected
    assert engine._fleet.retries_left == 2
    engine.close()


@pytest.mark.audit
@pytest.mark.parametrize("workers", [1, 3, 8])
def test_users_that_are_not_counted_yet_are(cluster: Cluster, sum_of_users: bytes, workers: int) -> None:
    del cluster
    engine = opened(*with_users(n=None), workers)
    assert engine.public.n == TOY_N // 2
    assert engine.clipped_sum(QUERY).tobytes() == sum_of_users
    engine.close()


@pytest.mark.audit
def test_more_users_than_n_are_refused_without_their_number(cluster: Cluster, sum_of_users: bytes) -> None:
    del cluster, sum_of_users
    source, about = with_users(n=TOY_N // 2 - 1)
    about = dataclasses.replace(about, relation="add-or-remove-one")
    with pytest.raises(ArgumentError, match=f"^there are more users than n = {TOY_N // 2 - 1}: [^0-9]*$"):
        opened(source, about, 2)


@pytest.mark.audit
def test_workers_that_die_during_the_exchange_are_replaced(cluster: Cluster, sum_of_users: bytes) -> None:
    del cluster
    rng = np.random.default_rng(6)
    for _ in range(5):
        done = threading.Event()
        killer = threading.Thread(target=_kill_workers, args=(rng, done))
        killer.start()
        engine = opened(*with_users(), 3, retries=100)
        done.set()
        killer.join()
        assert engine.clipped_sum(QUERY).tobytes() == sum_of_users
        engine.close()


def _kill_workers(rng: np.random.Generator, done: threading.Event) -> None:
    """Kill three of the workers of users that are there, at random moments."""
    deaths = 0
    while deaths < 3 and not done.wait(float(rng.exponential(0.3))):
        found = [p for p in psutil.Process().children(recursive=True) if "UserActor" in p.name()]
        if found:
            os.kill(found[int(rng.integers(len(found)))].pid, signal.SIGKILL)
            deaths += 1


@pytest.mark.audit
def test_a_hundred_deaths_at_random_change_nothing(cluster: Cluster) -> None:
    del cluster
    rng = np.random.default_rng(6)
    expected = released(in_memory(*records("dense")))
    engine = opened(*records("dense"), 4, retries=200)
    deaths = 0
    while deaths < 100:
        victim = int(rng.choice(pids_of(engine)))
        killer = threading.Timer(float(rng.exponential(0.01)), os.kill, (victim, signal.SIGKILL))
        killer.start()
        assert released(engine) == expected
        killer.join()
        engine.clipped_sum(QUERY)  # who died after the last release is replaced
        deaths += 1
    engine.close()


@pytest.mark.audit
def test_a_real_cluster_without_tokens_is_seen_to_have_none() -> None:
    code = (
        "import ray; context = ray.init(address='local', num_cpus=1, include_dashboard=False, log_to_driver=False)\n"
        "print('ADDRESS', context.address_info['gcs_address'], flush=True); input()"
    )
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        address = next(line.split()[1] for line in other.stdout if line.startswith("ADDRESS"))
        assert not starting.asks_for_tokens(address)
        other.communicate("\n")


@pytest.mark.audit
def test_an_interrupt_ends_workers_and_cluster_at_once() -> None:
    """In a process of its own, which waits for a worker that does not answer."""
    code = """
import os, signal, threading, time
import numpy as np, ray
from privopt.data.record_source import ArrayRecords, Description
from privopt.engine.on_ray.engine import open_on_ray
from privopt.engine.placement import Placement
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in whatever a shell runs in the background
query = ClippedGradient(loss=losses.logistic, at=np.ones(2), clip=0.3)
with double_precision():
    engine = open_on_ray(ArrayRecords(np.ones((9, 2)), np.ones(9)), Description(row_bound=1.0), Placement(workers=1))
    engine.clipped_sum(query)
    pid = ray.get(engine._fleet.workers[0].actor.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    try:
        engine.clipped_sum(query)
    except KeyboardInterrupt:
        print(pid, time.monotonic() - start, "RAY_AUTH_TOKEN" in os.environ, flush=True)
"""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="p") as place:
        environment = {**os.environ, "TMPDIR": place}
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
            environment.pop(name, None)
        ran = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        pid, seconds, has_token = ran.stdout.split()
        assert not psutil.pid_exists(int(pid))
        busy = max(
            1.0, os.getloadavg()[0] / (os.cpu_count() or 1)
        )  # times as long as where nothing else runs
        assert float(seconds) < 5.0 * busy
        assert has_token == "False"
        assert not [path for path in Path(place).iterdir() if path.name.startswith("privopt-")]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "no-such-host.invalid"])
def test_an_address_at_which_nobody_listens_is_refused_at_once(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    begun = time.monotonic()
    with pytest.raises(
        ArgumentError, match=r"cannot be reached \(.*\): check the address, and that its head runs"
    ):
        starting.admitted(f"{host}:{port}", trust_network=False)
    assert time.monotonic() - begun < 20.0  # Ray alone waits half a minute
