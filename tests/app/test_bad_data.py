"""`fedsm run` checks the data first: bad files are refused in one line before training, odd ones train."""

import json

import numpy as np
import pytest

from app_fedsm.cli.main import main
from app_fedsm.runs import simulate
from fedsm.data.findings import warnings_of
from tests.helpers.bad_files import BAD, HARMLESS, NOISE, put, rename, write_root
from tests.helpers.small_jobs import SMALL, small_settings, write_site


def refuse(*args, **kwargs):
    raise AssertionError("the simulator was started")


def run(root, out, capsys) -> tuple[int, str]:
    code = main(["run", *SMALL, "--data", str(root), "--rounds", "1", "--out", str(out)])
    return code, capsys.readouterr().err


@pytest.mark.parametrize("how", BAD)
def test_bad_files_are_refused_before_training(tmp_path, how, capsys, monkeypatch):
    monkeypatch.setattr(simulate, "simulate", refuse)
    spoil, words = BAD[how]
    root = write_root(tmp_path / "data")
    name = spoil(root / "beta")
    code, err = run(root, tmp_path / "out", capsys)
    assert code == 2
    assert err.startswith("fedsm: error: site 'beta': ") and err.count("\n") == 1
    assert name in err and words in err
    assert not (tmp_path / "out").exists()


def test_many_bad_files_are_one_line_that_says_where_to_see_more(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(simulate, "simulate", refuse)
    root = write_root(tmp_path / "my data")
    for site in ("alpha", "beta"):
        BAD["truncated image"][0](root / site)
        (root / site / "masks" / "case_02.png").unlink()
    code, err = run(root, tmp_path / "out", capsys)
    assert code == 2 and err.count("\n") == 1
    assert "'alpha'" in err and "images/case_02.png" in err
    assert err.endswith(f"(3 more; see `fedsm data check '{root}' --task retinal`)\n")


@pytest.mark.parametrize("how", HARMLESS)
def test_harmless_files_pass(tmp_path, how):
    spoil, words = HARMLESS[how]
    root = write_root(tmp_path)
    spoil(root / "beta")
    reports = simulate.check_data(root, small_settings(), "retinal")
    assert [r.site for r in reports] == ["alpha", "beta"]
    assert warnings_of(reports) == ([f"WARN beta: {words}"] if words else [])


@pytest.mark.slow
def test_odd_files_train_to_the_end(tmp_path, capsys):
    """Two tiny sites with odd names, an empty mask and a JPEG that is named .png: real FLARE processes."""
    root = tmp_path / "Daten für FedSM"
    for seed, site in enumerate(("alpha", "beta")):
        write_site(root / site, 5, seed)
        put(root / site / "masks" / "case_03.png", np.zeros((40, 40), np.uint8))
        put(root / site / "images" / "case_04.png", NOISE.astype(np.uint8) // (seed + 1), format="JPEG")
        rename(root / site, ["with space", "größe 眼底", "no text \udcff"])
    code, err = run(root, tmp_path / "out", capsys)
    assert code == 0, err
    for site in ("alpha", "beta"):
        assert f"WARN {site}: only 5 patients; empty mask; name and format differ\n" in err
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(results["test"]["global"]["per_site"]) == {"alpha", "beta"}
