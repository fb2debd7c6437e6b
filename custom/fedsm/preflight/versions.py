"""Versions of Python and packages: what is here, what our package asks for, and what the server has."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from fedsm.core.errors import UserError
from fedsm.preflight.line import Line

_SHOWN = ("fedsm", "nvflare", "torch", "monai", "numpy")
_MUST_AGREE = ("fedsm", "nvflare")  # they define the messages; other packages change at most the last digits


def versions() -> dict[str, str]:
    """Name -> version of Python and of the packages that matter; those that are missing are left out."""
    found = {"python": platform.python_version()}
    for name in _SHOWN:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


def load_versions(path: Path) -> dict[str, str]:
    """Reads what `fedsm site versions` printed at the server.

    Raises:
        UserError: the file holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UserError(
            f"{path} cannot be read ({e})", remedy="make it at the server: `fedsm site versions > FILE`"
        ) from e
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        raise UserError(
            f"{path} must map names to versions", remedy="make it at the server: `fedsm site versions > FILE`"
        )
    return content


def check_packages() -> list[Line]:
    """Whether what our package requires is installed."""
    try:
        wanted = [Requirement(text) for text in metadata.requires("fedsm") or []]
        least = metadata.metadata("fedsm")["Requires-Python"] or ""
    except metadata.PackageNotFoundError:
        return [Line("FAIL", "packages", "fedsm is not installed in this Python", "pip install fedsm-*.whl")]
    lines = [] if Requirement(f"python{least}").specifier.contains(platform.python_version()) else [
        Line("FAIL", "python", f"{platform.python_version()}, but fedsm needs {least}", "install that Python")
    ]  # fmt: skip
    for requirement in wanted:
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            have = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            have = "not installed"
        if have == "not installed" or not requirement.specifier.contains(have, prereleases=True):
            what = f"{requirement.name} is {have}, but fedsm needs {requirement.specifier}"
            lines.append(Line("FAIL", "packages", what, f'pip install "{requirement.name}{requirement.specifier}"'))
    if not lines:
        what = ", ".join(f"{name} {version}" for name, version in versions().items())
        lines.append(Line("PASS", "packages", what))
    return lines


def check_against_server(expected: dict[str, str] | None) -> list[Line]:
    """Compares with the server's versions. FLARE does not send them to a site before it has joined."""
    if expected is None:
        what = "not compared: the server does not show its versions before a site has joined"
        return [Line("WARN", "versions", what, "ask its operator for `fedsm site versions > FILE`; give --expect FILE")]
    here, lines = versions(), []
    for name, version in expected.items():
        have = here.get(name, "not installed")
        alike = have.split(".")[:2] == version.split(".")[:2] if name == "python" else have == version
        if not alike:
            level = "FAIL" if name in _MUST_AGREE or have == "not installed" else "WARN"
            remedy = "install the server's Python" if name == "python" else f'pip install "{name}=={version}"'
            lines.append(Line(level, "versions", f"the server has {name} {version}, here it is {have}", remedy))
    return lines or [Line("PASS", "versions", "the same as the server's")]


def check_python() -> list[Line]:
    """Whether the kit's start.sh, which runs `python3`, will find this Python."""
    found, own = shutil.which("python3"), Path(sys.executable).parent
    if found and Path(found).parent == own:
        return [Line("PASS", "python3", found)]
    what = f"start.sh will run {found or 'no python3 at all'}, not {sys.executable}"
    return [Line("WARN", "python3", what, f'export PATH="{own}:$PATH"   # in the shell that runs start.sh')]
