"""Bad input: one line that names site, file and remedy, exit code 2, before anything starts."""

import json
import shutil

import pytest

from app_fedsm.cli import main
from tests.conftest import write_site


@pytest.fixture
def root(tmp_path):
    for i, site in enumerate(("alpha", "beta")):
        write_site(tmp_path / "data" / site, 4, i)
    return tmp_path / "data"


def run(root, tmp_path, capsys, *extra) -> tuple[int, str]:
    arguments = ["run", "--task", "retinal", "--data", str(root), "--size", "32", "--out", str(tmp_path / "out")]
    arguments += ["--set", "task.unet.channels=[4,8]", *extra]
    code = main(arguments)
    captured = capsys.readouterr()
    assert not (tmp_path / "out" / "workspace").exists(), "nothing may have been started"
    return code, captured.err


def remove_images(root):
    shutil.rmtree(root / "beta" / "images")
    (root / "beta" / "images").mkdir()
    shutil.rmtree(root / "beta" / "masks")
    (root / "beta" / "masks").mkdir()


@pytest.mark.parametrize(
    ("damage", "extra", "words"),
    [
        (shutil.rmtree, [], ["data", "does not exist"]),
        (remove_images, [], ["'beta'", "no images"]),
        (lambda r: (r / "beta/masks/case_01.png").unlink(), [], ["'beta'", "case_01.png has no mask"]),
        (lambda r: (r / "beta/images/case_01.png").unlink(), [], ["'beta'", "case_01.png has no image"]),
        (lambda r: (r / "beta/images/case_01.png").write_bytes(b"\x89PNG"), [], ["'beta'", "cannot be read"]),
        (lambda r: shutil.rmtree(r / "beta"), [], ["at least 2 sites", "only 'alpha'"]),
        (None, ["--lam", "0.4"], ["lam must be in [1/K, 1] = [0.5, 1]"]),
        (None, ["--lam", "1.5"], ["lam must be in"]),
        (None, ["--task", "liver"], ["unknown task 'liver'", "retinal"]),
        (None, ["--method", "magic"], ["unknown method 'magic'", "fedsm"]),
        (None, ["--selector", "coin"], ["unknown selector 'coin'", "statistics"]),
        (None, ["--rounds", "0"], ["rounds"]),
        (None, ["--size", "33"], ["size must be a multiple"]),
        (None, ["--size", "16"], ["size must be at least 32"]),
        (None, ["--lr", "-1"], ["lr must be"]),
        (None, ["--threads", "3"], ["--threads", "(2)"]),
        (None, ["--min-sites", "3"], ["min_sites is 3"]),
        (None, ["--set", "no_such=1"], ["unknown setting 'no_such'"]),
        (None, ["--set", "task.unet.depth=1"], ["unknown unet setting"]),
        (None, ["--set", "nonsense"], ["KEY=VALUE"]),
        (None, ["--threads", "0"], ["--threads"]),
        (None, ["--set", "size=abc"], ["'size' must be int"]),
        (None, ["--set", "seed=abc"], ["'seed' must be int"]),
        (None, ["--set", "rounds=true"], ["'rounds' must be int"]),
        (None, ["--set", "gammas=0.5"], ["'gammas' must be list"]),
        (None, ["--set", "gammas=[a]"], ["gammas must be numbers"]),
        (None, ["--set", "task.labels={disc: 1}"], ["label 'disc'"]),
        (None, ["--set", "task.unet=[1]"], ["'unet' must be dict"]),
        (None, ["--set", "task.unet.norm=FOO"], ["no network of these settings"]),
        (None, ["--set", "task.unet.channels=[4,8,8,8,8,8]"], ["no network of these settings"]),
        (None, ["--set", "task.unet.strides=[4,4]", "--size", "40"], ["unet needs 1 strides"]),
        (None, ["--set", "task.selector_net.head=foo"], ["selector head"]),
        (None, ["--set", "tracks.personal=1"], ["tracks must map"]),
        (None, ["--set", "tracks.selector.kind=[1]"], ["unknown kind"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(root, tmp_path, capsys, damage, extra, words):
    if damage:
        damage(root)
    code, err = run(root, tmp_path, capsys, *extra)
    assert code == 2
    assert err.startswith("fedsm: error: ") and err.count("\n") == 1
    for word in words:
        assert word in err


def test_an_existing_run_is_not_overwritten(root, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "results.json").write_text("precious")
    code, err = run(root, tmp_path, capsys)
    assert code == 2 and "already holds a run" in err and "--resume" in err and "--force" in err
    assert (out / "results.json").read_text() == "precious"


def test_resume_of_nothing_and_with_other_settings(root, tmp_path, capsys):
    assert main(["run", "--resume", "--out", str(tmp_path / "out")]) == 2
    assert "holds no run to resume" in capsys.readouterr().err
    assert main(["run", "--resume", "--lr", "1", "--out", str(tmp_path / "out")]) == 2
    assert "leave out --lr" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["run"], ["job", "export"], ["data", "synth"], ["workspace"]])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert not command or "example:" in text


def test_synth_refuses_a_folder_that_is_not_empty(root, capsys):
    assert main(["data", "synth", str(root)]) == 2
    assert "not empty" in capsys.readouterr().err
    for option in ("--sites", "--seed", "--size"):
        assert main(["data", "synth", str(root / "new"), option, "-1"]) == 2


def test_a_file_where_a_folder_is_expected_is_one_line(root, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("x")
    common = ["--task", "retinal", "--size", "32", "--set", "task.unet.channels=[4,8]"]
    for arguments in (
        ["run", *common, "--data", str(root), "--out", str(file)],
        ["run", *common, "--data", str(root), "--out", str(file / "below")],
        ["run", *common, "--data", str(file), "--out", str(tmp_path / "o")],
        ["data", "synth", str(file)],
        ["workspace", str(file), "--data", str(root)],
        ["job", "export", *common, "--out", str(file)],
        ["job", "export", *common, "--name", "../x", "--out", str(tmp_path / "jobs")],
    ):
        assert main(arguments) == 2, arguments
        err = capsys.readouterr().err
        assert err.startswith("fedsm: error: ") and err.count("\n") == 1, arguments
    assert file.read_text() == "x"


def test_workspace_prints_the_command(root, tmp_path, capsys):
    assert main(["workspace", str(tmp_path / "ws"), "--data", str(root)]) == 0
    assert "nvflare simulator JOB -w" in capsys.readouterr().out
    allowed = json.loads((tmp_path / "ws/local/resources.json").read_text())["class_allow_list"]
    assert "fedsm." in allowed and len(allowed) > 50
