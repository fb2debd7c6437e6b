"""All checks of `fedsm site check`, in the order of its table."""

from __future__ import annotations

import os
import shlex

from tqdm import tqdm

from fedsm.client.site_settings import FILE_NAME, SiteSettings, load_site_settings
from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.data.check import check_folder
from fedsm.data.findings import SiteReport, contents
from fedsm.preflight.certificates import check_certificate
from fedsm.preflight.connection import check_server
from fedsm.preflight.footprint import cache_bytes, job_footprint
from fedsm.preflight.kit import Kit
from fedsm.preflight.line import Line
from fedsm.preflight.machine import check_device, check_disk, check_memory, check_writing
from fedsm.preflight.monitoring import check_monitoring
from fedsm.preflight.policy import check_code
from fedsm.preflight.privacy import check_privacy
from fedsm.preflight.versions import check_against_server, check_packages, check_python

_NAMED = 3  # findings of the data check; `fedsm data check` shows all


def check_site(kit: Kit, settings: JobSettings | None, expected: dict[str, str] | None = None) -> list[Line]:
    """Whether a site is ready to join. Changes nothing, at the site or at the server.

    Args:
        kit: the site's startup kit.
        settings: of the job to come; None: what depends on it is not checked.
        expected: the server's versions; None: not known.
    """
    lines = check_packages() + check_python() + check_against_server(expected)
    lines += check_certificate(kit) + check_server(kit) + check_code(kit) + check_monitoring(kit)
    site, found = check_settings(kit)
    lines += found + check_writing(kit, site)
    if site is None:
        return lines
    lines += check_device(kit, site.device)
    lines += check_privacy(site, kit.site)
    if settings is None:
        what = "data, memory and disk not checked: they depend on the task"
        return [
            *lines,
            Line("WARN", "task", what, f"fedsm site check {kit.root} --task retinal (or prostate, nuclei, FILE)"),
        ]
    need = job_footprint(settings)
    report, found = check_data(kit, site, settings)
    images = report.summary.get("images", 0) if report else 0
    return [
        *lines,
        *check_memory(need, site.device),
        *found,
        *check_disk(site, need.state, cache_bytes(settings, images)),
    ]


def check_settings(kit: Kit) -> tuple[SiteSettings | None, list[Line]]:
    """Reads fedsm_site.yaml as a job would."""
    try:
        site = load_site_settings(kit.local, kit.root, kit.site, os.cpu_count() or 1)
    except UserError as e:
        return None, [Line("FAIL", FILE_NAME, e.what, e.remedy or f"correct {kit.local / FILE_NAME}")]
    if not os.access(site.data, os.R_OK | os.X_OK):
        remedy = f"correct data: in {kit.local / FILE_NAME}, mount the folder, or let this user read it"
        return site, [Line("FAIL", FILE_NAME, f"data folder {site.data} does not exist or cannot be read", remedy)]
    return site, [Line("PASS", FILE_NAME, f"data in {site.data}")]


def check_data(kit: Kit, site: SiteSettings, settings: JobSettings) -> tuple[SiteReport | None, list[Line]]:
    """The data check of `fedsm data check`, by the site's own rules."""
    if not os.access(site.data, os.R_OK | os.X_OK):
        return None, []  # reported already
    task = settings.task
    more = f"fedsm data check {site.data} --task {task.name}"
    if site.rules.patient_pattern is not None:
        more += f" --patient-pattern {shlex.quote(site.rules.patient_pattern)}"
    total = sum(1 for _ in site.data.glob("images/*"))
    with tqdm(total=total, desc="checking data", unit="pair", leave=False, delay=1, disable=None) as bar:
        report = check_folder(site.data, kit.site, task, bar.update, site.rules, site.imports)
    lines = [
        Line(f.level, "data", f"{f.what}{': ' if f.file else ''}{f.file}", f.remedy) for f in report.findings[:_NAMED]
    ]
    if rest := report.findings[_NAMED:]:  # they are sorted, worst first
        lines.append(Line(rest[0].level, "data", f"{len(rest)} more findings", more))
    return report, lines or [Line("PASS", "data", contents(report))]
