"""The exception for what cannot be used."""

from __future__ import annotations


class Unusable(Exception):
    """A file, series or mask that cannot be used: why, and the remedy. Never quotes a value of the file."""

    def __init__(self, reason: str, remedy: str):
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy
