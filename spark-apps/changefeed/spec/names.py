"""What the resource is called on an API server; nothing heavy comes with it."""

from __future__ import annotations

from typing import Final

GROUP: Final = "changefeed.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "Changefeed"
PLURAL: Final = "changefeeds"
