"""Archives whose bytes depend on nothing but the names and contents of their files, and one date."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path


def files_below(folder: Path, under: str = "") -> dict[str, Path]:
    """The files of a folder by their names in an archive, which begin with `under`."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(Path(under, path.relative_to(folder))): path for path in found}


def tar(files: Mapping[str, Path], epoch: int) -> bytes:
    """A tar archive of nobody's files, in the order of their names."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size = files[name].stat().st_size
            member.mode = 0o755 if files[name].stat().st_mode & 0o100 else 0o644
            member.mtime = epoch
            with files[name].open("rb") as file:
                archive.addfile(member, file)
    return content.getvalue()


def write_tar_gz(path: Path, files: Mapping[str, Path], epoch: int) -> Path:
    """Returns `path`. The file itself is of that date too: `helm push` tells the registry of it."""
    with path.open("wb") as out, gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=epoch) as packed:
        packed.write(tar(files, epoch))
    os.utime(path, (epoch, epoch))
    return path


def repack(path: Path, epoch: int) -> Path:
    """Rewrite a .tar.gz file without the times, the owner and the order that its maker gave it. Returns `path`."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(path) as packed:
            packed.extractall(folder, filter="data")
        return write_tar_gz(path, files_below(Path(folder)), epoch)
