"""Workaround: `set_app_packages` and the copy of the package in `app_fedsm.recipes`.

Symptom: a job that brings its code breaks at a site, because FLARE copies the modules that it finds by static imports:
neither a package's `__init__.py` nor its files of data come along. FLARE 2.9.0. With the workaround:
`tests/app/test_jobs.py`.
"""

import importlib
import sys

from nvflare.job_config.api import FedJob

FILES = {
    "__init__.py": "HERE = True\n",
    "names.py": "ALL = ()\n",
    "names.yaml": "all: []\n",
    "widget.py": "from nvflare.widgets.widget import Widget\nfrom .names import ALL\nclass Ours(Widget): pass\n",
}


def test_a_packages_init_and_data_are_left_behind(tmp_path, monkeypatch):
    package = tmp_path / "source" / "scanned_package"
    package.mkdir(parents=True)
    for name, text in FILES.items():
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(package.parent)
    widget = importlib.import_module("scanned_package.widget")
    try:
        job = FedJob(name="job")
        job.to_server(widget.Ours(), id="ours")
        job.export_job(str(tmp_path / "jobs"))
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "scanned_package"]:
            del sys.modules[name]
    copied = {path.name for path in (tmp_path / "jobs").rglob("scanned_package/*")}
    assert "widget.py" in copied and not copied & {"__init__.py", "names.yaml"}
