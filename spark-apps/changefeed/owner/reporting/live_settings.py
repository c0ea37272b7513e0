"""The settings that a running driver picks up without a restart (spec/live.py). It starts with those of its config."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from changefeed.spec.live import settings_of, with_settings
from changefeed.spec.model import Changefeed, Spec
from changefeed.spec.problem import InvalidResource


class LiveSettings:
    """`changed` is called when one of them is another than before."""

    def __init__(self, changefeed: Changefeed, changed: Callable[[], None] = lambda: None) -> None:
        self._changefeed = changefeed
        self._changed = changed
        self.by_path = settings_of(changefeed)

    @property
    def spec(self) -> Spec:
        """With the settings as they are now; all else is as the driver was started with."""
        return self._changefeed.spec

    def told(self, settings: Mapping[str, object]) -> bool:
        """The operator has accepted these. What this version does not know is passed over; False, and nothing changes,
        when one of the others can't be read."""
        try:
            after = with_settings(self._changefeed, settings)
        except InvalidResource:
            return False
        if (by_path := settings_of(after)) != self.by_path:
            self._changefeed, self.by_path = after, by_path
            self._changed()
        return True
