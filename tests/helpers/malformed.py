"""Uploads that no service should take: truncated, of wrong types, bombs, with names that are paths, broken forms."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from tests.helpers.service import picture, volume

_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"II*\0", b"GIF89a", b"BM", b"P6\n9 9\n255\n", b"\x1f\x8b\x08")
NAMES = [
    "../../etc/passwd", "/etc/passwd", "..", "../x.png", "a/../../x.png", "..\\..\\x.png", "x\\y.png", "a/b.png",
    "./a.png", "//server/share/x.png", "server\\share\\x.png", "~/../x", "/dev/zero", "/proc/self/mem", "images/",
    "a\x01b.png", "x.png/..", "....//x", "/", "\\",
]  # fmt: skip


def contents(scratch: Path) -> Iterator[tuple[str, bytes]]:
    """What is wrong, and the file."""
    whole = {kind: picture((64, 64), kind=kind) for kind in ("PNG", "JPEG", "TIFF", "BMP", "GIF", "PPM")}
    whole["NIfTI"] = volume(scratch / "a.nii")
    whole["NIfTI.gz"] = volume(scratch / "a.nii.gz")
    for kind, content in whole.items():
        for part in (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
            yield f"{kind} cut to {part:.0%}", content[: max(1, int(part * len(content)))]
    for start in (
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",
        b"II*\0",
        b"GIF89a",
        b"BM",
        b"P6\n9 9\n255\n",
        b"\x1f\x8b\x08",
    ):
        for seed in range(7):
            yield f"noise after {start!r}", start + np.random.default_rng(seed).bytes(200)
    yield from _wrong_types()
    yield from _bombs(scratch)


def _wrong_types() -> Iterator[tuple[str, bytes]]:
    for what in (
        b"", b"\0", b"%PDF-1.7\n", b"PK\3\4" + bytes(60), b"\x7fELF" + bytes(60), b"{}", b"null",
        b"<!doctype html><script>alert(1)</script>", b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"#!/bin/sh\nid\n", bytes(128) + b"DICM" + bytes(40), b"ustar" * 100, "ä眼".encode() * 50, b"\n" * 5000,
        bytes(100_000), b"RIFF\0\0\0\0WEBPVP8 ", b"\0\0\0\x18ftypmp42", b"SQLite format 3\0", b"ncols 1\n", b"P4 1 1",
        b"\x80\x04\x95cos\nsystem\n",
    ):  # fmt: skip
        yield f"no image: {what[:12]!r}", what


def _bombs(scratch: Path) -> Iterator[tuple[str, bytes]]:
    for size in (60_000, 30_000, 8_000):
        yield f"PNG of {size} x {size}", _png_header(size)
    for shape in ((20_000, 20_000, 20), (30_000, 30_000, 1), (1, 1, 32_767), (2, 2, 30_000), (0, 5, 5), (-3, 5, 5)):
        yield f"NIfTI of {shape}", _nifti_header(shape)
        yield f"NIfTI.gz of {shape}", gzip.compress(_nifti_header(shape) + bytes(2**20), 1)
    yield "NIfTI with notes of 2 GB", _nifti_header((4, 4, 4), offset=2e9)
    yield "NIfTI with notes of NaN bytes", _nifti_header((4, 4, 4), offset=float("nan"))
    yield "gzip of 300 MB of zeros", gzip.compress(bytes(2**20), 1) * 300
    yield "NIfTI of complex numbers", _nifti_header((4, 4, 4), datatype=32, bits=64) + bytes(1000)
    yield "NIfTI of colours", _nifti_header((4, 4, 4), datatype=128, bits=24) + bytes(1000)
    yield "NIfTI of NaN", _nifti_header((4, 4, 4), datatype=16, bits=32) + np.full(64, np.nan, np.float32).tobytes()
    yield "several pictures", _film()
    yield "PNG whose data are 100 MB of zeros", _png_header(2_000, zlib.compress(bytes(100 * 2**20), 1))


def _png_header(size: int, data: bytes = b"") -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", size, size, 8, 9 if data else 2, 0, 0, 0)  # 9: a type of colour that there is not
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _nifti_header(shape: tuple[int, int, int], offset: float = 352, datatype: int = 4, bits: int = 16) -> bytes:
    head = bytearray(352)
    struct.pack_into("<i", head, 0, 348)
    struct.pack_into("<8h", head, 40, 3, *shape, 1, 1, 1, 1)
    struct.pack_into("<hh", head, 70, datatype, bits)
    struct.pack_into("<8f", head, 76, 1, 1, 1, 1, 1, 1, 1, 1)
    struct.pack_into("<f", head, 108, offset)
    head[344:348] = b"n+1\0"
    return bytes(head)


def _film() -> bytes:
    file = io.BytesIO()
    frames = [Image.new("L", (9, 9), shade) for shade in (0, 90, 180)]
    frames[0].save(file, "TIFF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def forms() -> Iterator[tuple[str, dict, bytes]]:
    """What is wrong, headers, and body."""
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n' + picture() + b"\r\n"
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    yield "another type", {"Content-Type": "application/json"}, b"{}"
    yield "no type", {}, picture()
    yield "a picture without a form", {"Content-Type": "image/png"}, picture()
    yield "no boundary", {"Content-Type": "multipart/form-data"}, part + b"--x--\r\n"
    yield "another boundary", {"Content-Type": "multipart/form-data; boundary=y"}, part + b"--x--\r\n"
    yield "no end", form, part[: len(part) // 2]
    yield "two files", form, part + part + b"--x--\r\n"
    yield "no file", form, b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nabc\r\n--x--\r\n'
    yield "no name", form, b'--x\r\nContent-Disposition: form-data; filename="a"\r\n\r\nabc\r\n--x--\r\n'
    yield "nothing", form, b"--x--\r\n"
    yield "an empty body", form, b""
    yield "a long field", form, b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + b"m" * 10**6
    field = b'--x\r\nContent-Disposition: form-data; name="f"\r\n\r\n1\r\n'
    yield "many fields", form, field * 5000 + part + b"--x--\r\n"
    yield (
        "an unknown network",
        form,
        part + b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n../x\r\n--x--\r\n',
    )
    yield (
        "a strange character set",
        form | {"Content-Type": "multipart/form-data; boundary=x; charset=zip"},
        b"--x\r\n\xff",
    )
    yield "a long head", form, b"--x\r\n" + b"A: " + b"b" * 10**6 + b"\r\n\r\n"
