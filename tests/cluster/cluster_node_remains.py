"""What real nodes leave outside of their folders, and its removal: after a stop, and after test runs that were killed.

A node's mark, `changefeed-PID-nodeN` of the test run's process, is a part of the paths, names and command lines of all
of it. Nothing without a mark is touched.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster_network import Network
from cluster_processes import wait_until

#: Of every hierarchy (cgroup v1), or the one that there is (v2).
_CGROUPS = Path("/sys/fs/cgroup")
_MARK = re.compile(r"changefeed-(\d+)-node\d+")
_NETWORK = re.compile(r"changefeed-(\d+)")
_POD_NETWORKS = Path("/var/lib/cni/results")
_LOG_LINKS = Path("/var/log/containers")
_GONE_S = 30.0


def mark(network: Network, node: str) -> str:
    return f"{network.name}-{node}"


def own_cgroups(of: str) -> list[Path]:
    """Those of the node with this mark; they need not be there."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS / of]
    return [hierarchy / of for hierarchy in _CGROUPS.iterdir() if hierarchy.is_dir() and not hierarchy.is_symlink()]


def remove_killed() -> None:
    """What test runs left that were killed: their pods would live on for ever."""
    networks = [path for path in Path("/run/netns").glob("*") if _has_ended(_NETWORK.fullmatch(path.name))]
    remove(lambda text: _has_ended(_MARK.search(text)))
    for network in networks:
        listed = subprocess.run(["ip", "netns", "pids", network.name], capture_output=True, text=True, check=False)
        for pid in listed.stdout.split():
            _kill(int(pid))
        subprocess.run(["ip", "netns", "delete", network.name], capture_output=True, check=False)


def _has_ended(found: re.Match[str] | None) -> bool:
    return found is not None and not Path("/proc", found[1]).exists()


def remove(is_remains: Callable[[str], bool]) -> None:
    """Whatever has a path, a name or a command line of which `is_remains` says so."""
    _end_shims(is_remains)
    cgroups = [found for found in _all_cgroups() if is_remains(found.name)]
    for pid in _inside(cgroups):
        _kill(pid)
    wait_until(lambda: not _inside(cgroups), f"the processes of {cgroups} end", _GONE_S)
    for link in _LOG_LINKS.iterdir() if _LOG_LINKS.exists() else ():
        if link.is_symlink() and is_remains(str(link.readlink())):
            link.unlink()
    _forget_pod_networks(is_remains)
    for mount in reversed([line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]):
        if is_remains(mount):
            subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
    wait_until(lambda: _are_gone(cgroups), f"{cgroups} can be removed", _GONE_S)


def _end_shims(is_remains: Callable[[str], bool]) -> None:
    """Those of containerd that hold the containers, with their sockets, which are not in the node's folder."""
    for pid, command in _commands():
        if "containerd-shim" in command[0] and is_remains(" ".join(command)):
            for socket in _sockets(pid):
                socket.unlink(missing_ok=True)
            _kill(pid)


def _sockets(pid: int) -> set[Path]:
    """The socket files that the process listens at."""
    process = Path("/proc", str(pid))
    opened, listed = set(), []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it is just ending
        opened = {str(file.readlink()) for file in (process / "fd").iterdir()}
        listed = [line.split() for line in (process / "net" / "unix").read_text().splitlines()]
    return {Path(line[7]) for line in listed if len(line) == 8 and f"socket:[{line[6]}]" in opened}


def _commands() -> Iterator[tuple[int, list[str]]]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield int(process.name), (process / "cmdline").read_text().split("\0")


def _all_cgroups() -> Iterator[Path]:
    for depth in ("*", "*/*"):
        yield from (path for path in _CGROUPS.glob(depth) if path.is_dir() and not path.parent.is_symlink())


def _inside(cgroups: list[Path]) -> set[int]:
    found: set[int] = set()
    for folder, _, _ in itertools.chain.from_iterable(map(os.walk, cgroups)):
        with contextlib.suppress(OSError):  # it is just going
            found.update(map(int, Path(folder, "cgroup.procs").read_text().split()))
    return found


def _are_gone(cgroups: list[Path]) -> bool:
    for folder, _, _ in itertools.chain.from_iterable(os.walk(cgroup, topdown=False) for cgroup in cgroups):
        with contextlib.suppress(OSError):  # it goes, or is busy for a moment more
            Path(folder).rmdir()
    return not any(cgroup.exists() for cgroup in cgroups)


def _forget_pod_networks(is_remains: Callable[[str], bool]) -> None:
    """Records that the network plugins' caller keeps; those of a pod's loopback say nothing of the node."""
    results = list(_POD_NETWORKS.iterdir()) if _POD_NETWORKS.exists() else []
    pods = {json.loads(result.read_text())["containerId"] for result in results if is_remains(result.name)}
    for result in results:
        if any(pod in result.name for pod in pods):
            result.unlink()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
