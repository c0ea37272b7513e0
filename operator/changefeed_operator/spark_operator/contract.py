"""What the rest of the operator knows of a Spark operator. Pure.

Both kinds have a resource SparkApplication; they differ in its API group, its fields and the words of its status.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, ClassVar

from changefeed_operator import api
from changefeed_operator.api import Json


@dataclass(frozen=True)
class PodRole:
    """The driver's pod, or that of each executor.

    `heap_mib` and `overhead_mib` add up to the memory limit; `core_limit` "": none. `template`: a pod template, whose
    first container is not necessarily Spark's.
    """

    cores: int
    heap_mib: int
    overhead_mib: int
    core_request: str
    core_limit: str
    service_account: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    template: Json


@dataclass(frozen=True)
class SparkProgram:
    """What an attempt runs: a Python file in an image, never restarted by the Spark operator.

    `driver_pod`: the name that the driver's pod must have.
    """

    spark_version: str
    image: str
    image_pull_policy: str
    image_pull_secrets: tuple[str, ...]
    file: str
    arguments: tuple[str, ...]
    conf: Mapping[str, str]
    driver: PodRole
    driver_pod: str
    executor: PodRole
    executors: int


class ApplicationStage(Enum):
    """How far the Spark operator says that an application has got."""

    UNSEEN = auto()  # it has said nothing yet
    NEW = auto()  # the driver's pod is about to be created
    NOT_SUBMITTED = auto()  # the driver's pod could not be created
    UNDER_WAY = auto()
    OVER = auto()


@dataclass(frozen=True)
class ApplicationState:
    """What the status of a SparkApplication says.

    `word`: the state as the Spark operator calls it, "" for none. `said`: its message, of many lines if it quotes a
    JVM. `driver_status`: the status of the driver's pod as last seen by a Spark operator that keeps it.
    """

    stage: ApplicationStage
    word: str = ""
    said: str = ""
    driver_status: Json = field(default_factory=dict)


class SparkApi(ABC):
    """The API of a Spark operator.

    `name`: as in the chart's `spark.operator`. `product`: what people call it. `roles`: where the pod templates of
    driver and executors are in a spec. `namespaces_value`: the value of its chart that lists its namespaces.
    """

    name: ClassVar[str]
    product: ClassVar[str]
    kind: ClassVar[api.Kind]
    roles: ClassVar[tuple[tuple[str, str], tuple[str, str]]]
    namespaces_value: ClassVar[str]

    @abstractmethod
    def spec(self, program: SparkProgram) -> dict[str, Any]:
        """The spec of its SparkApplication. Sets every field that it would default."""

    @abstractmethod
    def state(self, found: Json) -> ApplicationState:
        """What its SparkApplication says of itself."""

    @abstractmethod
    def image(self, found: Json) -> str:
        """The image that its SparkApplication runs; "" if unknown."""

    def outline(self, manifest: Json) -> dict[str, Any]:
        """The manifest without the pod templates: the API server drops unknown fields that users put there."""
        spec = dict(api.mapping_at(manifest, "spec"))
        for role, template in self.roles:
            spec[role] = {name: value for name, value in api.mapping_at(spec, role).items() if name != template}
        return {**manifest, "spec": spec}

    def driver_template(self, found: Json) -> Json:
        """The pod template of the driver."""
        return api.mapping_at(found, "spec", *self.roles[0])
