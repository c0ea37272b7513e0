"""Values that never change, and that JSON is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Takes no member that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
