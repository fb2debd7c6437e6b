"""Which changes a resumed run may bring."""

import pytest

from app_fedsm.config.build import build_settings
from fedsm.core.errors import UserError
from fedsm.server.resume import check_rounds_kept


def test_rounds_stay_where_the_last_ones_are_the_selectors():
    """The command looks before anything is started or moved, the server again."""
    extra = build_settings("retinal", "fedsm-extra", rounds=160)
    check_rounds_kept(extra, 160)
    with pytest.raises(UserError, match="keeps its rounds; leave 150 rounds"):
        check_rounds_kept(extra, 150)
    check_rounds_kept(build_settings("retinal", "fedsm", rounds=160), 150)
