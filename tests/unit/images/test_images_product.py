"""What of our code is in the images."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_production_images_hold_no_development_cluster(tmp_path: Path) -> None:
    source, home = tmp_path / "source", tmp_path / "home"
    for folder in ("spark-apps", "operator"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / file, source)
    home.mkdir()
    (home / "venv").symlink_to(sys.prefix)
    subprocess.run(
        [ROOT / "images" / "product.sh", source], env={**os.environ, "CHANGEFEED_HOME": str(home)}, check=True
    )
    packages = {path.name for path in (home / "product").iterdir() if path.name.startswith("changefeed")}
    assert {"changefeed", "changefeed_operator"} <= packages
    assert "changefeed_devcluster" not in packages
    pages = home / "product" / "changefeed" / "ui"
    found = {path.relative_to(pages) for path in pages.rglob("*.*") if path.suffix != ".pyc"}
    there = ROOT / "spark-apps" / "changefeed" / "ui"
    assert found == {path.relative_to(there) for path in there.rglob("*.*") if path.suffix != ".pyc"}
    (licenses,) = (home / "product").glob("changefeed_operator-*.dist-info/licenses")
    assert {path.name for path in licenses.iterdir()} == {"LICENSE", "NOTICE"}
    assert {path.name for path in (home / "product" / "bin").iterdir()} == {"changefeed", "kubectl-changefeed"}
