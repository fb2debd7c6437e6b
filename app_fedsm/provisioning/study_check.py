"""Checks the `studies` of a project.yml by FLARE's own rules; FLARE itself would stop at the first problem."""

from __future__ import annotations

from typing import Any

from nvflare.lighter.provision import _normalize_and_validate_studies

_SUBMITTERS = ("lead", "project_admin")


def study_problems(content: dict, participants: list[dict]) -> tuple[list[str], list[str]]:
    """What is wrong with a project's studies, and what may be wrong; each in one line with the study's name.

    Args:
        content: the project file.
        participants: those of its participants that can be read.
    """
    studies = content.get("studies")
    errors, warnings = [], []
    for name, study in studies.items() if isinstance(studies, dict) and studies else [(None, studies)]:
        part = {"studies": study if name is None else {name: study}}
        try:
            enrolled = _normalize_and_validate_studies(part, participants, content.get("api_version"))
        except (ValueError, TypeError, AttributeError) as e:
            what = str(e) if isinstance(e, ValueError) else f"study {name!r} cannot be read"
            errors.append(f"studies: {what.removeprefix('studies: ')}; see poc_workspace/project.yml")
            continue
        warnings += [line for found, entry in enrolled.items() for line in _doubts(found, entry, participants)]
    return list(dict.fromkeys(errors)), warnings


def _doubts(name: str, study: dict[str, Any], participants: list[dict]) -> list[str]:
    doubts = []
    if not any(study.get("site_orgs", {}).values()):
        doubts.append(f"study {name!r}: no site is in it; add `site_orgs: {{org: [site]}}`")
    admins = study.get("admins", [])
    if not any(p.get("role") in _SUBMITTERS for p in participants if p.get("name") in admins):
        doubts.append(f"study {name!r}: none of its admins may submit a job; add a lead to `admins`")
    return doubts
