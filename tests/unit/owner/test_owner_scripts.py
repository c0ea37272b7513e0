"""Stories of the owner, told in testdata/*.txt: what comes in, and what it says is to be done. See owner_world.py."""

from __future__ import annotations

from pathlib import Path

import datadriven
import pytest
from owner_world import World

STORIES = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_story(story: Path, rewrite: bool) -> None:
    datadriven.play(story, datadriven.each(World().run), rewrite)
