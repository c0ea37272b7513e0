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
from changefeed_operator.loop.runtime import Operator, OperatorOptions
from changefeed_operator.settings import Network, Settings, parse_defaults
from changefeed_operator.spark_operator.choice import OperatorName

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
    spark_operator: OperatorName = "Auto",
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
        Image of drivers, executors and Jobs.
    state_uri
        Where changefeeds without `spec.state.uri` keep their log and events; without this option the field is required.
    namespaces
        Namespaces to serve, comma-separated, or `all`.
    selector
        Serve only Changefeeds matching this label selector, in the syntax of `kubectl -l`.
    network_policy
        What each changefeed's NetworkPolicy allows, JSON as the chart renders it; by default there is no NetworkPolicy.
    disruption_budget
        Create a PodDisruptionBudget for each changefeed.
    image_pull_policy
        Pull policy of the image.
    image_pull_secrets
        Names of Secrets to pull it with, comma-separated.
    driver_role
        The ClusterRole that drivers are bound to; with a list of namespaces, the Role of that name in each of them.
    spark_operator
        Which Spark operator runs drivers; `Auto`: the one whose CRD the cluster has, kubeflow's if it has both.
    allow_privileged_templates
        Allow pod templates to use hostPath, hostNetwork, privileged containers and the like.
    defaults
        Default cores and memory of drivers and executors, JSON as the chart renders it.
    metrics_port
        Port for /metrics, /healthz and /readyz; 0 picks a free one.
    web_address
        Where to serve the web page, HOST:PORT, or :PORT for all addresses; by default it is off.
    lease
        Name of the Lease for leader election. Operators that serve different Changefeeds need different Leases.
    lease_namespace
        Namespace of the Lease; by default the operator's own.
    workers
        How many changefeeds to reconcile concurrently.
    log_level
        Minimum level to log.
    kubeconfig
        Kubeconfig for the API server; by default the pod's ServiceAccount is used.
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
    options = OperatorOptions(
        settings=settings,
        lease_namespace=lease_namespace or connection.namespace,
        spark_operator=spark_operator,
        namespaces=() if namespaces == "all" else _names(namespaces),
        selector=selector,
        lease=lease,
        metrics_port=metrics_port,
        web=parse_address(web_address, "--web-address") if web_address else None,
        workers=workers,
    )
    return asyncio.run(_run(connection, options))


async def _run(connection: Connection, options: OperatorOptions) -> int:
    return await Operator(connection, options).run()


def start_logging(level: str) -> None:
    """One JSON object per line on stderr, for our logs and the libraries'."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # No local variables: they may contain tokens.
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
    # kopf logs each login at info; problems are warnings.
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; a known error is printed as one line on stderr."""
    try:
        code = app(arguments, result_action="return_value")
    except ChangefeedError as e:
        sys.stderr.write(f"{e}\n")
        return e.exit_code
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
