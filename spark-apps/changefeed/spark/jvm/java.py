"""Looks for a Java for Spark, before anything else is done: a run that can't start its JVM must leave no trace."""

from __future__ import annotations

import os
import shutil

from changefeed.errors import NeedsHuman

_INSTALL = "Install Java 17 or later (Debian: openjdk-17-jre-headless), and have it in PATH or at JAVA_HOME."


def check_java() -> None:
    """Look where Spark's own script looks. Raises NeedsHuman when it would find nothing."""
    home = os.environ.get("JAVA_HOME", "")
    if home and shutil.which(os.path.join(home, "bin", "java")) is None:
        raise NeedsHuman(f"Spark needs Java, and JAVA_HOME={home} holds no bin/java.", _INSTALL)
    if not home and shutil.which("java") is None:
        raise NeedsHuman("Spark needs Java, and there is no java in PATH.", _INSTALL)
