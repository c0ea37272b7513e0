"""The chart says what the samples say: its shapes are read back into seconds."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from changefeed.spec.driver_status import SAMPLES_MAX, LagSample
from changefeed.ui.chart import BANDS, lag_chart
from ui_page import NOW_MS

SVG = "{http://www.w3.org/2000/svg}"


class Drawn:
    def __init__(self, samples: list[LagSample]) -> None:
        self.root = ElementTree.fromstring(
            str(lag_chart(samples)).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        )
        lines = [float(line.attrib["y1"]) for line in self.root.findall(f"{SVG}line")]
        labels = [each for each in self.root.findall(f"{SVG}text") if each.attrib["text-anchor"] == "end"]
        self.bottom, self.top = lines[0], lines[-1]
        self.highest = self._seconds(str(labels[len(lines) - 1].text))

    @staticmethod
    def _seconds(said: str) -> float:
        units = {"s": 1, "min": 60, "h": 3600, "d": 86400}
        return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (\w+)", said))

    def band(self, name: str) -> list[float]:
        """How thick it is at each column, seconds."""
        return [high - low for low, high in self.edges(name)]

    def edges(self, name: str) -> list[tuple[float, float]]:
        """Where it begins and ends at each column, seconds."""
        points = self.root.find(f"{SVG}polygon[@class='band-{name}']").attrib["points"].split()
        ys = [float(point.split(",")[1]) for point in points]
        above, below = ys[: len(ys) // 2], ys[len(ys) // 2 :][::-1]
        scale = self.highest / (self.bottom - self.top)
        return [
            ((self.bottom - low) * scale, (self.bottom - high) * scale) for high, low in zip(above, below, strict=True)
        ]


def _sample(at_s: int, pull: float, plan: float, write: float) -> LagSample:
    return LagSample(at_ms=NOW_MS + at_s * 1000, pull=pull, plan=plan, write=write)


@pytest.mark.parametrize("scale", [0.05, 1.0, 40.0, 5_000.0, 1e6])
def test_each_band_is_as_thick_as_its_stage_is_late(scale: float) -> None:
    samples = [_sample(5 * n, scale * n, scale, scale * (3 - n)) for n in range(4)]
    drawn = Drawn(samples)
    for name, _ in BANDS:
        expected = [getattr(sample, name) for sample in samples]
        assert drawn.band(name) == pytest.approx(expected, abs=drawn.highest / 400), name
    assert drawn.highest >= max(sample.total for sample in samples)
    for lower, upper in pairwise(name for name, _ in BANDS):
        assert [high for _, high in drawn.edges(lower)] == [low for low, _ in drawn.edges(upper)]


@pytest.mark.parametrize("worst", [333, 334, 335])
def test_an_hour_is_drawn_in_few_columns_and_its_worst_moment_stays(worst: int) -> None:
    samples = [_sample(5 * n, 0.1, 0.1, 0.1) for n in range(SAMPLES_MAX)]
    samples[worst] = _sample(5 * worst, 50.0, 0.0, 0.0)
    drawn = Drawn(samples)
    assert len(drawn.band("pull")) <= 241
    assert max(drawn.band("pull")) == pytest.approx(50.0, abs=1.0)
    said = [str(title.text) for title in drawn.root.iter(f"{SVG}title")]
    assert sum("50 s (upstream and pullers 50 s, planner 0.0 s, pipeline and sink 0.0 s)" in each for each in said) == 1


def test_one_sample_is_a_chart_and_none_is_nothing() -> None:
    assert Drawn([_sample(0, 0.0, 0.0, 0.0)]).band("write") == [0.0]
    assert lag_chart([]) == ""
