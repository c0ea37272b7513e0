"""A laptop's JVM, started as Spark's script starts one, without the script and the JVM that it starts to find out how.

That saves a second between a crash and the first row after it. It is told nothing of a run: all that is in Spark's
configuration it learns when its context is made.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

from changefeed.spark.jvm import class_archive

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

_MAIN = "org.apache.spark.api.python.PythonGatewayServer"
_SAYS_WHERE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_IS_AT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"  # what makes PySpark connect to one that runs
_POLL_S = 0.01  # it says so by a file, which is there or not


def leaves_in(folder: Path) -> str:
    """Return the option by which a JVM leaves its temporary files there: one that is killed doesn't delete them."""
    return f"-Djava.io.tmpdir={folder}"


class Jvm:
    """One that was started by `started`. It ends when its standard input does, which this process holds open."""

    def __init__(self, process: subprocess.Popen[bytes], says_where: Path) -> None:
        self._process = process
        self._says_where = says_where

    @classmethod
    def started(cls, folder: Path, output: IO[bytes] | None) -> Jvm | None:
        """Start a JVM.

        None: the command is not known (class_archive), the script has to be asked.

        `folder` is of this run alone. A session of its own: Ctrl-C is for the driver alone.
        """
        command = class_archive.command()
        if command is None:
            return None
        says_where = folder / "jvm"
        process = subprocess.Popen(
            [*command, leaves_in(folder), _MAIN],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, _SAYS_WHERE: str(says_where)},
            start_new_session=True,
        )
        return cls(process, says_where)

    def connect(self) -> JavaGateway:
        """Wait until it can be talked to. Raises PySparkRuntimeError when it has ended instead."""
        from pyspark.errors import PySparkRuntimeError
        from pyspark.java_gateway import launch_gateway
        from pyspark.serializers import UTF8Deserializer, read_int

        while not self._says_where.exists():
            if self._process.poll() is not None:
                raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
            time.sleep(_POLL_S)
        with self._says_where.open("rb") as said:
            os.environ[_IS_AT], os.environ[_SECRET] = str(read_int(said)), UTF8Deserializer().loads(said)
        try:
            gateway = launch_gateway()
        finally:
            del os.environ[_IS_AT], os.environ[_SECRET]
            self._says_where.unlink()
        gateway.proc = self._process
        return gateway
