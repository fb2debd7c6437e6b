"""Row 23: no image makes a machine run out of memory, and no name makes matplotlib compute.

The largest images here are a few kilobytes on disk: their headers tell what they would become.
"""

from __future__ import annotations

import gzip
import io
import shutil
import time
import tracemalloc
import zlib
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

from app_fedsm.cli.main import main
from fedsm.core.errors import UserError
from fedsm.data.readers import read
from tests.helpers.finished_run import finished_run
from tests.helpers.small_jobs import write_site
from tests.helpers.small_model import write_super_model

BROKEN = ["a$b", r"$\frac$", "x_$1^$"]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\n0 0 moveto showpage\n%%EOF\n"


def nifti_bomb(path: Path, shape=(2048, 2048, 1024), offset: int = 352, content: int = 0) -> Path:
    """A NIfTI whose header promises a volume; after it `content` bytes of zeros, compressed."""
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.int16)
    header.set_data_shape(shape)
    header["vox_offset"], header["magic"] = offset, b"n+1"
    has_notes = bytes([offset > 352, 0, 0, 0])
    notes = (offset - 352).to_bytes(4, "little") + (6).to_bytes(4, "little") if offset > 352 else b""
    with gzip.open(path, "wb") as f:
        f.write(header.binaryblock + has_notes + notes)
        for _ in range(content // 2**20):
            f.write(bytes(2**20))
    return path


def png_bomb(path: Path, width: int, height: int) -> Path:
    """A black PNG of one bit a pixel."""
    rows = zlib.compress(bytes((1 + -(-width // 8)) * height), 1)
    chunks = [(b"IHDR", width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([1, 0, 0, 0, 0]))]
    chunks += [(b"IDAT", rows), (b"IEND", b"")]
    with path.open("wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n")
        for kind, data in chunks:
            f.write(len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big"))
    return path


def refused(path: Path, words: str) -> None:
    """It is refused at once, in one line that names site, file, limit and remedy, and costs no memory."""
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(UserError, match=words) as error:
            read(path, "site-1")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = str(error.value)
    assert "site 'site-1'" in text and str(path) in text and "the limit is" in text and "\n" not in text
    assert peak < 16e6 and time.process_time() - started < 5


def test_a_volume_that_promises_gigabytes(tmp_path):
    refused(nifti_bomb(tmp_path / "8_gb.nii.gz"), "2048 x 2048 x 1024 voxels take 8.0 GiB.*crop it")
    scaled = nifti_bomb(tmp_path / "scaled.nii.gz", (1024, 1024, 1024))
    content = bytearray(gzip.decompress(scaled.read_bytes()))
    content[112:116] = np.float32(2).tobytes()  # scl_slope: int16 becomes float64
    scaled.write_bytes(gzip.compress(bytes(content)))
    refused(scaled, "8.0 GiB")


def test_a_header_of_hundreds_of_megabytes(tmp_path):
    """nibabel reads what lies before the voxels when it opens a file: 300 kB on disk, 200 MB in memory."""
    bomb = nifti_bomb(tmp_path / "notes.nii.gz", (4, 4, 4), offset=200 * 2**20, content=201 * 2**20)
    assert bomb.stat().st_size < 400_000
    refused(bomb, "210 MB of notes")


def test_more_in_the_stream_than_the_header_says_is_left_alone(tmp_path):
    bomb = nifti_bomb(tmp_path / "tail.nii.gz", (4, 4, 4), content=256 * 2**20)
    tracemalloc.start()
    try:
        assert read(bomb).shape == (4, 4, 4, 1) and tracemalloc.get_traced_memory()[1] < 16e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("width", "height"), [(12_000, 10_001), (20_000, 20_000)])
def test_a_picture_of_too_many_pixels(tmp_path, width, height):
    """Above the limit, and above twice the limit, where Pillow has words of its own."""
    refused(png_bomb(tmp_path / "large.png", width, height), "the limit is 100 million: make it smaller")


def test_no_format_that_runs_a_program(tmp_path):
    """Pillow reads EPS by Ghostscript, whatever the file is called."""
    (tmp_path / "x.png").write_bytes(EPS)
    with pytest.raises(UserError, match="cannot identify image file"):
        read(tmp_path / "x.png")


def test_commands_go_on_without_it(tmp_path, capsys):
    """`predict` and `data check` name it, and do the rest."""
    site = tmp_path / "data" / "site-1"
    write_site(site, 6, 0)
    png_bomb(site / "images" / "bomb.png", 20_000, 6_000)
    png_bomb(site / "masks" / "bomb.png", 20_000, 6_000)
    model = write_super_model(tmp_path)
    assert main(["predict", str(model), str(site / "images"), "-o", str(tmp_path / "out")]) == 1
    told = capsys.readouterr()
    assert "bomb.png: cannot be read (20000 x 6000 pixels" in told.err and "6 images" in told.out
    assert main(["data", "check", str(tmp_path / "data"), "--task", "retinal", "--no-sheets"]) == 1
    assert "bomb.png (20000 x 6000 pixels, the limit is 100 million" in capsys.readouterr().out


def test_metaimage_of_a_download(tmp_path):
    pytest.importorskip("SimpleITK")
    from fedsm.data.prepare.itk import read_volume

    (tmp_path / "case.mha").write_bytes(
        b"ObjectType = Image\nNDims = 3\nBinaryData = True\nCompressedData = True\nCompressedDataSize = 11\n"
        b"DimSize = 4096 4096 4096\nElementType = MET_SHORT\nElementDataFile = LOCAL\n" + zlib.compress(b"")
    )
    with pytest.raises(UserError, match="case.mha is too large .*the limit is 4 GiB"):
        read_volume(tmp_path / "case.mha", "promise12")


def test_a_name_that_is_no_formula(data_root, tmp_path):
    """Runs called `a$b` and `$\\frac$`: titles, ticks and legends show the names as they are."""
    run = finished_run(tmp_path, data_root, rounds=2)
    runs = [str(shutil.copytree(run, tmp_path / name)) for name in BROKEN]
    assert main(["report", *runs, "--quick", "-o", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert all(page.count(name) > 5 for name in BROKEN) and list(tmp_path.glob("r_figures/confusion*"))


def test_every_text_of_a_figure():
    """Also those that no report of a test happens to draw: labels, titles and text inside of axes."""
    from fedsm.evaluation.figure_style import add_legend, new_figure

    figure, axes = new_figure()
    name = BROKEN[1]
    axes.plot([0, 1], label=name)
    axes.set(title=name, xlabel=name, ylabel=name)
    axes.set_xticks([0, 1], [name, name])
    axes.text(0, 0, name)
    axes.annotate(name, (0, 0))
    figure.suptitle(name)
    add_legend(figure, axes)
    figure.savefig(io.BytesIO(), format="svg")


def test_pillow_itself_is_bounded():
    """Code of others in our processes (MONAI) meets Pillow's own limit, which is ours."""
    assert Image.MAX_IMAGE_PIXELS == 100_000_000
