"""The krew plugin `kubectl changefeed` of a release: its archive, and the manifest for a krew index.

    python deploy/krew.py archive --wheel dist/changefeed_operator-0.1.0-py3-none-any.whl --out build/plugin.tar.gz
    python deploy/krew.py manifest --version 0.1.0 --homepage URL --uri URL --archive build/plugin.tar.gz

The archive holds the wheel, the locked requirements of its Kubernetes side, and the script that installs both when it
is called first. The same files give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from string import Template

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "deploy" / "krew"
SCRIPT = HERE / "kubectl-changefeed"
REQUIREMENTS = ROOT / "requirements" / "operator.txt"


def archive(wheel: Path) -> bytes:
    """A .tar.gz of the plugin, whose command is the wheel's."""
    files = {SCRIPT.name: SCRIPT, "requirements.txt": REQUIREMENTS, wheel.name: wheel, "LICENSE": ROOT / "LICENSE"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as made:
        for name, file in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = file.stat().st_size, 0o755 if file == SCRIPT else 0o644
            made.addfile(entry, io.BytesIO(file.read_bytes()))
    return gzip.compress(packed.getvalue(), mtime=0)


def manifest(version: str, homepage: str, uri: str, sha256: str) -> str:
    """The plugin's manifest: `uri` is where krew gets the archive, with this hash."""
    template = Template((HERE / "changefeed.yaml").read_text(encoding="utf-8"))
    return template.substitute(version=version, homepage=homepage, uri=uri, sha256=sha256)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    pack = verbs.add_parser("archive", help="write the archive")
    pack.add_argument("--wheel", type=Path, required=True)
    pack.add_argument("--out", type=Path, required=True)
    describe = verbs.add_parser("manifest", help="print the manifest")
    for name in ("--version", "--homepage", "--uri"):
        describe.add_argument(name, required=True)
    describe.add_argument("--archive", type=Path, required=True)
    given = parser.parse_args(arguments)
    if given.verb == "archive":
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_bytes(archive(given.wheel))
    else:
        sha256 = hashlib.sha256(given.archive.read_bytes()).hexdigest()
        sys.stdout.write(manifest(given.version, given.homepage, given.uri, sha256))
    return 0


if __name__ == "__main__":
    sys.exit(main())
