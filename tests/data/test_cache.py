"""The cache of decoded images: the same numbers, never half built, never stale, never larger than it may be."""

import io
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from app_fedsm.config.build import build_settings
from fedsm.core import file_lock
from fedsm.core.errors import UserError
from fedsm.data import cache as cache_module
from fedsm.data import dataset, digests
from fedsm.data.cache import SiteCache, open_entry
from fedsm.data.dataset import MappedRows, load_site
from fedsm.data.site_folder import list_pairs
from tests.helpers.assertions import same_images
from tests.helpers.small_jobs import small_settings, write_site

PLENTY = 10**12


@pytest.fixture
def site(tmp_path) -> Path:
    write_site(tmp_path / "data", 8, seed=0)
    return tmp_path / "data"


@pytest.fixture
def cache(tmp_path) -> SiteCache:
    return SiteCache(tmp_path / "cache" / "a", PLENTY, workers=2)


def load(site: Path, cache: SiteCache | None, **given):
    return load_site(site, "a", small_settings(**given), cache=cache)


def entries(cache: SiteCache) -> set[str]:
    return {p.name for p in cache.folder.iterdir() if p.is_dir()}


@pytest.fixture
def builds(monkeypatch) -> list[int]:
    """One number for each time that files were decoded: how many."""
    seen = []
    original = dataset._decode

    def counted(pairs, *args):
        seen.append(len(pairs))
        return original(pairs, *args)

    monkeypatch.setattr(dataset, "_decode", counted)
    return seen


def test_a_mapped_site_has_the_same_numbers(site, cache, builds):
    loaded, first, again = load(site, None), load(site, cache), load(site, cache)
    assert builds == [4, 2, 2, 8], "the third found the second's entry"
    assert same_images(first, loaded) and same_images(again, loaded)
    cpu = torch.device("cpu")
    for one, other in zip(again["train"].batches(3, cpu, seed=5), loaded["train"].batches(3, cpu, seed=5), strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_volumes_of_different_depth(tmp_path, cache):
    """Four patients of 2, 3, 4 and 5 slices: each part holds its own volumes' slices, in their order."""
    rng = np.random.default_rng(0)
    for part in ("images", "masks"):
        (tmp_path / "mr" / part).mkdir(parents=True)
    for depth in (2, 3, 4, 5):
        image, mask = rng.normal(100, 30, (20, 24, depth)), rng.integers(0, 2, (20, 24, depth))
        for part, array in (("images", image.astype(np.float32)), ("masks", mask.astype(np.uint8))):
            nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), tmp_path / "mr" / part / f"p{depth}.nii.gz")
    settings = build_settings("prostate", "fedsm", size=32)
    mapped, loaded = (load_site(tmp_path / "mr", "a", settings, cache=c) for c in (cache, None))
    assert same_images(mapped, loaded)
    assert sum(map(len, mapped.values())) == 14


def test_what_changes_the_entry_and_what_does_not(site, cache, builds):
    load(site, cache)
    load(site, cache, seed=7)
    load(site, cache, lr=1e-2, batch_size=2, overrides=["task.augment={flip: both}"])
    assert len(builds) == 1, "a seed picks other rows of the same entry"
    settings = ["task.labels={cup: [2], disc: [1, 2]}", "task.background=[0, 9]", "task.intensity=percentiles"]
    for given in [{"size": 48}, *({"overrides": [text]} for text in settings)]:
        before = len(builds)
        assert same_images(load(site, cache, **given), load(site, None, **given))
        assert len(builds) == before + 4, given  # the cached one once, the other its three parts
    for part in ("images", "masks"):
        (site / part / "case_07.png").replace(site / part / "case_08.png")
    before = len(builds)
    load(site, cache)
    assert len(builds) == before + 1, "another name"


def test_a_changed_file_is_seen_even_if_its_size_and_time_are_not_changed(site, cache, monkeypatch):
    monkeypatch.setattr(digests, "_GRAIN", 0)
    image, mask = site / "images" / "case_03.png", site / "masks" / "case_03.png"
    Image.open(mask).save(mask.with_suffix(".bmp"))  # without compression: every mask has one size
    mask.unlink()
    mask = mask.with_suffix(".bmp")
    load(site, cache)
    Image.fromarray(255 - np.asarray(Image.open(image))).save(image)
    assert same_images(load(site, cache), load(site, None)), "a new image"
    before = mask.stat()
    Image.fromarray(np.asarray(Image.open(mask))[::-1]).save(mask)
    os.utime(mask, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (mask.stat().st_size, mask.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert same_images(load(site, cache), load(site, None)), "a new mask"


def test_unchanged_files_are_not_read_again(site, cache, monkeypatch):
    monkeypatch.setattr(digests, "_GRAIN", 0)
    load(site, cache)
    read = []
    digest = digests.hashlib.file_digest
    monkeypatch.setattr(digests.hashlib, "file_digest", lambda f, name: read.append(f.name) or digest(f, name))
    load(site, cache)
    assert read == []
    (site / "images" / "case_00.png").touch()
    load(site, cache)
    assert [Path(name).name for name in read] == ["case_00.png"]
    (cache.folder / "digests.json").write_text("no JSON")
    load(site, cache)
    assert len(read) == 17


def test_a_file_that_was_just_written_is_read_again(site, cache):
    """Changed again within the clock's grain, it would look unchanged."""
    load(site, cache)
    assert not (cache.folder / "digests.json").exists()


def test_files_that_change_while_they_are_read_make_no_entry(site, cache):
    settings = small_settings()
    pairs = list_pairs(site, "a")

    def decode():
        yield from dataset._decode(pairs, "a", settings, 1)
        shutil.copy(site / "images" / "case_00.png", site / "images" / "case_01.png")

    with pytest.raises(UserError, match="changed while they were read"):
        open_entry(cache, "a", pairs, {}, decode)
    assert entries(cache) == set()


@pytest.mark.parametrize("how", ["truncated", "longer", "no labels", "no manifest", "odd manifest"])
def test_a_damaged_entry_is_built_again(site, cache, builds, how):
    load(site, cache)
    place = cache.folder / entries(cache).pop()
    if how == "truncated":
        os.truncate(place / "images.f32", 1000)
    elif how == "longer":
        with (place / "images.f32").open("ab") as f:
            f.write(b"1234")
    elif how == "no labels":
        (place / "labels.u8").unlink()
    elif how == "no manifest":
        (place / "manifest.json").unlink()
    else:
        (place / "manifest.json").write_text("[]")
    assert same_images(load(site, cache), load(site, None))
    assert builds == [8, 8, 4, 2, 2]
    assert entries(cache) == {place.name}


def test_the_longest_unused_entries_are_dropped(site, cache):
    """Entries of 32, 40 and 48 px; the budget is that of the last two."""
    for size in (32, 40, 48):
        load(site, cache, size=size)
        if size == 32:
            smallest = entries(cache)
    load(site, cache, size=32)  # so 40 is the longest unused
    size_of = {name: sum(f.stat().st_size for f in (cache.folder / name).iterdir()) for name in entries(cache)}
    small = SiteCache(cache.folder, sum(size_of.values()) - 1)
    load(site, small, size=48)
    middle = sorted(size_of, key=size_of.get)[1]
    assert entries(cache) == set(size_of) - {middle}
    assert smallest <= entries(cache)


def size_on_disk(cache: SiteCache) -> int:
    return sum(f.stat().st_size for name in entries(cache) for f in (cache.folder / name).iterdir())


def test_entries_in_use_are_never_dropped(site, cache, caplog):
    held = load(site, cache)
    narrow = SiteCache(cache.folder, 2 * size_on_disk(cache))
    other = load(site, narrow, size=48)  # 2.25 times the first
    assert len(entries(cache)) == 1 and same_images(other, load(site, None, size=48))
    assert "raise it in fedsm_site.yaml" in caplog.text
    assert same_images(held, load(site, None))
    del held
    load(site, narrow, size=40)
    assert len(entries(cache)) == 1 and size_on_disk(cache) <= narrow.budget


def test_nothing_but_entries_is_dropped(site, cache):
    (cache.folder / "thesis").mkdir(parents=True)
    (cache.folder / "thesis" / "manifest.json").write_text("{}")
    load(site, cache)
    first = entries(cache)
    load(site, SiteCache(cache.folder, size_on_disk(cache) * 5 // 2), size=48)
    assert "thesis" in entries(cache) and len(entries(cache)) == 2 and entries(cache) != first


def test_a_folder_that_cannot_be_written_costs_time_but_no_training(site, tmp_path, caplog):
    (tmp_path / "file").touch()
    parts = load(site, SiteCache(tmp_path / "file" / "a", PLENTY))
    assert same_images(parts, load(site, None))
    assert "site 'a': the cache" in caplog.text and "set another cache_dir" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING, "errors may be streamed to the server, and this names a path"


def test_a_full_disk_costs_time_but_no_training(site, cache, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        parts = load(site, cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot be used (File too large)" in caplog.text
    assert entries(cache) == set()
    assert same_images(parts, load(site, None))


def test_a_bad_file_is_named_and_leaves_nothing(site, cache):
    (site / "images" / "case_05.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match="case_05.png: cannot be read"):
        load(site, cache)
    assert entries(cache) == set()


def test_where_there_are_no_locks_the_first_to_finish_wins(site, cache, monkeypatch):
    monkeypatch.setattr(file_lock, "fcntl", None)
    other = cache_module._write

    def slower(folder, decoded, room):
        monkeypatch.setattr(cache_module, "_write", other)
        load(site, cache)  # another process, from start to end
        return other(folder, decoded, room)

    monkeypatch.setattr(cache_module, "_write", slower)
    parts = load(site, cache)
    assert isinstance(parts["train"].images, MappedRows), "not decoded to memory"
    assert same_images(parts, load(site, None))
    assert len(entries(cache)) == 1


def test_a_person_sees_a_bar_and_a_log_two_lines(site, cache, caplog, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    caplog.set_level(logging.INFO)
    for terminal, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", terminal)
        load(site, cache, size=48 if shown else 32)
        assert ("decoding a" in terminal.getvalue() and "image/s" in terminal.getvalue()) == shown
    first, last = (record.getMessage() for record in caplog.records[-2:])
    assert "decoding its images" in first
    assert "8 images in" in last and "images/s" in last


_BUILD = """
import sys, time
from pathlib import Path
import torch
from fedsm.data.cache import SiteCache, open_entry
from fedsm.data.site_folder import list_pairs

site, folder, log, go = map(Path, sys.argv[1:5])
pairs = list_pairs(site, "a")

def decode():
    for i in range(len(pairs)):
        with log.open("a") as f:
            f.write("file\\n")
        time.sleep(600 if i == int(sys.argv[5]) else 0.05)
        yield torch.full((1, 3, 8, 8), float(i)), torch.full((1, 2, 8, 8), i, dtype=torch.uint8)

print("ready", flush=True)
while not go.exists():
    time.sleep(0.01)
entry = open_entry(SiteCache(folder, 10**12), "a", pairs, {}, decode)
assert entry.images[:, 0, 0, 0].tolist() == entry.labels[:, 0, 0, 0].tolist() == list(range(len(pairs)))
"""


def start(site: Path, cache: SiteCache, log: Path, stops_at: int = -1) -> subprocess.Popen:
    """A process that builds an entry once `go` is there, slowly, notes each file in the log, and stays at one."""
    arguments = [site, cache.folder, log, log.with_name("go"), stops_at]
    return subprocess.Popen([sys.executable, "-c", _BUILD, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def go(folder: Path, *processes: subprocess.Popen) -> None:
    """Lets them begin when all are ready."""
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * len(processes)
    (folder / "go").touch()


def numbers(count: int):
    for i in range(count):
        yield torch.full((1, 3, 8, 8), float(i)), torch.full((1, 2, 8, 8), i, dtype=torch.uint8)


def test_a_killed_build_leaves_nothing_that_is_used(site, cache, tmp_path):
    log = tmp_path / "log"
    process = start(site, cache, log, stops_at=3)
    go(tmp_path, process)
    while not log.exists() or len(log.read_text().splitlines()) < 4:
        time.sleep(0.01)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert [name[:9] for name in entries(cache)] == [".partial-"]
    decoded = []
    pairs = list_pairs(site, "a")
    entry = open_entry(cache, "a", pairs, {}, lambda: decoded.append(1) or numbers(len(pairs)))
    assert decoded == [1]
    assert entry.images[:, 0, 0, 0].tolist() == list(range(8))
    assert [len(name) for name in entries(cache)] == [32], "and what it left is gone"


def test_of_two_processes_one_builds_and_the_other_waits(site, cache, tmp_path):
    log = tmp_path / "log"
    processes = [start(site, cache, log) for _ in range(2)]
    go(tmp_path, *processes)
    assert [process.wait() for process in processes] == [0, 0]
    assert len(log.read_text().splitlines()) == 8
    assert [len(name) for name in entries(cache)] == [32]


_WALK = """
import sys
from pathlib import Path
import torch
from fedsm.data.cache import SiteCache, open_entry
from fedsm.data.dataset import MappedRows, Part
from fedsm.data.site_folder import list_pairs

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def decode():
    for i in range(600):
        yield torch.full((1, 3, 128, 128), i / 600), torch.zeros(1, 2, 128, 128, dtype=torch.uint8)

pairs = list_pairs(Path(sys.argv[1]), "a")
before = peak = anonymous()
def watched():
    global peak
    for one in decode():
        peak = max(peak, anonymous())
        yield one
entry = open_entry(SiteCache(Path(sys.argv[2]), 10**12), "a", pairs, {}, watched)
rows = entry.rows(range(600))
part = Part(MappedRows(entry, entry.images, rows), MappedRows(entry, entry.labels, rows))
total = 0
for epoch in range(2):
    for images, labels in part.batches(8, torch.device("cpu"), seed=epoch):
        peak = max(peak, anonymous())
        total += images[:, 0, 0, 0].sum().item()
assert abs(total - 599) < 1e-2, total
print(entry.images.nbytes + entry.labels.nbytes, peak - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_an_entry_need_not_fit_into_memory(site, tmp_path):
    """138 MB are built and walked twice; what the process holds itself (RssAnon) stays a fraction of that."""
    output = subprocess.run(
        [sys.executable, "-c", _WALK, str(site), str(tmp_path / "cache")], check=True, capture_output=True, text=True
    ).stdout
    size, growth = map(int, output.split())
    assert size == 600 * 128 * 128 * (3 * 4 + 2)
    assert growth < size / 5, f"{growth / 1e6:.0f} MB of {size / 1e6:.0f} MB"
