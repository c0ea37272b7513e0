"""Why a submission failed, out of what spark-submit printed: testdata/recorded has its own words.

Recorded with the real Spark operator, Spark and API server, by `RECORD=FOLDER pytest FILE`: spark-submit's from the
SparkApplication's errorMessage (tests/cluster/test_cluster_operator_refusals.py), the driver's log from its pod
(tests/cluster/test_cluster_real_faults.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from changefeed_operator.decision.evidence.spark_words import cause_in, refusal_in

RECORDED = Path(__file__).parent / "testdata" / "recorded"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("quota", "exceeded quota: rule, requested: pods=1, used: pods=0, limited: pods=0"),
        ("range", "maximum memory usage per Container is 256Mi, but limit is 2Gi"),
        (
            "security",
            'violates PodSecurity "restricted:latest": runAsNonRoot != true '
            '(container "spark-kubernetes-driver" must not set securityContext.runAsNonRoot=false)',
        ),
        (
            "policy",
            "ValidatingAdmissionPolicy 'payer' with binding 'payer' denied request: every pod names who pays for it",
        ),
    ],
)
def test_what_the_api_server_answered_spark_submit_is_found(name: str, why: str) -> None:
    said = (RECORDED / f"spark-submit-{name}.txt").read_text()
    assert refusal_in(said) == why


def test_what_the_api_server_answered_sparks_allocator_is_found_and_is_the_same_each_second() -> None:
    """It tries a pod a second, each with another number."""
    said = (RECORDED / "driver-log-quota.txt").read_text()
    assert len(set(re.findall(r'pods "(changefeed-demo-2-exec-\d+)"', said))) > 2
    assert refusal_in(said) == "exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1"


def test_the_innermost_cause_is_told_when_it_was_no_refusal() -> None:
    stack = "\n\tat org.apache.spark.SparkSubmit.main(SparkSubmit.scala)\n\t... 12 more"
    said = f'WARNING: Using incubator modules\nException in thread "main" a.B: An error has occurred.{stack}'
    assert cause_in(said) == "a.B: An error has occurred"
    assert cause_in(f"{said}\nCaused by: java.net.ConnectException: Connection refused{stack}") == (
        "java.net.ConnectException: Connection refused"
    )
    assert cause_in("first\nlast one.\n\n") == "last one"
    assert (cause_in(""), refusal_in(said)) == ("", "")
