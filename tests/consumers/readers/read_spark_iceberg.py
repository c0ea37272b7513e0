"""Iceberg's own reader, in the newest Spark that Iceberg has a runtime for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import cache

import pyspark
from consumers_reading import APPEND, UPSERT, Part, Reading, Row
from pyspark.sql import SparkSession


def version() -> str:
    return f"{pyspark.__version__} with Iceberg {os.environ['ICEBERG']}"


@cache
def session() -> SparkSession:
    os.environ["TZ"] = "UTC"
    time.tzset()
    build = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    return build.config("spark.sql.session.timeZone", "UTC").getOrCreate()


def rows(part: Part, *meta: str) -> Iterable[Row]:
    names = [*meta, *(column.name for column in part.columns)]
    frame = session().read.format("iceberg").load(str(part.folder))
    for row in frame.select(*(f"`{name}`" for name in names)).collect():
        yield [bytes(value) if isinstance(value, bytearray) else value for value in row]


def append(part: Part) -> Iterable[Row]:
    return rows(part, "_op", "_commit_ts")


READINGS = [Reading(APPEND, append), Reading(UPSERT, rows)]
