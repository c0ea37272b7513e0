"""The operator's web page: the status of all changefeeds, and for a single one also what its driver reports.

A shell around `changefeed.ui`. It writes nothing, and queries a driver only when its changefeed is viewed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from changefeed.ui.drivers import Drivers, DriverSilence
from changefeed.ui.resource import of_resource
from changefeed.ui.view import ChangefeedView, Overview, overview, with_driver

from changefeed_operator import api
from changefeed_operator.api import Json
from changefeed_operator.manifests.pods import METRICS_PORT

_WITHOUT = (
    "Only the resource's status is shown; lag by stage, tables and open transactions come from the driver. Check its "
    "pod, and that its NetworkPolicy admits the operator (web.enabled)."
)
_NO_DRIVER = "No driver is running, so lag by stage, tables and open transactions are not available."

#: States in which a driver is queried.
_DRIVEN = ("Pending", "Normal", "Warning")

#: Returns the Changefeeds that the operator serves.
Changefeeds = Callable[[], Awaitable[Iterable[Json]]]


class ClusterChangefeeds:
    """A `changefeed.ui.server.ChangefeedsSource`. `address_of(namespace, name)`: of a driver's metrics."""

    where = "as the operator sees them"

    def __init__(
        self, changefeeds: Changefeeds, drivers: Drivers, address_of: Callable[[str, str], str] | None = None
    ) -> None:
        self._changefeeds = changefeeds
        self._drivers = drivers
        self._address_of = address_of or _service

    async def overview(self) -> Overview:
        now_ms = _now_ms()
        return overview(of_resource(each, now_ms) for each in await self._changefeeds())

    async def changefeed(self, namespace: str, name: str) -> ChangefeedView | None:
        for each in await self._changefeeds():
            if (api.text_at(each, "metadata", "namespace"), api.name_of(each)) == (namespace, name):
                return await self._with_driver(of_resource(each, _now_ms()))
        return None

    async def _with_driver(self, known: ChangefeedView) -> ChangefeedView:
        if known.state not in _DRIVEN:
            return replace(known, notes=(_NO_DRIVER,))
        address = self._address_of(known.namespace, known.name)
        answer = await self._drivers.ask(address)
        if isinstance(answer, DriverSilence):
            return replace(known, notes=(f"{answer.why} {_WITHOUT}",))
        if (answer.namespace, answer.name) != (known.namespace, known.name):
            return replace(known, notes=(f"Another changefeed's driver answers at {address}. {_WITHOUT}",))
        return with_driver(known, answer)


def _service(namespace: str, name: str) -> str:
    return f"{api.child_name(name)}.{namespace}.svc:{METRICS_PORT}"


def _now_ms() -> int:
    return int(time.time() * 1000)
