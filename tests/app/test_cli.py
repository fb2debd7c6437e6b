"""Bad input: one line that names site, file and remedy, exit code 2, before anything starts."""

import json
import shlex
import shutil
import sys

import pytest

from app_fedsm.cli.main import build_parser, main
from app_fedsm.runs import simulate
from fedsm.core.components import SERVER_CLASSES, SITE_CLASSES
from tests.helpers.small_jobs import write_site


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
        (
            lambda r: (r / "beta/masks/case_01.png").unlink(),
            [],
            ["'beta'", "image without mask: images/case_01.png", "add a mask"],
        ),
        (
            lambda r: (r / "beta/images/case_01.png").unlink(),
            [],
            ["'beta'", "mask without image: masks/case_01.png", "add an image"],
        ),
        (
            lambda r: (r / "beta/images/case_01.png").write_bytes(b"\x89PNG"),
            [],
            ["'beta'", "images/case_01.png", "cannot be read", "replace it"],
        ),
        (lambda r: shutil.rmtree(r / "beta"), [], ["at least 2 sites", "only 'alpha'"]),
        (None, ["--lam", "0.4"], ["lam must be in [1/K, 1] = [0.5, 1]"]),
        (None, ["--lam", "1.5"], ["lam must be in"]),
        (None, ["--task", "liver"], ["unknown task 'liver'", "retinal"]),
        (None, ["--method", "magic"], ["unknown method 'magic'", "fedsm"]),
        (None, ["--selector", "coin"], ["unknown selector 'coin'", "statistics"]),
        (None, ["--rounds", "0"], ["rounds"]),
        (None, ["--size", "33"], ["size must be a multiple"]),
        (None, ["--size", "16"], ["size must be a whole number from 32 to 8192, got 16"]),
        (None, ["--lr", "-1"], ["lr must be"]),
        (None, ["--threads", "3"], ["--threads", "(2)"]),
        (None, ["--min-sites", "3"], ["min_sites is 3"]),
        (None, ["--set", "no_such=1"], ["unknown setting 'no_such'"]),
        (None, ["--set", "round=1"], ["unknown setting 'round'; did you mean 'rounds'? known: task, "]),
        (None, ["--set", "norm_check=clp"], ["norm_check must be one of off, warn, clip, refuse", "mean 'clip'?"]),
        (None, ["--set", "task.unet.depth=1"], ["unknown setting 'task.unet.depth'"]),
        (None, ["--set", "nonsense"], ["KEY=VALUE"]),
        (None, ["--threads", "0"], ["--threads"]),
        (None, ["--set", "size=abc"], ["size must be a whole number"]),
        (None, ["--set", "seed=abc"], ["seed must be a whole number"]),
        (None, ["--set", "rounds=true"], ["rounds must be a whole number"]),
        (None, ["--set", "gammas=0.5"], ["gammas must be a list of 1 to 50 numbers from 0 to 1, got 0.5"]),
        (None, ["--set", "gammas=[a]"], ["gammas[0] must be a number from 0 to 1, got 'a'"]),
        (None, ["--set", "task.labels={disc: 1}"], ["task.labels.disc must be a list of mask values"]),
        (None, ["--set", "task.unet=[1]"], ["task.unet must be settings (channels, strides"]),
        (None, ["--set", "task.unet.norm=FOO"], ["no network of these settings"]),
        (None, ["--set", "task.unet.channels=[4,8,8,8,8,8]"], ["no network of these settings"]),
        (None, ["--set", "task.unet.strides=[4,4]", "--size", "40"], ["task.unet: 2 channels need 1 strides, got 2"]),
        (None, ["--set", "task.selector_net.head=foo"], ["task.selector_net.head must be fc or gap, got 'foo'"]),
        (None, ["--set", "tracks.personal=1"], ["tracks.personal must be a track's kind and options"]),
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
    assert code == 2 and "already holds a run" in err and "--force" in err
    assert "fedsm resume" not in err, "there is nothing to go on from"
    (out / "checkpoints").mkdir()
    (out / "checkpoints" / "round_000001.json").touch()
    code, err = run(root, tmp_path, capsys)
    assert code == 2 and "already holds a run" in err and f"`fedsm resume {out}`" in err and "--force" in err
    assert (out / "results.json").read_text() == "precious"


def test_resume_of_nothing_and_with_other_settings(root, tmp_path, capsys):
    assert main(["run", "--resume", "--out", str(tmp_path / "out")]) == 2
    assert "holds no run to resume" in capsys.readouterr().err
    assert main(["run", "--resume", "--lr", "1", "--out", str(tmp_path / "out")]) == 2
    assert "leave out --lr" in capsys.readouterr().err


def commands(parser, path=()):
    """Every command and group of commands, `fedsm` itself first."""
    yield path, parser
    for action in parser._subparsers._group_actions if parser._subparsers else ():
        for name, sub in action.choices.items():
            yield from commands(sub, (*path, name))


def test_every_help_has_an_example_that_can_be_parsed():
    """Its lines are cut into words as a shell would; all options are there and all values are of their kind."""
    every = dict(commands(build_parser()))
    assert len(every) > 25
    for path, parser in every.items():
        assert "example:" in parser.format_help(), path
        lines = [line.split("#")[0].strip() for line in parser.epilog.splitlines()]
        examples = [shlex.split(line.split(" > ")[0]) for line in lines if line.startswith("fedsm ")]
        assert examples or path == ("completion",), path
        for example in examples:
            build_parser().parse_args(example[1:])


@pytest.mark.parametrize("command", [[], ["run"], ["data", "check"]])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0 and "example:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["run", "--ronds", "3", "--out", "x"],
            "fedsm run: error: there is no option --ronds; did you mean --rounds?",
        ),
        (["run", "--ot", "x"], "did you mean --out? "),  # not: --out is missing
        (["run", "--ronds=3", "--out", "x"], "did you mean --rounds? "),
        (["predict", "m", "x", "--outt", "y"], "did you mean --out? "),  # its first name is -o
        (["data", "check", "x", "--sheet", "y", "--tsk", "z"], "no option --tsk; did you mean --task? "),
        (["predict", "m", "x", "-o", "y", "--golbal"], "did you mean --global? "),  # of a group
        (["poc", "up", "--dri", "x"], "did you mean --dir? "),  # of a parent
        (["rum", "--out", "x"], "fedsm: error: there is no command 'rum'; did you mean run? "),
        (["poc", "don"], "fedsm poc: error: there is no command 'don'; did you mean down? "),
        (["run", "--norm-check", "clop", "--out", "x"], "there is no --norm-check 'clop'; did you mean clip? "),
        (["xyzzy"], "there is no command 'xyzzy'; there are run, job"),
        (["--vresion"], "did you mean --version? "),
        (["run", "--out", "x", "\x1b[2J\nall is well"], "unrecognized arguments"),
    ],
)
def test_a_typo_is_one_line_with_the_nearest_word(capsys, arguments, words):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    err = capsys.readouterr().err
    assert caught.value.code == 2 and words in err and err.count("\n") == 1 and "--help`\n" in err, err
    assert "\x1b" not in err


def test_a_group_without_a_command_prints_its_help(capsys):
    assert main([]) == 0 and "usage: fedsm" in capsys.readouterr().out
    assert main(["data"]) == 0 and "usage: fedsm data" in capsys.readouterr().out


def test_workspace_with_blanks_is_refused(root, tmp_path, capsys):
    assert main(["workspace", str(tmp_path / "my ws"), "--data", str(root)]) == 2
    assert "a path with blanks" in capsys.readouterr().err and not (tmp_path / "my ws").exists()


def test_synth_writes_no_bar_into_a_log(tmp_path, capsys):
    assert main(["data", "synth", str(tmp_path / "new"), "--sites", "2", "--images", "1", "--size", "32"]) == 0
    assert capsys.readouterr().err == ""  # as in `make demo > log 2>&1`


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
    assert {*SERVER_CLASSES, *SITE_CLASSES} < set(allowed) and "fedsm." not in allowed and len(allowed) > 50


def check(*extra) -> int:
    return main(["data", "check", *map(str, extra)])


def test_check_draws_contact_sheets_in_the_current_folder(root, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(root.rglob("*"))
    assert check(root, "--task", "retinal") == 0
    assert capsys.readouterr().out.endswith(
        "contact sheets, images of patients: fedsm_check/alpha.png and 1 more there\n"
    )
    assert sorted(p.name for p in (tmp_path / "fedsm_check").iterdir()) == ["alpha.png", "beta.png"]
    assert sorted(root.rglob("*")) == before, "nothing is written among the data"
    shutil.rmtree(tmp_path / "fedsm_check")
    assert check(root, "--task", "retinal", "--no-sheets") == 0
    assert "contact sheets" not in capsys.readouterr().out and not (tmp_path / "fedsm_check").exists()
    assert check(root / "alpha", "--task", "retinal", "--sheets", tmp_path / "there") == 0
    assert [p.name for p in (tmp_path / "there").iterdir()] == ["alpha.png"]


def test_check_never_writes_among_the_data_without_being_told(root, capsys, monkeypatch):
    for folder in (root, root / "alpha", root / "alpha" / "images"):
        monkeypatch.chdir(folder)
        before = sorted(root.rglob("*"))
        assert check(root, "--task", "retinal") == 0
        assert "lies among the data; name a folder with --sheets DIR" in capsys.readouterr().out
        assert sorted(root.rglob("*")) == before
    monkeypatch.chdir(root)
    assert check(".", "--task", "retinal", "--sheets", "sheets") == 0, "told to, it does"
    assert (root / "sheets" / "alpha.png").is_file()


def test_check_keeps_its_exit_code_where_no_sheet_can_be_written(root, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fedsm_check").write_text("in the way")
    assert check(root, "--task", "retinal") == 0
    assert "no contact sheets: " in capsys.readouterr().out
    assert check(root, "--task", "retinal", "--sheets", tmp_path / "fedsm_check") == 2, "asked for and not done"
    (root / "beta" / "masks" / "case_01.png").unlink()
    assert check(root, "--task", "retinal") == 1
    assert "FAIL image without mask: images/case_01.png" in capsys.readouterr().out


OWN_TASK = """
name: my_eye
channels: 3
labels:
  disc: [1, 2]
  cup: [2]
unet:
  channels: [4, 8]
selector_net:
  head: gap
"""


def test_a_task_of_ones_own_is_a_yaml_file(root, tmp_path, capsys, monkeypatch):
    """For `data check`, `job export` and `run`, which is stopped where it would start the simulator."""
    task = tmp_path / "any name.yaml"
    task.write_text(OWN_TASK)
    assert check(root, "--task", task, "--no-sheets") == 0
    assert main(["job", "export", "--task", str(task), "--size", "32", "--out", str(tmp_path / "jobs")]) == 0
    config = json.loads((tmp_path / "jobs/fedsm_my_eye/app/config/config_fed_server.json").read_text())
    (controller,) = [c for c in config["workflows"] if c["id"] == "controller"]
    settings = controller["args"]["settings"]
    assert settings["task"]["name"] == "my_eye" and settings["task"]["unet"] == {"channels": [4, 8]}
    assert str(tmp_path) not in json.dumps(config), "the settings travel, the path does not"
    started = []
    monkeypatch.setattr(simulate, "simulate", lambda job, *rest: started.append(job.task.name) or sys.exit(7))
    with pytest.raises(SystemExit):
        main(["run", "--task", str(task), "--data", str(root), "--size", "32", "--out", str(tmp_path / "out")])
    assert started == ["my_eye"]
    capsys.readouterr()
    (root / "alpha" / "masks" / "case_01.png").unlink()
    (root / "beta" / "masks" / "case_01.png").unlink()
    assert main(["run", "--task", str(task), "--data", str(root), "--size", "32", "--out", str(tmp_path / "o")]) == 2
    assert f"--task '{task}'`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["No such file", "retinal"]),
        ("name: [", ["no YAML"]),
        ("\xff", ["no YAML"]),
        ("", ["must hold `key: value` lines"]),
        ("- a", ["must hold `key: value` lines"]),
        (
            OWN_TASK + "chanels: 1",
            [f", line {OWN_TASK.count(chr(10)) + 1}: unknown setting 'chanels'; did you mean 'channels'?"],
        ),
        ("name: x", ["'channels' is missing"]),
        (OWN_TASK.replace("[1, 2]", "1"), ["labels.disc must be a list of mask values"]),
        (OWN_TASK.replace("my_eye", "../my eye"), ["'../my eye' is no plain name"]),
        (OWN_TASK + "intensity: loud", ["intensity must be"]),
        (OWN_TASK.replace("disc:", "1:"), ["names of labels must be text"]),
    ],
)
@pytest.mark.parametrize("command", [["run", "--data", "x"], ["job", "export"]])
def test_a_bad_task_file_is_one_line(tmp_path, capsys, command, content, words):
    task = tmp_path / "task.yml"
    if content is not None:
        task.write_text(content, encoding="latin-1")
    assert main([*command, "--task", str(task), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"fedsm: error: {task}") and err.count("\n") == 1
    assert all(word in err for word in words), err
    assert not (tmp_path / "out").exists()
