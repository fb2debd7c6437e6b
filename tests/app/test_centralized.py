"""The centralized loop: one network on all images, judged as a federated run is."""

import json

import pytest
import torch
from monai.losses import DiceLoss

from app_fedsm.cli.main import main
from app_fedsm.cli.status import summary
from app_fedsm.runs.centralized import Pool, train
from app_fedsm.runs.run_folder import events_of
from fedsm.data.augment import augment_batch
from fedsm.data.dataset import Part, load_site, seeded_order
from fedsm.nets import build_unet
from fedsm.server.record import Progress
from fedsm.tracks.segmentation import SegmentationClient
from tests.helpers.plain_loop import averaged, clone, largest_difference
from tests.helpers.plain_recipe import factor_of, loss_of, set_rates
from tests.helpers.small_jobs import RECIPE, SITES, TINY, small_settings


def test_pool_walks_every_image_of_every_site_once():
    """Sites with images 0 1 2 and 10 11: all five, in batches of two, whatever the order."""
    parts = [Part(v.view(-1, 1, 1, 1), v.view(-1, 1, 1, 1)) for v in (torch.arange(3.0), torch.arange(10.0, 12))]
    pool = Pool(parts)
    plain = torch.cat([x for x, _ in pool.batches(2, torch.device("cpu"))]).flatten().tolist()
    mixed = [x.flatten().tolist() for x, _ in pool.batches(2, torch.device("cpu"), seed=1)]
    assert plain == [0, 1, 2, 10, 11]
    assert [len(b) for b in mixed] == [2, 2, 1] and sorted(sum(mixed, [])) == plain != sum(mixed, [])


def test_same_seed_same_weights(data_root, tmp_path):
    settings = small_settings(rounds=1)
    sites = {s: load_site(data_root / s, s, settings) for s in SITES}
    first, second = (train(settings, sites, torch.device("cpu"), Progress(tmp_path / "progress"))[0] for _ in range(2))
    assert all(torch.equal(first[k], second[k]) for k in first)


def test_equals_a_plain_loop(data_root, tmp_path, monkeypatch):
    """Two augmented epochs over all sites' images, of which validation likes the first better: its weights are kept."""
    scores = iter([0.9, 0.1])
    monkeypatch.setattr(SegmentationClient, "validate", lambda *_: {"score": next(scores)})
    augment = {"flip": "both", "intensity": 0.2}
    settings = small_settings(rounds=2, overrides=[f"task.augment={json.dumps(augment)}"])
    sites = {s: load_site(data_root / s, s, settings) for s in SITES}
    best, told = train(settings, sites, torch.device("cpu"), Progress(tmp_path / "progress"))
    assert told == [0.9, 0.1]

    torch.manual_seed(settings.seed)
    net = build_unet(settings.task)
    adam, loss = torch.optim.Adam(net.parameters(), lr=settings.lr), DiceLoss(sigmoid=True)
    images, labels = (torch.cat([getattr(sites[s]["train"], k)[:] for s in SITES]) for k in ("images", "labels"))
    seed = seeded_order(settings, "centralized", 1, 0)
    dice = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    for rows in order.split(settings.batch_size):
        x, y = augment_batch(images[rows], labels[rows].float(), settings.task.augment, dice)
        assert not torch.equal(x, images[rows])
        adam.zero_grad()
        loss(net(x), y).backward()
        adam.step()
    assert largest_difference(best, net.state_dict()) < 1e-6


def test_the_recipe_equals_a_plain_loop(data_root, tmp_path, monkeypatch):
    """Three epochs of a warm-up and a cosine, Dice and cross entropy; the average of the first two is liked best."""
    scores = iter([0.1, 0.9, 0.2])
    monkeypatch.setattr(SegmentationClient, "validate", lambda *_: {"score": next(scores)})
    settings = small_settings(rounds=3, **RECIPE)
    sites = {s: load_site(data_root / s, s, settings) for s in SITES}
    best, _ = train(settings, sites, torch.device("cpu"), Progress(tmp_path / "progress"))

    torch.manual_seed(settings.seed)
    net, loss, past = build_unet(settings.task), loss_of(settings), []
    adam = torch.optim.Adam(net.parameters())
    images, labels = (torch.cat([getattr(sites[s]["train"], k)[:] for s in SITES]) for k in ("images", "labels"))
    for epoch in (1, 2):
        set_rates([adam], settings.lr * factor_of(settings, epoch))
        rng = torch.Generator().manual_seed(seeded_order(settings, "centralized", epoch, 0))
        for rows in torch.randperm(len(images), generator=rng).split(settings.batch_size):
            adam.zero_grad()
            loss(net(images[rows]), labels[rows].float()).backward()
            adam.step()
        past.append(clone(net.state_dict()))
    assert largest_difference(best, averaged(settings, past)) < 1e-6
    assert largest_difference(best, past[-1]) > 1e-5


def test_results_are_those_of_a_run(data_root, tmp_path, capsys):
    assert main([*TINY, "--slim", "--data", str(data_root), "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "dropped what only a resume needs: " in told and not (tmp_path / "out" / "cache").exists()
    assert "client avg" in told and f"fedsm predict {tmp_path / 'out'} " in told
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["method"] == "centralized" and set(results["test"]["global"]["per_site"]) == set(SITES)
    assert len(results["validation"]["history"]) == 2
    assert results["settings"]["method"] == "centralized"
    card = (tmp_path / "out" / "super_model" / "MODEL_CARD.md").read_text()
    assert "A U-Net trained on the images of 3 sites in one place." in card and "stayed at the site" not in card
    told = summary(events_of(tmp_path / "out"))
    assert told.startswith("round 2 of 2 done, 3 of 3 sites answered, validation Dice global 0.") and told.endswith(
        "finished"
    )
    assert main(["status", str(tmp_path / "out")]) == 0
    assert main(["resume", str(tmp_path / "out")]) == 2
    assert "keeps no checkpoints; start it again with --force" in capsys.readouterr().err


def test_results_are_not_overwritten(data_root, tmp_path, capsys):
    (tmp_path / "results.json").write_text("{}")
    assert main([*TINY, "--data", str(data_root), "--out", str(tmp_path)]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (tmp_path / "results.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--size", "33"], "at 33 px"),
        (["--set", "task.unet.norm=FOO"], "no network of these settings"),
        (["--set", "tracks.nosuch.x=1"], "has no tracks"),
        (["--set", "tracks.global.kind=scaffold"], "has no tracks"),
    ],
)
def test_bad_options_are_one_line_before_any_work(data_root, tmp_path, capsys, options, words):
    assert main([*TINY, "--data", str(data_root), "--out", str(tmp_path / "out"), *options]) == 2
    assert words in (err := capsys.readouterr().err) and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_options_of_federations_are_not_taken(data_root, tmp_path, capsys):
    for option in (["--lam", "0.7"], ["--selector", "gradient"], ["--blend"], ["--threads", "1"]):
        assert main([*TINY, "--data", str(data_root), "--out", str(tmp_path / "out"), *option]) == 2
        assert f"has no federation; leave out {option[0]}\n" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["job", "export"],
        ["submit", "--kit", "kit", "--sites", "a"],
        ["poc", "submit"],
    ],
)
def test_it_is_never_a_federated_job(tmp_path, capsys, command):
    command = [*command, "--task", "retinal", "--method", "centralized", "--out", str(tmp_path / "out")]
    assert main(command) == 2
    err = capsys.readouterr().err
    assert "is no federated job" in err and "`fedsm run --method centralized`" in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_missing_data_is_one_line(tmp_path, capsys):
    assert main([*TINY, "--data", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
