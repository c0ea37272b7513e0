"""Bad input: each a message of one screen that says what to do, an exit code, no traceback, and no JVM before it."""

from __future__ import annotations

import functools
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from changefeed.cli.main import main
from changefeed.objectstore.local import LocalStore
from changefeed.owner import driver
from changefeed.spark.launch import Launch
from changefeed_devcluster import keys
from changefeed_devcluster.pd.safepoints import GC_WORKER
from changefeed_devcluster.server import DevCluster
from changefeed_devcluster.tidb.schema import NewColumn, dump
from changefeed_devcluster.tidb.tidb import Tidb
from conftest import Upstream
from integration_screen import BAD_INPUT, FAILED, UNAVAILABLE, one_screen, run_alone

HOUR = 3_600_000 << 18
GEOMETRY_TYPE = 255  # TypeGeometry (docs/design/tidb.md, Definitions)

#: Writes what the case needs into an empty folder and gives the spec.
Make = Callable[[Path], dict[str, Any]]
Check = Callable[..., None]


@pytest.fixture(scope="module")
def shared() -> Iterator[Upstream]:
    """A cluster that no test changes: shop.orders and shop.logins are there, the latter with a GEOMETRY column."""
    with DevCluster(min_ts_interval=0.2) as cluster:
        tidb = Tidb(cluster)
        tidb.bootstrap()
        tidb.create_database("shop")
        tidb.create_table("shop", "orders", [NewColumn("id", "bigint"), NewColumn("name", "varchar(20)")])
        logins = tidb.create_table("shop", "logins", [NewColumn("id", "bigint"), NewColumn("seen", "blob")])
        definition = logins.info.to_json()
        definition["cols"][1]["type"]["Tp"] = GEOMETRY_TYPE  # which the development cluster can't write
        with tidb.begin() as txn:
            txn.write(keys.meta_hash(f"DB:{logins.db.id}", f"Table:{logins.id}"), dump(definition))
        yield Upstream(cluster, tidb)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def context(_: Launch) -> None:
        pytest.fail("Spark is needed before the input was found to be bad")

    monkeypatch.setattr(Launch, "begin", lambda _: None)
    monkeypatch.setattr(Launch, "context", context)
    monkeypatch.setattr(driver, "RunOptions", functools.partial(driver.RunOptions, pd_deadline_s=1.0))


@pytest.fixture
def refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Check:
    """`refused(make, exit code, *said)`: `changefeed run` says all of it, to a person and to a script."""

    def check(make: Make, code: int, *said: str, metrics_port: int = 0) -> None:
        for mode in ([], ["--json"]):
            folder = tmp_path / f"run{len(mode)}"
            folder.mkdir()
            file = write(folder, make(folder))
            capfd.readouterr()
            assert main(["run", "-f", str(file), "--metrics-port", str(metrics_port), *mode]) == code
            one_screen(*capfd.readouterr(), bool(mode), said)

    return check


def spec_of(folder: Path, pd: str, **more: Any) -> dict[str, Any]:
    return {
        "upstream": {"pdAddresses": [f"http://{pd}"]},
        "filter": {"rules": ["shop.orders"]},
        "state": {"uri": (folder / "state").as_uri()},
        "sink": {"storage": {"uri": (folder / "lake").as_uri(), "protocol": "csv"}},
        **more,
    }


def write(folder: Path, spec: dict[str, Any]) -> Path:
    file = folder / "changefeed.json"
    resource = {"apiVersion": "changefeed.dev/v1alpha1", "kind": "Changefeed", "metadata": {"name": "test"}}
    file.write_text(json.dumps({**resource, "spec": spec}))
    return file


def log_of(folder: Path) -> list[Path]:
    return sorted((folder / "state" / "default" / "test" / "local" / "log").glob("*.json"))


# PD


@pytest.fixture
def listener() -> Iterator[Callable[[bool], str]]:
    """`listener(listens)`: the address of a port that answers nothing, or where nothing listens."""
    opened: list[socket.socket] = []

    def bind(listens: bool) -> str:
        opened.append(socket.create_server(("127.0.0.1", 0)) if listens else socket.socket())
        if not listens:
            opened[-1].bind(("127.0.0.1", 0))
        return f"127.0.0.1:{opened[-1].getsockname()[1]}"

    yield bind
    for each in opened:
        each.close()


@pytest.fixture
def web_server() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), type("Quiet", (BaseHTTPRequestHandler,), {"log_message": lambda *_: None}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("listens", "why"),
    [(False, "connection refused."), (True, "")],  # gRPC finds out in one of two ways that nothing is said
    ids=["nothing-listens", "silent"],
)
def test_a_pd_that_does_not_answer(listens: bool, why: str, listener: Callable[[bool], str], refused: Check) -> None:
    address = listener(listens)
    refused(
        lambda folder: spec_of(folder, address),
        UNAVAILABLE,
        f"PD at http://{address} does not answer: {why}",
        "Check spec.upstream.pdAddresses",
    )


def test_a_host_that_is_not_known(refused: Check) -> None:
    refused(
        lambda folder: spec_of(folder, "pd.invalid:2379"),
        UNAVAILABLE,
        "PD at http://pd.invalid:2379 does not answer: its host name is not known",
        "Check spec.upstream.pdAddresses",
    )


def test_a_web_server_is_not_a_pd(web_server: str, refused: Check, tmp_path: Path) -> None:
    said = (f"What answers at http://{web_server} is not a PD", "by default port 2379")
    refused(lambda folder: spec_of(folder, web_server), FAILED, *said)
    done = run_alone(write(tmp_path, spec_of(tmp_path, web_server)))
    assert done.returncode == FAILED
    one_screen(done.stdout, done.stderr, False, said)


def test_a_tikv_store_is_not_a_pd(shared: Upstream, refused: Check) -> None:
    address = shared.cluster.store_addresses[1]
    refused(
        lambda folder: spec_of(folder, address),
        FAILED,
        f"What answers at http://{address} is not a PD (it does not know PD's calls)",
        "by default port 2379",
    )


# Sink and state


def test_a_sink_that_cannot_be_written(shared: Upstream, refused: Check) -> None:
    def below_a_file(folder: Path) -> dict[str, Any]:
        (folder / "notes.txt").write_text("x")
        storage = {"uri": (folder / "notes.txt" / "lake").as_uri(), "protocol": "csv"}
        return spec_of(folder, shared.cluster.pd_address, sink={"storage": storage})

    said = ("spec.sink.storage.uri: the sink can't be used", "notes.txt", "A part of the path is a file")
    refused(below_a_file, UNAVAILABLE, *said)


def test_a_sink_on_a_file_system_that_takes_nothing(shared: Upstream, refused: Check) -> None:
    def make(folder: Path) -> dict[str, Any]:
        storage = {"uri": "file:///proc/lake", "protocol": "csv"}
        return spec_of(folder, shared.cluster.pd_address, sink={"storage": storage})

    refused(make, UNAVAILABLE, "spec.sink.storage.uri: the sink can't be used", "/proc/", "Look at the disk")


def test_a_sink_that_is_a_file(shared: Upstream, refused: Check) -> None:
    def make(folder: Path) -> dict[str, Any]:
        (folder / "lake").write_text("x")
        return spec_of(folder, shared.cluster.pd_address)

    refused(make, UNAVAILABLE, "spec.sink.storage.uri: the sink can't be used", "A part of the path is a file")


def test_a_state_that_cannot_be_written(shared: Upstream, refused: Check) -> None:
    def make(folder: Path) -> dict[str, Any]:
        (folder / "state").write_text("x")
        return spec_of(folder, shared.cluster.pd_address)

    refused(make, UNAVAILABLE, "spec.state.uri: the state can't be used", "A part of the path is a file")


def test_the_same_changefeed_twice_at_once(shared: Upstream, refused: Check) -> None:
    def held(folder: Path) -> dict[str, Any]:
        LocalStore(folder / "state" / "default" / "test" / "local").hold()
        return spec_of(folder, shared.cluster.pd_address)

    said = ("changefeed default/test is in use", f"by process {os.getpid()}", "is running twice: stop the other run")
    refused(held, FAILED, *said)


def test_a_sink_that_another_changefeed_owns(shared: Upstream, refused: Check, tmp_path: Path) -> None:
    def make(folder: Path) -> dict[str, Any]:
        (folder / "lake").mkdir()
        owner = {"uid": "other", "stateUri": "file:///elsewhere"}
        (folder / "lake" / ".changefeed-owner.json").write_text(json.dumps(owner))
        return spec_of(folder, shared.cluster.pd_address)

    refused(make, FAILED, "SinkOwned", "belongs to changefeed other", "Choose another folder")
    # Nothing is fixed yet: the next run may have another sink, as the message says.
    assert log_of(tmp_path / "run0") == []


@pytest.mark.parametrize("path", ["metadata", "shop/orders/449000000000000000/2026-01-31/CDC000001.csv"])
def test_a_sink_with_files_of_ticdc(path: str, shared: Upstream, refused: Check, tmp_path: Path) -> None:
    def make(folder: Path) -> dict[str, Any]:
        file = folder / "lake" / path
        file.parent.mkdir(parents=True)
        file.write_text('{"checkpoint-ts":1}')
        return spec_of(folder, shared.cluster.pd_address)

    refused(make, FAILED, "SinkOwned", path, "Choose an empty folder")
    assert log_of(tmp_path / "run0") == []


# The resource


def test_a_filter_that_matches_nothing(shared: Upstream, refused: Check) -> None:
    refused(
        lambda folder: spec_of(folder, shared.cluster.pd_address, filter={"rules": ["shpo.*"]}),
        BAD_INPUT,
        "spec.filter.rules: ['shpo.*'] match no table",
        "Fix them.",
        "shop.logins, shop.orders",
    )


def test_a_column_type_that_is_not_supported(shared: Upstream, refused: Check) -> None:
    refused(
        lambda folder: spec_of(folder, shared.cluster.pd_address, filter={"rules": ["shop.*"]}),
        FAILED,
        "table shop.logins",
        "column seen has type GEOMETRY",
        'e.g. "!shop.logins"',
    )


def test_a_start_in_the_future(shared: Upstream, refused: Check) -> None:
    refused(
        lambda folder: spec_of(folder, shared.cluster.pd_address, startTs=str(shared.tidb.now() + HOUR)),
        BAD_INPUT,
        "spec.startTs",
        "is in the future",
        "Leave it out to start now.",
    )


def test_a_start_that_gc_has_passed(upstream: Upstream, refused: Check) -> None:
    upstream.tidb.create_database("shop")
    upstream.tidb.create_table("shop", "orders", [NewColumn("id", "bigint")])
    start_ts = upstream.tidb.now()
    upstream.cluster.safepoints.update(GC_WORKER, HOUR, upstream.tidb.now(), 0)
    refused(
        lambda folder: spec_of(folder, upstream.cluster.pd_address, startTs=str(start_ts)),
        FAILED,
        "SnapshotLostByGC",
        str(start_ts),
        "from a later startTs",
    )


def test_a_metrics_port_that_is_taken_then_another_start(
    shared: Upstream, refused: Check, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    start_ts = shared.tidb.now()
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        refused(
            lambda folder: spec_of(folder, shared.cluster.pd_address, startTs=str(start_ts)),
            FAILED,
            f"127.0.0.1:{port}",
            "Choose another port with --metrics-port",
            metrics_port=port,
        )
    folder = tmp_path / "run0"
    assert len(log_of(folder)) == 2  # startTs is recorded by now

    file = write(folder, spec_of(folder, shared.cluster.pd_address, startTs=str(start_ts + 1)))
    assert main(["run", "-f", str(file), "--metrics-port", "0"]) == BAD_INPUT
    said = (f'spec.startTs: "{start_ts + 1}" differs from "{start_ts}"', "can't be changed: revert it")
    one_screen(*capfd.readouterr(), False, said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spec:\n  sink: [storage\n  startTs: 1\n", ("line 3, column 10", "not YAML")),
        (
            "apiVersion: changefeed.dev/v1alpha1\nkind: Changefeed\nmetadata: {name: test}\nspec:\n"
            '  upstream: {pdAddresses: ["http://127.0.0.1:1"]}\n'
            "  sink: {storage: {uri: file:///x, protocol: csv}}\n  filtre: {}\n",
            ("unknown field spec.filtre", "did you mean filter?"),
        ),
        ("", ("the file holds nothing", "allowed: one Changefeed")),
    ],
    ids=["bad-yaml", "unknown-field", "empty"],
)
def test_a_file_that_is_no_changefeed(
    text: str, said: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "changefeed.yaml"
    file.write_text(text)
    for mode in ([], ["--json"]):
        assert main(["run", "-f", str(file), *mode]) == BAD_INPUT
        one_screen(*capfd.readouterr(), bool(mode), (*said, "changefeed validate -f FILE"))


def test_a_file_that_is_missing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for mode in ([], ["--json"]):
        assert main(["run", "-f", str(tmp_path / "no.yaml"), *mode]) == BAD_INPUT
        said = ("no.yaml", "No such file", "Give the path")
        one_screen(*capfd.readouterr(), bool(mode), said)


def test_tls_for_an_address_without_it(refused: Check) -> None:
    def make(folder: Path) -> dict[str, Any]:
        spec = spec_of(folder, "127.0.0.1:1")
        spec["upstream"]["tls"] = {"secretRef": {"name": "tidb-client"}}
        return spec

    refused(make, BAD_INPUT, "spec.upstream.tls", "https:// for all of pdAddresses", "changefeed validate -f FILE")


# The machine


@pytest.mark.parametrize("java_home", [None, "/nowhere/java"])
def test_java_is_missing(
    java_home: str | None, refused: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if java_home is None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setenv("JAVA_HOME", java_home)
    # The resource is not even looked at.
    refused(lambda folder: {}, FAILED, java_home or "no java in PATH", "Install Java 17")


def test_java_is_missing_for_a_user(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    done = run_alone(write(tmp_path, {}), env=env)
    assert done.returncode == FAILED
    one_screen(done.stdout, done.stderr, False, ("no java in PATH", "Install Java 17"))
