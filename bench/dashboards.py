"""`python bench/dashboards.py`: docs/dashboards/*.svg, pictures of the Grafana dashboards with live data.

It is a proof as well: each panel's queries are asked of a real Prometheus, and one that finds nothing is an error.
Real are `changefeed run` on the development cluster, which is disturbed meanwhile, and two operators of the chart on a
real API server. Played are Spark's operator, and so the drivers of the changefeeds that the operators have: that of
`orders` too, whose metrics are those of the real run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drawing import Series, Window, picture
from measured import ROOT, Cluster, Run, changefeed_run, cluster
from prometheus import Prometheus, Target, prometheus

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "cluster"))
import cluster_changefeed_operator
import cluster_spark_operator
from cluster_api import CHANGEFEEDS, Namespace
from cluster_api_proxy import ApiProxy
from cluster_changefeed_operator import ChangefeedOperator
from cluster_control_plane import ControlPlane
from cluster_feeds import Feeds
from cluster_history import History
from cluster_played_spark import PlayedSpark
from cluster_pods import End, PlayedNode
from cluster_processes import wait_until
from cluster_programs import install

BOARDS = ROOT / "charts" / "changefeed-operator" / "dashboards"
NAMESPACE, FEED = "shop", "orders"
#: The dashboards' variables.
CHOSEN = {"namespace": NAMESPACE, "changefeed": FEED}
TABLES, ROWS = 6, 2000  # rows loaded into each, before others follow
SCRAPE_S = 3
#: Panels in whose queries nothing need be found, and why.
MAY_BE_EMPTY = {
    ("changefeed", "Task errors a second"): "no task fails while a local disk takes the files",
    ("changefeed", "Waits for the byte quota"): "a puller holds nothing back before 64 MiB are in flight",
}
_CAPTION = (
    "A preview drawn by bench/dashboards.py, not by Grafana. Each number is an answer of a live Prometheus to the "
    "query of its panel."
)
_DEADLINE_S = 600.0
_FEEDS = (
    *(FEED, "payments", "refunds", "carts", "wishlists", "reviews", "invoices", "ledger", "shipments", "returns"),
    *("stock", "prices", "catalogue", "customers", "sessions", "coupons", "search", "audit", "imports", "archive"),
)
_FOR_A_PERSON = {"class": "NeedsHuman", "message": "The bucket lake refuses the key.", "next": "Give it the right."}
_UNAVAILABLE = {"class": "SinkUnavailable", "message": "The bucket lake does not answer.", "next": "Look at it."}


@dataclass(frozen=True)
class Operators:
    """Two of one release, the first of which leads. `proxy`: between them and the API server."""

    proxy: ApiProxy
    feeds: Feeds
    node: PlayedNode
    pods: Mapping[str, ChangefeedOperator]

    def pause(self, paused: bool, *names: str) -> None:
        for name in names:
            self.feeds.edit(name, paused=paused)

    def end(self, end: End, *names: str) -> None:
        """End their drivers, once they run."""
        for name in names:
            self.feeds.wait_until(name, "Normal", _DEADLINE_S)
            self.node.end(f"changefeed-{name}-driver", end)

    def refuse(self, seconds: float) -> None:
        """Return what the operators want to write, although there is something to be written."""
        with self.proxy.refusing(503):
            self.restart("stock", "prices", "search")
            time.sleep(seconds)

    def restart(self, *names: str) -> None:
        for name in names:
            self.feeds.edit(name, restartNonce=1)

    def finish(self, *names: str) -> None:
        for name in names:
            self.feeds.edit(name, targetTs="450000000000000000")

    def end_leader(self) -> None:
        next(iter(self.pods.values())).stop()


@contextmanager
def operators(folder: Path) -> Iterator[Operators]:
    """They work, and have no changefeeds yet."""
    with ExitStack() as open_things:
        control_plane = open_things.enter_context(ControlPlane(folder / "cluster"))
        cluster_changefeed_operator.install_crd(control_plane)
        cluster_spark_operator.install_crds(control_plane)
        namespace: Namespace = control_plane.create_namespace(NAMESPACE)
        history = open_things.enter_context(History(control_plane.api, f"{CHANGEFEEDS}/changefeeds"))
        proxy = open_things.enter_context(ApiProxy(control_plane))
        open_things.enter_context(PlayedSpark(control_plane.api, [NAMESPACE], report_s=5.0, poll_s=0.5))
        pods: dict[str, ChangefeedOperator] = {}
        for suffix in ("x7k2p", "m4vdz"):
            name = f"changefeed-operator-6c8d5b7f9-{suffix}"
            (folder / name).mkdir()
            pods[name] = ChangefeedOperator(control_plane, namespace, folder / name, proxy.server)
            open_things.callback(pods[name].end)
            if len(pods) == 1:
                pods[name].install()
            pods[name].start()
            pods[name].wait_until_ready()
        first = next(iter(pods.values()))
        wait_until(lambda: first.leads, "the first operator leads")
        yield Operators(proxy, Feeds(namespace, history), PlayedNode(namespace), pods)


def harm(upstream: Cluster, *arguments: str) -> None:
    """Do harm as `changefeed-devcluster harm` does; again when the cluster was too busy to answer."""
    command = [str(Path(sys.executable).with_name("changefeed-devcluster")), "harm", *arguments]
    command += ["--pd", upstream.ready["pd"]]
    wait_until(lambda: subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0, f"harm {arguments[0]}")


Story = list[tuple[float, Callable[[], object]]]


def story(ours: Operators, upstream: Cluster) -> Story:
    """(seconds from the start, what happens then): something of everything that the panels show."""
    crash, refused, unavailable = End(1), End(1, json.dumps(_FOR_A_PERSON)), End(69, json.dumps(_UNAVAILABLE))
    return [
        (15, lambda: harm(upstream, "split")),
        (25, lambda: ours.pause(True, "carts", "wishlists", "reviews", "archive")),
        (35, lambda: harm(upstream, "transfer")),
        (40, lambda: ours.end(crash, "payments", "refunds")),
        (50, lambda: harm(upstream, "cut")),
        (55, lambda: ours.end(refused, "invoices")),
        (60, lambda: ours.end(refused, "ledger")),
        (65, lambda: harm(upstream, "stall-region", "--seconds", "20")),
        (75, lambda: ours.refuse(10.0)),
        (90, lambda: ours.end(crash, "payments")),
        (95, lambda: ours.pause(False, "carts", "wishlists")),
        (100, lambda: harm(upstream, "lock", "--seconds", "25")),
        (110, ours.end_leader),
        (130, lambda: harm(upstream, "cut")),
        (135, lambda: ours.finish("imports", "audit")),
        (140, lambda: ours.restart("invoices")),
        (145, lambda: harm(upstream, "merge")),
        (150, lambda: ours.end(unavailable, "shipments")),
        (172, lambda: ours.end(unavailable, "returns")),
        (180, lambda: None),
    ]


def play(story: Story) -> Window:
    """Let it happen; the time that it took."""
    began = time.time()
    for at, happen in story:
        time.sleep(max(0.0, began + at - time.time()))
        happen()
    return Window(began, began + SCRAPE_S * ((time.time() - began) // SCRAPE_S), SCRAPE_S)


def run_live(folder: Path, seen: Callable[[Prometheus, Window], None]) -> None:
    """Run everything that the dashboards show.

    `seen` is called while all of it runs.
    """
    sysbench = ("--workload", "sysbench", "--tables", str(TABLES), "--rows", str(ROWS), "--rate", "800")
    storage = {"protocol": "csv", "csv": {"includeCommitTs": True}}
    with (
        operators(folder) as ours,
        cluster(*sysbench) as upstream,
        changefeed_run(upstream, folder, storage, FEED, NAMESPACE) as run,
    ):
        targets = [Target(pod.port, {"namespace": NAMESPACE, "pod": name}) for name, pod in ours.pods.items()]
        targets.append(Target(run.meter.port, {"namespace": NAMESPACE, "pod": f"changefeed-{FEED}-driver"}))
        with prometheus(folder, targets, SCRAPE_S) as server:
            wait_until(lambda: _has_written_the_load(run), "the rows loaded first are written", _DEADLINE_S)
            for name in _FEEDS:
                ours.feeds.create(name)
            seen(server, play(story(ours, upstream)))
        run.drain()


def _has_written_the_load(run: Run) -> bool:
    if run.process.poll() is not None:
        raise SystemExit(f"changefeed run ended with {run.process.returncode}")
    return run.meter.metric("changefeed_sink_rows_total") > TABLES * ROWS


def ask(server: Prometheus, board: str, panels: list[dict[str, Any]], window: Window) -> dict[int, list[Series]]:
    """Return what each panel shows, by id. Ends the process when one shows nothing that must not be empty."""
    answers: dict[int, list[Series]] = {}
    empty = []
    for panel in panels:
        for target in panel.get("targets", ()):
            query = _filled(target["expr"], server.rate_interval(window.step))
            if target.get("instant"):
                found = server.instant(query, target["legendFormat"], window.end)
            else:
                found = server.range(query, target["legendFormat"], window)
            answers.setdefault(panel["id"], []).extend(found)
            if not found and (board, panel["title"]) not in MAY_BE_EMPTY:
                empty.append(f"{board}: {panel['title']}: {query}")
    if empty:
        raise SystemExit("\n".join(["These queries find nothing:", *empty]))
    return answers


def _filled(query: str, rate_interval: str) -> str:
    for variable, value in {**CHOSEN, "__rate_interval": rate_interval}.items():
        query = query.replace(f"${variable}", value)
    return query


def draw(server: Prometheus, window: Window, out: Path) -> None:
    """All dashboards."""
    for path in sorted(BOARDS.glob("*.json")):
        board = json.loads(path.read_text())
        answers = ask(server, path.stem, board["panels"], window)
        labels = {variable["name"]: variable["label"] for variable in board["templating"]["list"]}
        chosen = " · ".join(f"{labels[name]}: {value}" for name, value in CHOSEN.items() if name in labels)
        (out / f"{path.stem}.svg").write_text(picture(board, answers, window, chosen, _CAPTION))
        sys.stdout.write(f"written to {out / path.stem}.svg\n")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=ROOT / "docs" / "dashboards")
    given = arguments.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "helm"):
        install(name)

    with tempfile.TemporaryDirectory(prefix="changefeed-dashboards-") as folder:
        run_live(Path(folder), lambda server, window: draw(server, window, given.out))


if __name__ == "__main__":
    main()
