"""`python -m changefeed_operator`: options from the command line or the environment, JSON logs, the exit code."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import structlog
from changefeed.errors import ChangefeedError
from changefeed.kube.connection import Connection, from_kubeconfig, in_pod
from changefeed.ui.server import parse_address
from cyclopts import App, Parameter, config

from changefeed_operator import api
from changefeed_operator.loop.runtime import Operator, Options
from changefeed_operator.settings import Network, Settings, parse_defaults

app = App(
    name="changefeed-operator",
    help="Turns Changefeed resources into SparkApplications.",
    config=config.Env("CHANGEFEED_"),
    version_flags=(),
)


@app.default
def run(
    *,
    image: str,
    state_uri: str = "",
    namespaces: str = "all",
    selector: str = "",
    network_policy: str = "",
    disruption_budget: bool = True,
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent",
    image_pull_secrets: str = "",
    driver_role: str = "changefeed-operator-driver",
    allow_privileged_templates: Annotated[bool, Parameter(negative="")] = False,
    defaults: str = "",
    metrics_port: int = 8080,
    web_address: str = "",
    lease: str = api.OPERATOR,
    lease_namespace: Annotated[str, Parameter(env_var="POD_NAMESPACE")] = "",
    workers: int = 8,
    log_level: Literal["debug", "info", "warning", "error"] = "info",
    kubeconfig: Annotated[str, Parameter(env_var="KUBECONFIG")] = "",
) -> int:
    """Run one operator until SIGTERM.

    Parameters
    ----------
    image
        Image of drivers, executors and jobs.
    state_uri
        Where changefeeds without `spec.state.uri` keep their log and events; without it they must have one.
    namespaces
        Namespaces to serve, separated by commas, or `all`.
    selector
        Serve only Changefeeds with these labels, as `kubectl -l` takes them.
    network_policy
        What a NetworkPolicy for each changefeed lets through, JSON as the chart writes it; without it there is none.
    disruption_budget
        Make a PodDisruptionBudget for each changefeed.
    image_pull_policy
        Of the image.
    image_pull_secrets
        Names of Secrets to pull it with, separated by commas.
    driver_role
        The ClusterRole that drivers are bound to; with a list of namespaces, the Role of that name in each of them.
    allow_privileged_templates
        Let pod templates ask for hostPath, hostNetwork, privileged containers and the like.
    defaults
        Cores and memory of drivers and executors whose Changefeed names none, JSON as the chart writes it.
    metrics_port
        Where /metrics, /healthz and /readyz answer; 0 takes a free port.
    web_address
        Where the page for people is served, HOST:PORT, or :PORT for all addresses; without it there is none.
    lease
        Name of the Lease that says which operator works. Operators that serve other Changefeeds need another one.
    lease_namespace
        Its namespace; by default the operator's own.
    workers
        Changefeeds that are looked at in the same moment.
    log_level
        How much to log.
    kubeconfig
        How to reach the API server; by default as a pod's ServiceAccount.
    """
    start_logging(log_level)
    connection = from_kubeconfig(kubeconfig) if kubeconfig else in_pod()
    settings = Settings(
        image=image,
        state_uri=state_uri,
        network=Network.parse(network_policy) if network_policy else None,
        disruption_budget=disruption_budget,
        image_pull_policy=image_pull_policy,
        image_pull_secrets=_names(image_pull_secrets),
        driver_role=driver_role,
        driver_role_kind="ClusterRole" if namespaces == "all" else "Role",
        allow_privileged_templates=allow_privileged_templates,
        defaults=parse_defaults(defaults) if defaults else {},
    )
    options = Options(
        settings=settings,
        lease_namespace=lease_namespace or connection.namespace,
        namespaces=() if namespaces == "all" else _names(namespaces),
        selector=selector,
        lease=lease,
        metrics_port=metrics_port,
        web=parse_address(web_address, "--web-address") if web_address else None,
        workers=workers,
    )
    return asyncio.run(_run(connection, options))


async def _run(connection: Connection, options: Options) -> int:
    return await Operator(connection, options).run()


def start_logging(level: str) -> None:
    """One JSON object a line on stderr, ours and the libraries' alike."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Not what variables held: there are tokens among them.
        structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # kopf tells of each login; that it has trouble it says in warnings.
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code; an error that has a name is one line on stderr."""
    try:
        code = app(arguments, result_action="return_value")
    except ChangefeedError as e:
        sys.stderr.write(f"{e}\n")
        return e.exit_code
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
