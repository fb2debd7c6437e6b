"""A malicious server against a site: what its settings may ask for.

Found: a site took any number that came with a task (a size of 100,000 pixels, 10^9 local epochs, 300 tracks, networks
of any size), scored any number of networks with one task, took 27 s to look at 20,000 names of sites, and told Dice at
20,001 gammas, of which the scores of all its single images could be subtracted. A label's name could be anything, also
a program that MONAI runs when it reads an exported bundle's metadata.
"""

import copy
import json
import time

import pytest

from fedsm.client.workers import build_worker
from fedsm.core.errors import UserError
from fedsm.core.names import check_site_names
from fedsm.core.settings import JobSettings
from fedsm.core.task_names import EVALUATE, REGISTER, SCORE
from fedsm.super_model.artefact import load_super_model
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.small_model import write_super_model
from tests.helpers.trainer_site import GO_ON, meta_of, payload_of, place_of

TOO_MUCH = {
    "size": 100_000, "local_epochs": 10**9, "batch_size": 10**9, "round_timeout": 10**12, "evaluate_timeout": 10**12,
    "rounds": 10**12, "keep_checkpoints": 10**9, "gammas": [i / 1000 for i in range(1000)], "lr": 10**400,
    "personal_mix": [i / 1000 for i in range(1000)],
    "selector_lr": 1e300, "norm_factor": 10**400, "max_share": 10**400, "task.channels": 10**6,
    "task.labels": {f"l{i}": [1] for i in range(40)}, "task.background": [2**40], "task.unet.channels": [10**6, 10**6],
    "task.unet.residual_units": 10**6, "task.unet.strides": [10**6, 1], "task.selector_net.width": 1e6,
    "task.augment": {"rotate": float("nan")},
    "task.network": {"name": "SegResNet", "blocks_down": [10**8, 1, 1, 1], "init_filters": 1},
}  # fmt: skip


def settings_with(path: str, value) -> dict:
    """The settings of a small job as they come with a task, one of them changed."""
    settings = small_settings().to_dict()
    *above, last = path.split(".")
    inner = settings
    for key in above:
        inner = inner[key]
    inner[last] = value
    return settings


@pytest.mark.parametrize("path", TOO_MUCH)
@pytest.mark.parametrize("task", [REGISTER, SCORE])
def test_a_site_refuses_what_no_honest_job_asks_for(tmp_path, data_root, path, task):
    meta = meta_of(small_settings(), 1) | {"settings": settings_with(path, TOO_MUCH[path])}
    with pytest.raises(UserError) as caught:
        build_worker(place_of(tmp_path, data_root), task, meta)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "more",
    [
        {
            "name": "HighResNet",
            "layer_params": [{"name": "res_1", "kernels": [3, 3], "repeat": 10**8}],
        },
        {"name": "SegResNet", "init_filters": 10**40},
        {"name": "SegResNet", "dropout_prob": float("nan")},
    ],
)
def test_no_number_of_a_named_network_fills_the_memory_while_it_is_built(more):
    """Parameters are counted when the network is there, on `meta`; its 10^8 modules are Python objects by then."""
    with pytest.raises(UserError, match="numbers of 1000000 at most"):
        JobSettings.from_dict(settings_with("task.network", more))


@pytest.mark.parametrize(
    "path, value",
    [
        ("size", 2048), ("batch_size", 512), ("local_epochs", 100), ("gammas", [i / 20 for i in range(21)]),
        ("task.unet.channels", [64, 128, 256, 512, 1024]), ("task.selector_net", {"head": "fc", "width": 1.0}),
        ("task.labels", {"left ventricle": [1], "Prostata (TZ)": [2]}), ("round_timeout", 7 * 24 * 3600),
    ],
)  # fmt: skip
def test_generous_for_honest_jobs(path, value):
    JobSettings.from_dict(settings_with(path, value))


ANYTHING = [
    None, True, -1, 10**400, 10**5000, float("nan"), float("inf"), "", "\ud800", "\x1b[2J\n", b"x", [], [[]],
    ["\ud800"], {}, {1: 2}, {"\ud800": 1}, {b"x": 1}, {"x": {"y": []}}, object(), set(), "a" * 10**5,
    list(range(10**4)),
]  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        *(name for name in small_settings().to_dict() if name != "tracks"),
        *(f"task.{name}" for name in small_settings().task.to_dict()),
        "task.unet.channels", "task.unet.norm", "task.selector_net.head", "task.augment.flip", "task.unet.other",
        "other", "task.\ud800", "\x1b[2J\n",
    ],
)  # fmt: skip
def test_whatever_comes_in_place_of_a_setting_is_taken_or_refused_in_one_line(path):
    """Found: a number of 5,000 digits ended the check with a ValueError. What the server hears can be shown."""
    for value in ANYTHING:
        try:
            JobSettings.from_dict(settings_with(path, value))
        except UserError as e:
            for line in (str(e), e.public):
                assert line.isprintable() and len(line.encode()) < 700, (value, line)


def test_batches_are_bounded_by_their_pixels():
    with pytest.raises(UserError, match="smaller batch_size or size"):
        small_settings(size=4096, batch_size=4096)


def test_networks_are_bounded_before_they_are_built(tmp_path, data_root):
    settings = settings_with("task.unet", {"channels": [4096] * 8, "residual_units": 8})
    with pytest.raises(UserError, match="parameters, the limit is") as caught:
        build_worker(place_of(tmp_path, data_root), REGISTER, meta_of(small_settings(), 1) | {"settings": settings})
    assert caught.value.public == str(caught.value)


def test_a_site_trains_the_tracks_of_a_method_and_no_others(tmp_path, data_root):
    settings = small_settings().to_dict() | {"tracks": {f"t{i}": {"kind": "fedavg"} for i in range(300)}}
    with pytest.raises(UserError, match="tracks are global, personal and selector|cannot be of kind"):
        build_worker(place_of(tmp_path, data_root), REGISTER, meta_of(small_settings(), 1) | {"settings": settings})


@pytest.mark.parametrize("option", ["inner_steps", "adapt_steps"])
def test_steps_of_a_batch_are_bounded(tmp_path, data_root, option):
    kind = {"inner_steps": "pfedme", "adapt_steps": "per-fedavg"}[option]
    settings = small_settings(method="fedavg").to_dict() | {"tracks": {"personal": {"kind": kind, option: 10**9}}}
    with pytest.raises(UserError, match=option):
        build_worker(place_of(tmp_path, data_root), REGISTER, meta_of(small_settings(), 1) | {"settings": settings})


@pytest.mark.parametrize("number", [-5, 1.5, "../../x", 10**300, True, None])
def test_a_round_is_a_number(tmp_path, data_root, number):
    with pytest.raises(UserError, match="is no round"):
        build_worker(place_of(tmp_path, data_root), REGISTER, meta_of(small_settings(), 1) | {"round": number})


def test_a_long_list_of_sites_costs_no_time():
    started = time.process_time()
    with pytest.raises(UserError, match="the limit is"):
        check_site_names([f"s{i}" for i in range(90_000)], "the server's task")
    assert time.process_time() - started < 2


def test_a_site_scores_the_networks_of_the_sites_and_no_others(tmp_path, data_root):
    job = small_settings()
    worker = build_worker(place_of(tmp_path, data_root), EVALUATE, meta_of(job, 1))
    weights = payload_of(job, 1)["global"]
    asked = meta_of(job, 1) | {"part": "validation"}
    with pytest.raises(UserError, match="belongs to no site"):
        worker.do(EVALUATE, asked, {f"probe{i}": weights for i in range(3)}, GO_ON)


def scoring(folder, data_root, **super_model):
    """The report of a site on a super model, as a server that says these things of it gets it."""
    model = load_super_model(write_super_model(folder, "gradient"))
    about = {"sites": model.manifest["sites"], "labels": list(model.settings.task.labels), "gamma": 0.5}
    about |= {"settings": {"gammas": list(model.settings.gammas)}} | super_model
    meta = meta_of(model.settings, 0) | {"sites": model.manifest["sites"], "part": "all", "seed": 0}
    meta |= {"super_model": about}
    worker = build_worker(place_of(folder / "site", data_root), SCORE, meta)
    return worker.do(SCORE, meta, copy.deepcopy(model.networks), GO_ON).meta["report"]


def test_no_gammas_of_the_servers_choice(tmp_path, data_root):
    report = scoring(tmp_path, data_root, settings={"gammas": [0.5 + i / 200_000 for i in range(20_001)]})
    assert [row["gamma"] for row in report["gammas"]] == list(small_settings().gammas)


@pytest.mark.parametrize("gamma", ["0.5", float("nan"), [0.5], 7])
def test_gamma_is_a_fraction(tmp_path, data_root, gamma):
    with pytest.raises(UserError, match="gamma"):
        scoring(tmp_path, data_root, gamma=gamma)


def test_sites_are_those_that_were_checked(tmp_path, data_root):
    report = scoring(tmp_path, data_root, sites=["../x"] * 9)
    assert set(report["confusion"]) == {f"personal.{site}" for site in SITES[:2]}


@pytest.mark.parametrize(
    "name", ["$__import__('os').system('id')", "@run", "%x", "=1+1", "a\x1b[2J", "<b>", "", "a" * 99]
)
def test_a_label_is_a_plain_name(tmp_path, name):
    """MONAI takes `$...` in a bundle's metadata.json for a program, and runs it when the labels are asked for."""
    folder = write_super_model(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["settings"]["task"]["labels"] = {name: [1, 2], "cup": [2]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="no name of a label"):
        load_super_model(folder)
