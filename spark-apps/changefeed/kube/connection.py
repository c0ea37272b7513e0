"""How to reach the API server: from a pod, or with a kubeconfig.

Tokens are re-read while a process runs, because projected ones rotate and those of plugins expire. A token never
appears in a message.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from changefeed.errors import NeedsHuman

#: Where a pod finds its ServiceAccount's token, CA and namespace.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

#: Seconds after which a token file is read again.
TOKEN_AGE = 30.0

#: Maximum connections of a session.
CONNECTIONS = 64


@dataclass(frozen=True)
class Plugin:
    """A kubeconfig's login program (client-go's exec credential plugins). `cluster`: told to it if it asks for that."""

    said: Mapping[str, Any]
    cluster: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Plugin({self.said.get('command')!r})"

    def credential(self) -> tuple[Mapping[str, str], datetime]:
        """Return its credential (`token`, or `clientCertificateData` and `clientKeyData`), and when that expires.

        Raises NeedsHuman, without what the program has written, which may be secret.
        """
        from kubernetes.config import ConfigException
        from kubernetes.config.exec_provider import ExecProvider
        from kubernetes.config.kube_config import ConfigNode

        said, cluster = ConfigNode("exec", dict(self.said)), ConfigNode("cluster", dict(self.cluster))
        try:
            status = ExecProvider(said, None, cluster).run()
            until = datetime.fromisoformat(status.get("expirationTimestamp") or _NEVER)
        except (ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            command, why = self.said.get("command"), type(e).__name__
            raise NeedsHuman(
                f"The kubeconfig's login plugin {command} returned no credential ({why}).",
                "Run it, or kubectl, by hand to see why.",
            ) from None
        return status, until


_NEVER = "9999-01-01T00:00:00+00:00"


@dataclass(frozen=True)
class Connection:
    """One API server and our identity there.

    `namespace`: the pod's own, or the kubeconfig's.
    """

    server: str
    namespace: str = "default"
    ca_file: str = ""
    ca_data: str = ""  # PEM
    verify: bool = True
    certificate: bytes = b""  # PEM
    key: bytes = b""  # PEM
    token: str = ""
    token_file: str = ""
    plugin: Plugin | None = None

    def __repr__(self) -> str:
        return f"Connection({self.server!r}, namespace={self.namespace!r})"

    def session(
        self, timeout: float, limit: int = CONNECTIONS, middlewares: Sequence[aiohttp.ClientMiddlewareType] = ()
    ) -> aiohttp.ClientSession:
        """A new authenticated session; the caller closes it. `timeout`: seconds per request; `limit`: of connections,
        0 for no limit."""
        connector = aiohttp.TCPConnector(limit=limit, ssl=self.tls())
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, 10.0)),
            middlewares=(_bearer(self), *middlewares),
            headers={"User-Agent": "changefeed"},
        )

    def tls(self) -> ssl.SSLContext | bool:
        """The TLS context with CA and client certificate; True (unused) for plain http.

        Raises NeedsHuman if the CA or a certificate can't be read.
        """
        if not self.server.startswith("https:"):
            return True
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None, cadata=self.ca_data or None)
            given = self.plugin.credential()[0] if self.plugin else {}
            if certificate := self.certificate or given.get("clientCertificateData", "").encode():
                # The ssl module only reads them from files.
                with tempfile.TemporaryDirectory() as folder:
                    files = Path(folder, "tls.crt"), Path(folder, "tls.key")
                    for file, content in zip(
                        files, (certificate, self.key or given.get("clientKeyData", "").encode()), strict=True
                    ):
                        file.touch(mode=0o600)
                        file.write_bytes(content)
                    context.load_cert_chain(*files)
        except (OSError, ValueError) as e:
            raise NeedsHuman(
                f"The certificates for {self.server} can't be used: {e}.",
                "Check the CA, and the client certificate and key.",
            ) from e
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def in_pod(environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> Connection:
    """The connection of a pod's ServiceAccount, whose files are read when needed; raises NeedsHuman outside a pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise NeedsHuman(
            "No API server is configured: no kubeconfig was given, and KUBERNETES_SERVICE_HOST is unset.",
            "Pass a kubeconfig with --kubeconfig or KUBECONFIG.",
        )
    host = f"[{host}]" if ":" in host else host
    return Connection(
        server=f"https://{host}:{port}",
        namespace=namespace.read_text().strip() if (namespace := folder / "namespace").is_file() else "default",
        ca_file=str(folder / "ca.crt"),
        token_file=str(folder / "token"),
    )


def from_kubeconfig(paths: str, context: str = "") -> Connection:
    """A context of a kubeconfig, by default the current one. `paths` may be several, joined by ":"; the first that
    defines an entry wins. Raises NeedsHuman if it can't be read.
    """
    from kubernetes.config import ConfigException

    merged, current = _merged(paths)
    current = context or current
    try:
        chosen = merged["contexts"].get_with_name(current).value["context"]
        cluster_entry = merged["clusters"].get_with_name(chosen["cluster"])
        user_entry = merged["users"].get_with_name(chosen.get("user", ""), safe=True)
        cluster, user = cluster_entry.value["cluster"], (user_entry and user_entry.value.get("user")) or {}
        server = str(cluster["server"]).rstrip("/")
    except (ConfigException, LookupError, TypeError, AttributeError):
        raise NeedsHuman(
            f"The kubeconfig {paths} has no server for the context {current!r}.",
            "See `kubectl config get-contexts`.",
        ) from None
    cluster_folder, user_folder = Path(cluster_entry.path).parent, Path(user_entry.path if user_entry else "").parent
    if "auth-provider" in user:
        raise NeedsHuman(
            f"The kubeconfig {paths} uses an auth-provider, which Kubernetes no longer supports.",
            "Use a token, a client certificate or an exec plugin.",
        )
    return Connection(
        server=server,
        namespace=chosen.get("namespace") or "default",
        ca_data=_data(cluster, "certificate-authority", cluster_folder).decode(),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        certificate=_data(user, "client-certificate", user_folder),
        key=_data(user, "client-key", user_folder),
        token=user.get("token", ""),
        token_file=_file(user, "tokenFile", user_folder),
        plugin=_plugin(user["exec"], user_folder, cluster) if user.get("exec") else None,
    )


def _plugin(said: Mapping[str, Any], folder: Path, cluster: Mapping[str, Any]) -> Plugin:
    """A command with a slash is relative to the kubeconfig; any other is looked up on PATH."""
    command = str(folder / said["command"]) if "/" in said["command"] else str(said["command"])
    return Plugin({**said, "command": command}, cluster)


def _merged(paths: str) -> tuple[Any, str]:
    """Merge their entries, the first of each name, and take the first current context.

    The client's errors name what they found, tokens too, so none of their words are passed on.
    """
    from kubernetes.config import ConfigException
    from kubernetes.config.kube_config import KubeConfigMerger

    try:
        merger = KubeConfigMerger(paths)
        if merger.config is None:
            raise NeedsHuman(f"The kubeconfig {paths} can't be read: no such file.", "Pass another with --kubeconfig.")
        # The merger takes the last one, kubectl the first.
        contexts = (str(content.get("current-context") or "") for content in merger.config_files.values())
        return merger.config, next(filter(None, contexts), "")
    except OSError as e:
        raise NeedsHuman(f"The kubeconfig {paths} can't be read: {e}.", "Pass another with --kubeconfig.") from e
    except (ConfigException, yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError) as e:
        raise NeedsHuman(
            f"{paths} is not a kubeconfig ({type(e).__name__}).", "Pass another with --kubeconfig."
        ) from None


def _file(section: Mapping[str, Any], name: str, folder: Path) -> str:
    return str(folder / section[name]) if section.get(name) else ""


def _data(section: Mapping[str, Any], name: str, folder: Path) -> bytes:
    if section.get(f"{name}-data"):
        return base64.b64decode(str(section[f"{name}-data"]))
    if section.get(name):
        try:
            return Path(folder, section[name]).read_bytes()
        except OSError as e:
            raise NeedsHuman(f"{name} of the kubeconfig can't be read: {e}.", "Fix the kubeconfig.") from e
    return b""


def _bearer(connection: Connection) -> aiohttp.ClientMiddlewareType:
    token = _token(connection)

    async def middleware(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if value := token():
            request.headers["Authorization"] = f"Bearer {value}"
        return await handler(request)

    return middleware


def _token(connection: Connection) -> Callable[[], str]:
    """Returns the current token; while its file can't be read, the last one."""
    last, read_at, good_until = connection.token, -TOKEN_AGE, datetime(1970, 1, 2, tzinfo=UTC)

    def token() -> str:
        nonlocal last, read_at, good_until
        if connection.plugin and datetime.now(UTC) > good_until - timedelta(seconds=TOKEN_AGE):
            given, good_until = connection.plugin.credential()
            last = given.get("token", "")
        elif connection.token_file and time.monotonic() - read_at > TOKEN_AGE:
            read_at = time.monotonic()
            try:
                last = Path(connection.token_file).read_text().strip()
            except OSError as e:
                if not last:
                    raise NeedsHuman(
                        f"The token file {connection.token_file} can't be read: {e}.",
                        "Mount the ServiceAccount's token.",
                    ) from e
        return last

    return token
