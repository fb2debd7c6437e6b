"""FLARE's simulator on a workspace that nobody prepared: where are the sites' images?"""

from __future__ import annotations

import os
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from fedsm.client.site_settings import DATA_ROOT_VARIABLE, FILE_NAME
from fedsm.core.errors import UserError
from fedsm.flare.submitter import submitter_of


def check_simulated_data(fl_ctx: FLContext, sites: list[str]) -> None:
    """Checks at the server that the simulator's sites can have data, before any of them is asked.

    Raises:
        UserError: neither the environment nor the workspace says where they are, or not by a full path, or a
            site has no folder there.
    """
    local = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())
    if submitter_of(fl_ctx) is not None or (local / FILE_NAME).is_file():
        return
    root = os.environ.get(DATA_ROOT_VARIABLE)
    if not root:
        raise UserError(
            "nobody says where the sites' images are",
            remedy=f"set {DATA_ROOT_VARIABLE} to the folder that holds one folder per site, or write it to the"
            " workspace with `fedsm workspace WS --data ROOT`",
        )
    if not Path(root).is_absolute():
        raise UserError(
            f"{DATA_ROOT_VARIABLE}={root} is not a full path, and the simulator works in a folder of its own",
            remedy=f"for example {DATA_ROOT_VARIABLE}=$PWD/{root}",
        )
    if missing := [site for site in sites if not (Path(root) / site).is_dir()]:
        raise UserError(
            f"{DATA_ROOT_VARIABLE}={root} holds no folder {missing[0]!r}",
            remedy="name the sites with -c, as their folders are called",
        )
