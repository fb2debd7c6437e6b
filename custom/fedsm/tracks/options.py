"""A track's own options: what a job may set beside its kind. Each method's file lists its own."""

from __future__ import annotations

from typing import ClassVar

from fedsm.core.model import Settings


class TrackOptions(Settings):
    """Options of a track; most kinds have none."""

    errors_are_public: ClassVar[bool] = True  # a site gets these values from the server
