"""Signed records: whatever is changed in a run is named, and nobody but the federation's server can sign."""

import datetime
import json
import os
import shutil
import signal
import stat

import pytest
from PIL import Image

from app_fedsm.cli.main import main
from app_fedsm.runs.slim import make_slim
from fedsm.core.errors import UserError
from fedsm.core.signing import KEY_FILE, Signer, Voucher, encode, owner_signer, server_signer
from fedsm.core.trust import Trust, trust_in
from fedsm.super_model.artefact import load_super_model
from fedsm.super_model.model import SuperModel
from fedsm.super_model.record import _canonical, digest_of, read_record
from fedsm.super_model.verify import verify
from tests.helpers.json_output import ask
from tests.helpers.signed_runs import LEAD, SERVER, write_federation, write_signed_run
from tests.helpers.small_model import SITES, write_super_model


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    return write_federation(tmp_path_factory.mktemp("federation"))


@pytest.fixture(scope="module")
def made(tmp_path_factory, federation):
    return write_signed_run(tmp_path_factory.mktemp("made") / "run", federation)


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


@pytest.fixture
def kit(federation):
    return federation / "hospital"


def problems(folder, trust=None) -> dict[str, str]:
    return dict(verify(folder, trust or Trust()).problems)


@pytest.mark.parametrize(
    ("name", "words"), [("results.json", "is no file"), ("super_model/record.json", "cannot be read (it is a pipe)")]
)
def test_a_pipe_in_the_place_of_a_file_is_named_and_not_waited_for(run, name, words):
    (run / name).unlink()
    os.mkfifo(run / name)
    signal.alarm(20)  # reading would wait for ever
    try:
        assert words in problems(run)[name]
    finally:
        signal.alarm(0)


def test_a_run_as_it_was_signed(run, kit, capsys):
    """The record says what was run by whom; a hospital needs nothing but its own kit to know who signed."""
    answer, err = ask(capsys, "verify", run, "--kit", kit)
    data = answer["data"]
    assert (answer["exit_code"], data["verified"], data["checked"], data["problems"]) == (0, True, "kit", [])
    record = data["record"]
    assert (record["made_by"], record["run_id"], record["job_id"]) == ("server", "0123456789ab", "job-1")
    assert record["submitter"] == {"name": LEAD.name, "org": LEAD.org, "role": LEAD.role} and record["study"] == "lungs"
    assert record["sites"] == SITES and record["settings"]["rounds"] == 2
    assert set(record["versions"]) == {"fedsm", "torch", "monai", "nvflare", "python"}
    assert {"results.json", "accepted.jsonl", "super_model/manifest.json"} < set(record["files"])
    assert data["intact"] == len(record["files"]) == len(list(record["files"]))
    assert "lead@a.org" in err and f"checked against the root of {kit}" in err
    for given in (kit, kit / "startup" / "rootCA.pem", data["public_key"], True):
        assert problems(run, trust_in(given)) == {}
    assert main(["verify", str(run)]) == 0 and "not checked: give --kit" in capsys.readouterr().out
    assert main(["verify", str(run / "super_model"), "--key", data["public_key"]]) == 0, "the super model alone"


@pytest.mark.parametrize("name", ["global", "personal.site-1", "personal.site-2", "selector"])
def test_one_changed_byte_in_a_network(run, kit, name, capsys):
    """The last byte is a weight's: the file still loads, and the manifest's checksum can be changed with it."""
    file = run / "super_model" / f"{name}.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert main(["verify", str(run), "--kit", str(kit)]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"super_model/{name}.safetensors: was changed" in err
    with pytest.raises(UserError, match="checksum differs"):
        SuperModel.load(run / "super_model")
    manifest = run / "super_model" / "manifest.json"
    told = json.loads(manifest.read_text())
    told["networks"][name]["sha256"] = digest_of(file)
    manifest.write_text(json.dumps(told, indent=1))
    SuperModel.load(run / "super_model")
    assert set(problems(run)) == {f"super_model/{name}.safetensors", "super_model/manifest.json"}
    for given in (True, kit):
        with pytest.raises(UserError, match=r"manifest.json: is not the one that was signed"):
            SuperModel.load(run / "super_model", verify=given)


@pytest.mark.parametrize(
    ("change", "file", "what"),
    [
        (lambda r: (r / "results.json").write_text("{}"), "results.json", "changed"),
        (lambda r: (r / "results.json").unlink(), "results.json", "missing"),
        (lambda r: (r / "accepted.jsonl").write_text(""), "accepted.jsonl", "changed"),
        (lambda r: (r / "super_model" / "global.safetensors").unlink(), "super_model/global.safetensors", "missing"),
        (lambda r: (r / "super_model" / "more.json").write_text(""), "super_model/more.json", "added later"),
        (lambda r: (r / "checkpoints" / "weights" / "x").write_text(""), "checkpoints/weights/x", "added later"),
        (lambda r: (r / "checkpoints" / "round_000001.json").unlink(), "checkpoints/round_000001.json", "missing"),
        (lambda r: (r / "super_model" / "MODEL_CARD.md").write_text("good"), "super_model/MODEL_CARD.md", "changed"),
    ],
)
def test_added_missing_and_changed_files_are_named(run, change, file, what):
    change(run)
    (found,) = problems(run).items()
    assert found[0] == file and what in found[1]


def test_a_link_is_not_followed(run, tmp_path):
    """Also not where it leads to the same content, or to a folder."""
    shutil.copyfile(run / "results.json", tmp_path / "same.json")
    (run / "results.json").unlink()
    (run / "results.json").symlink_to(tmp_path / "same.json")
    (run / "checkpoints" / "more").symlink_to(tmp_path)
    added = "is not in the record: it was added later"
    assert problems(run) == {"results.json": "is a link", "checkpoints/more": added}


def test_a_record_that_was_changed_or_swapped(run, kit, federation, tmp_path):
    file = run / "super_model" / "record.json"
    content = json.loads(file.read_text())
    for change in ({"sites": ["site-9"]}, {"made": "2020-01-01T00:00:00+00:00"}, {"files": {}}):
        file.write_text(json.dumps(content | {"record": content["record"] | change}))
        assert problems(run)["super_model/record.json"].startswith("its signature is wrong: it was changed after")
        with pytest.raises(UserError, match="changed after it was signed"):
            SuperModel.load(run / "super_model", verify=True)
    other = write_signed_run(tmp_path / "other", federation, rounds=3, run_id="ba9876543210")
    shutil.copyfile(other / "super_model" / "record.json", file)
    changed = "was changed: its SHA-256 is another one"
    found = problems(run, trust_in(kit))
    assert found["results.json"] == found["super_model/manifest.json"] == changed
    assert read_record(file).public == server_signer(federation / "server" / "local", tmp_path).public, "made once"
    file.write_text(json.dumps(content))
    shutil.copyfile(other / "super_model" / "manifest.json", run / "super_model" / "manifest.json")
    assert "super_model/manifest.json" in problems(run), "a manifest that was swapped"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"record": {}}', "[" * 100_000, '{"record": 1, "signature": "x", "public_key": "y"}'],
)  # fmt: skip
def test_rubbish_for_a_record_is_one_problem(run, text):
    (run / "super_model" / "record.json").write_text(text)
    (found,) = problems(run).items()
    assert found[0] == "super_model/record.json" and "cannot be read" in found[1]


def sign_anew(run, signer, **change) -> None:
    """What somebody with another key can do."""
    file = run / "super_model" / "record.json"
    content = json.loads(file.read_text())
    record = content["record"] | change
    voucher = signer.voucher
    file.write_text(
        json.dumps(
            {
                "record": record, "signature": encode(signer.key.sign(_canonical(record))),
                "public_key": encode(signer.public), "certificate": voucher and voucher.certificate,
                "voucher": voucher and encode(voucher.signature),
            }
        )
    )  # fmt: skip


def test_only_the_server_of_the_kits_federation_can_sign(run, kit, federation, tmp_path, capsys):
    """A stranger's key, a stranger's federation, the server's certificate with another key, a hospital's own."""
    stranger = owner_signer()
    sign_anew(run, stranger)
    assert problems(run) == {}, "intact, by whomever"
    assert "no certificate vouches" in problems(run, trust_in(kit))["super_model/record.json"]
    assert main(["verify", str(run), "--kit", str(kit)]) == 1
    told = capsys.readouterr()
    assert "not to be trusted" in told.out and "no certificate vouches" in told.err
    right = (federation / "server" / "startup" / "server.crt").read_text()
    sign_anew(run, Signer(stranger.key, Voucher(right, b"0" * 70)))
    assert "does not vouch" in problems(run)["super_model/record.json"], "also without a kit"
    elsewhere = write_federation(tmp_path / "elsewhere")
    sign_anew(run, server_signer(elsewhere / "server" / "local", elsewhere / "server" / "startup"))
    assert problems(run, trust_in(elsewhere / "hospital")) == {}
    assert "another federation" in problems(run, trust_in(kit))["super_model/record.json"]
    own = kit / "startup"
    sign_anew(run, Signer(stranger.key, Voucher.write(stranger.public, own / "client.crt", own / "client.key")))
    found = problems(run, trust_in(kit))["super_model/record.json"]
    assert f"signed by 'site-1', and the server of {kit} is '{SERVER}'" in found, "a site of the same root"
    with pytest.raises(UserError, match="site-1"):
        SuperModel.load(run / "super_model", verify=kit)
    assert "another key" in problems(run, Trust("the key", public=b"1" * 32))["super_model/record.json"]


def test_a_certificate_must_have_been_valid_then_and_need_not_be_now(tmp_path):
    """It ended 10 days ago. What it signed 20 days ago stands; a record of today does not."""
    federation = write_federation(tmp_path / "federation", days=-10)
    run = write_signed_run(tmp_path / "run", federation)
    kit, server = federation / "hospital", federation / "server"
    assert "was not valid on" in problems(run, trust_in(kit))["super_model/record.json"]
    earlier = read_record(run / "super_model" / "record.json").made - datetime.timedelta(days=20)
    sign_anew(run, server_signer(server / "local", server / "startup"), made=earlier.isoformat())
    assert problems(run, trust_in(kit)) == {}


def test_what_cannot_be_trusted_is_refused_in_one_line(tmp_path, kit, capsys, run):
    shutil.copytree(kit / "startup", tmp_path / "bare")
    (tmp_path / "bare" / "fed_client.json").unlink()
    (tmp_path / "text").write_text("hello")
    for given in ("nowhere", "AAAA", tmp_path / "bare" / "rootCA.pem", tmp_path, tmp_path / "text"):
        assert main(["verify", str(run), "--key", str(given)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(UserError, match="which participant is the server"):
        trust_in(tmp_path / "bare" / "rootCA.pem")
    assert main(["verify", str(run), "--kit", "a", "--key", "b"]) == 2
    assert main(["verify", str(tmp_path)]) == 2


def test_no_record(tmp_path, capsys):
    """Old runs load as before; `verify` says that there is none."""
    model = write_super_model(tmp_path)
    SuperModel.load(model)
    with pytest.raises(UserError, match=r"record.json: there is none: .*without `verify`"):
        SuperModel.load(model, verify=True)
    assert main(["verify", str(tmp_path)]) == 1
    assert "super_model/record.json: there is none" in capsys.readouterr().err


def test_a_run_that_was_made_small(run, capsys):
    """What `fedsm clean` removes is told, and is no problem; a part of it is one."""
    (run / "run.json").write_text("{}")
    make_slim(run)
    answer, _ = ask(capsys, "verify", run)
    assert (answer["exit_code"], answer["data"]["removed"]) == (0, ["checkpoints/ (2 files)"])


def test_a_run_that_goes_on(run):
    (run / "results.json").rename(run / "results.earlier.json")
    verdict = verify(run, Trust())
    assert verdict.problems == [("results.json", "is missing")] and "goes on" in verdict.notes[0]


def test_predict_and_serve_refuse_what_is_not_signed(run, kit, tmp_path, capsys):
    image = tmp_path / "image.png"
    Image.new("RGB", (32, 32), (90, 60, 30)).save(image)
    predict = ["predict", str(run), str(image), "--verify"]
    assert main([*predict, str(kit), "-o", str(tmp_path / "out")]) == 0
    (run / "super_model" / "record.json").unlink()
    predict = [*predict[:3], "-o", str(tmp_path / "more"), "--verify"]
    for command in (predict, ["serve", str(run), "--port", "0", "--verify"], ["evaluate", str(run), "x", "--verify"]):
        assert main([*command, "any"]) == 2
        assert "there is none" in capsys.readouterr().err


def test_hub_folder_takes_the_record_along(run, kit, tmp_path):
    assert main(["export", "hub", str(run), "--out", str(tmp_path / "hub")]) == 0
    assert load_super_model(tmp_path / "hub", trust_in(kit)).manifest["run_id"] == "0123456789ab"


def test_keys_are_private_and_made_once(tmp_path, federation):
    local = federation / "server" / "local"
    assert stat.S_IMODE((local / KEY_FILE).stat().st_mode) == 0o600
    first = owner_signer()
    assert first.public == owner_signer().public and first.voucher is None
    (local / KEY_FILE).chmod(0o644)
    server_signer(local, tmp_path)
    assert stat.S_IMODE((local / KEY_FILE).stat().st_mode) == 0o600, "an open one is closed"
    (tmp_path / KEY_FILE).write_text("no key")
    with pytest.raises(UserError, match="a new one is made"):
        server_signer(tmp_path, tmp_path)
