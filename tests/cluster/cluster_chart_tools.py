"""The chart, rendered and judged by the programs that other people judge it with: Helm, promtool, Argo CD's Lua."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from cluster_programs import SetupFailed, program

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "changefeed-operator"
MONITORING = "monitoring.coreos.com/v1"
KUBE_VERSION = ("--kube-version", "1.35.0")  # a helm of `go build` takes the cluster for one of 1.20
_RUN_S = 120.0


def run(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """The ended process with what it said, whatever its exit code."""
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=_RUN_S, check=False)


def render(
    values: dict[str, Any] | None = None, release: str = "prod", namespace: str = "changefeed-system"
) -> list[dict[str, Any]]:
    """What `helm template` gives for these values, on a cluster with the Prometheus Operator's kinds."""
    kinds = [f"{MONITORING}/{kind}" for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule")]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "values.yaml"
        file.write_text(yaml.safe_dump(values or {}))
        command: list[str | Path] = [
            program("helm"),
            "template",
            release,
            CHART,
            "-n",
            namespace,
            "-f",
            file,
            *KUBE_VERSION,
        ]
        done = run([*command, *(part for kind in kinds for part in ("--api-versions", kind))])
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(documents: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


@cache
def from_prometheus(name: str) -> Path:
    """`prometheus`, or its checker `promtool`: the one in PATH, or Debian's, unpacked into the cache and not installed.

    Raises SetupFailed when neither can be had.
    """
    if found := shutil.which(name):
        return Path(found)
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "changefeed" / "prometheus"
    cached.mkdir(parents=True, exist_ok=True)
    wanted = cached / name
    with (cached / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if wanted.exists():
            return wanted
        if not (shutil.which("apt-get") and shutil.which("dpkg")):
            raise SetupFailed(f"{name} is not in PATH, and there is no apt-get to fetch it with: install Prometheus")
        with tempfile.TemporaryDirectory(dir=cached) as scratch:
            done = _apt(["download", "prometheus"], scratch)
            if done.returncode:
                _apt(["update"], scratch)
                done = _apt(["download", "prometheus"], scratch)
            packages = list(Path(scratch).glob("prometheus_*.deb"))
            if not packages:
                raise SetupFailed(f"Debian's package prometheus can't be fetched: {done.stderr[-500:]}")
            subprocess.run(["dpkg", "-x", packages[0], f"{scratch}/unpacked"], check=True)
            for program_name in ("prometheus", "promtool"):
                Path(scratch, "unpacked/usr/bin", program_name).rename(cached / program_name)
    return wanted


def _apt(arguments: Sequence[str], folder: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["apt-get", "-q", *arguments], cwd=folder, capture_output=True, text=True, check=False)


_TO_JSON = r"""
local function json(value)
  if type(value) ~= "table" then
    if type(value) ~= "string" then return tostring(value) end
    return '"' .. value:gsub('[\\"]', "\\%0"):gsub("\n", "\\n") .. '"'
  end
  local parts = {}
  if #value > 0 then
    for _, item in ipairs(value) do table.insert(parts, json(item)) end
    return "[" .. table.concat(parts, ",") .. "]"
  end
  for key, item in pairs(value) do table.insert(parts, json(tostring(key)) .. ":" .. json(item)) end
  return "{" .. table.concat(parts, ",") .. "}"
end
"""


def lua(script: str, obj: dict[str, Any]) -> dict[str, Any]:
    """What a script of Argo CD's returns when the global `obj` is this object; a table without items gives {}."""
    text = f"{_TO_JSON}\nobj = {_literal(obj)}\nprint(json((function()\n{script}\nend)()))\n"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.lua"
        file.write_text(text)
        done = run([program("glua"), file])
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _literal(value: Any) -> str:
    """A value of JSON, in Lua."""
    if isinstance(value, dict):
        return "{" + ",".join(f"[{json.dumps(key)}]={_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ",".join(map(_literal, value)) + "}"
    return "nil" if value is None else json.dumps(value, ensure_ascii=False)
