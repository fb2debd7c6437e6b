"""Calls of the `nvflare` command."""

import locale

import pytest

from app_fedsm.federation.nvflare_cli import run_nvflare


@pytest.mark.process
def test_what_it_says_is_read_in_any_locale(tmp_path, monkeypatch):
    """FLARE's message has a dash that is not ASCII; `C` is what ITK's DICOM writer leaves behind in a process."""
    monkeypatch.setenv("HOME", str(tmp_path))
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, "C")
        said = run_nvflare("poc", "stop", NVFLARE_POC_WORKSPACE=str(tmp_path / "none"))
    finally:
        locale.setlocale(locale.LC_ALL, before)
    assert f"{tmp_path / 'none'}/project.yml is missing" in said and "\n" not in said


@pytest.mark.process
def test_success_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_nvflare("--version") is None
