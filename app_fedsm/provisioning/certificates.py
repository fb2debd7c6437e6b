"""Certificates that last for years: a builder for the `builders` of a project.yml.

FLARE's own CertBuilder can make the root last (`root_valid_days`), but every participant's certificate ends after 360
days, and then no site or user can connect.
"""

from __future__ import annotations

import datetime
from typing import Any

from nvflare.lighter.impl.cert import CertBuilder


class YearsCertBuilder(CertBuilder):
    """FLARE's builder, with a validity of the participants' certificates.

    Args:
        root_valid_days: of the root certificate, when a workspace makes it.
        valid_days: of server, sites and users; never beyond the root's. Certificates that exist are kept as they are.
    """

    def __init__(self, root_valid_days: int = 3650, valid_days: int = 1825):
        super().__init__(root_valid_days)
        if isinstance(valid_days, bool) or not isinstance(valid_days, int) or valid_days <= 0:
            raise ValueError(f"valid_days must be a whole number of at least 1, got {valid_days!r}")
        self.valid_days = valid_days

    def _generate_cert(self, *args: Any, ca: bool = False, **kwargs: Any) -> Any:
        if not ca:
            wanted = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=self.valid_days)
            kwargs["not_valid_after"] = min(wanted, self.root_cert.not_valid_after_utc)
        return CertBuilder._generate_cert(*args, ca=ca, **kwargs)
