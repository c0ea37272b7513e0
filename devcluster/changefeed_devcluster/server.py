"""The development cluster as others use it: another process may ask for harm and DDLs too, on PD's port."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from .cluster import LocalCluster
from .control import control_handler


class DevCluster(LocalCluster):
    """A cluster that is also harmed from other processes, through `control`."""

    def _pd_handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        return [*super()._pd_handlers(), control_handler(self)]
