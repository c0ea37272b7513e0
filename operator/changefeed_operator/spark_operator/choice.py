"""Which Spark operators there are, and which of them runs a cluster's changefeeds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from changefeed_operator.spark_operator.apache import ApacheApi
from changefeed_operator.spark_operator.contract import SparkApi
from changefeed_operator.spark_operator.kubeflow import KubeflowApi

#: As in the chart's `spark.operator`.
OperatorName = Literal["Auto", "Kubeflow", "Apache"]

KUBEFLOW: Final = KubeflowApi()
APACHE: Final = ApacheApi()
#: All of them; of several that a cluster serves, `Auto` takes the first.
KNOWN: Final[tuple[SparkApi, ...]] = (KUBEFLOW, APACHE)


def candidates(name: OperatorName) -> Sequence[SparkApi]:
    """Those that the setting allows."""
    return KNOWN if name == "Auto" else tuple(each for each in KNOWN if each.name == name)


def missing(allowed: Sequence[SparkApi]) -> str:
    """What to say and do when the cluster serves the API of none of them."""
    crds = " nor ".join(f"{each.kind.plural}.{each.kind.group}" for each in allowed)
    products = " or ".join(each.product for each in allowed)
    if len(allowed) > 1:
        return f"The cluster has neither the CRD {crds}. Install {products}."
    return f"The cluster does not have the CRD {crds}. Install {products}, or change the chart's spark.operator."
