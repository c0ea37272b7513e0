"""Runs SQL statements in Spark: a line of JSON for each on stdin, and one with its rows or its error on stdout.

It runs in an environment of its own (integration_spark_sql), as Iceberg has no runtime yet for the project's Spark.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Java prints is no answer
    builder = SparkSession.builder
    for setting in sys.argv[1:]:
        builder = builder.config(*setting.split("=", 1))
    spark = builder.getOrCreate()
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = {"rows": [list(row) for row in spark.sql(json.loads(line)).collect()]}
        except Exception as error:  # noqa: BLE001 - whatever it is, the test is told
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer, default=str), file=answers, flush=True)


main()
