"""What goes into the images is locked, and is what was tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parents[3] / "requirements"
LOCKS = [
    "ministack.txt",
    "dev.txt",
    "operator.txt",
    "dataplane.txt",
    "build.txt",
    "uv.txt",
    "spark-4.1.txt",
    "java-25.txt",
    "consumers.txt",
]
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^ ;]+)(.*)$", re.MULTILINE)


def pins(lock: str) -> dict[str, str]:
    return {name: version for name, version, _ in _PIN.findall((REQUIREMENTS / lock).read_text())}


@pytest.mark.parametrize("lock", ["operator.txt", "dataplane.txt", "build.txt"])
def test_an_image_has_what_was_tested(lock: str) -> None:
    assert pins(lock)
    assert pins(lock).items() <= pins("dev.txt").items()


@pytest.mark.parametrize("lock", LOCKS)
def test_everything_is_hashed_and_no_registry_is_named(lock: str) -> None:
    text = (REQUIREMENTS / lock).read_text()
    assert "://" not in text
    assert "index-url" not in text
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text)
    assert [block for block in blocks if _PIN.match(block) and "--hash=sha256:" not in block] == []


def test_the_operator_has_no_spark() -> None:
    assert "pyspark" in pins("dataplane.txt")
    assert not {"pyspark", "py4j", "pyarrow", "polars"} & pins("operator.txt").keys()
