"""`fedsm data prepare`: the paper's twelve public sources, from their official downloads to site folders.

One module per family of sources; each lists its `SOURCES` and says where its layout is known from.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

from fedsm.core.errors import UserError
from fedsm.core.model import known_words
from fedsm.data.prepare import drishti, i2cvb, msd, nci_isbi, promise12, prostatex, refuge, riga, rim_one
from fedsm.data.prepare.pictures import read_picture
from fedsm.data.prepare.source import Prepared, Source
from fedsm.data.readers import suffix

_FAMILIES = (drishti, riga, rim_one, refuge, i2cvb, msd, nci_isbi, promise12, prostatex)
SOURCES: dict[str, Source] = {source.name: source for family in _FAMILIES for source in family.SOURCES}


def prepare(
    source: str, raw: Path, out: Path, readers: str = "majority", progress: Callable[[int], object] | None = None
) -> int:
    """Writes `out/<site>/images` and `out/<site>/masks` from a raw download; returns the number of pairs.

    The site appears when it is complete: a failed run leaves nothing, a killed one at most `.<site>.partial`, which the
    next run removes.

    Args:
        source: a key of `SOURCES`.
        raw: the unpacked download.
        out: the data root.
        readers: `majority` or `first`, for sources with several readers.
        progress: called with 1 for each pair written.

    Raises:
        UserError: unknown source, a download that is missing or incomplete, or a site that already holds files.
    """
    if source not in SOURCES:
        raise UserError(f"unknown source {source!r}", remedy=known_words(source, SOURCES))
    spec = SOURCES[source]
    if readers not in spec.readers:
        raise UserError(f"{source}: readers {readers!r} is not possible", remedy=f"choose {' or '.join(spec.readers)}")
    if not raw.is_dir():
        raise UserError(f"{source}: {raw} is not a folder", remedy=f"get the data: {spec.where}")
    if out.resolve().is_relative_to(raw.resolve()):
        raise UserError(f"{source}: {out} lies inside {raw}", remedy="choose an output folder outside of the download")
    site = out / spec.site
    if site.exists() and (not site.is_dir() or any(site.iterdir())):
        raise UserError(
            f"{source}: {site} already holds files", remedy="nothing is overwritten: remove it or choose another OUT"
        )
    try:
        return _write_site(spec, raw, site, readers, progress or (lambda n: None))
    except OSError as e:
        raise UserError(
            f"{source}: {e.filename or out}: {e.strerror or e}", remedy="check permissions and free space"
        ) from e


def _write_site(spec: Source, raw: Path, site: Path, readers: str, progress: Callable[[int], object]) -> int:
    made = [folder for folder in (site.parent, *site.parent.parents) if not folder.exists()]
    partial = site.parent / f".{spec.site}.partial"
    # One level deeper than a site, so that what a killed run leaves is never taken for a site.
    unfinished, stems = partial / spec.site, set()
    try:
        shutil.rmtree(partial, ignore_errors=True)
        for part in ("images", "masks"):
            (unfinished / part).mkdir(parents=True)
        for pair in spec.pairs(raw, readers):
            if pair.stem in stems:
                raise UserError(
                    f"{spec.name}: two cases are called {pair.stem!r}", remedy=f"keep one of them below {raw}"
                )
            stems.add(pair.stem)
            _write(pair, unfinished, spec.name)
            progress(1)
        if not stems:
            raise UserError(f"{spec.name}: {raw} holds no usable case", remedy="unpack the whole download")
        if site.exists():
            site.rmdir()
        unfinished.rename(site)
        partial.rmdir()
    except BaseException:  # Ctrl-C as well
        shutil.rmtree(partial, ignore_errors=True)
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    return len(stems)


def _write(pair: Prepared, site: Path, source: str) -> None:
    mask = pair.mask.astype(np.uint8)
    if pair.affine is not None:
        assert isinstance(pair.image, np.ndarray), "a volume is never copied as it is"
        for part, voxels in (("images", _small(pair.image)), ("masks", mask)):
            nibabel.save(nibabel.Nifti1Image(voxels, pair.affine), site / part / f"{pair.stem}.nii.gz")
        return
    if isinstance(pair.image, Path):
        shutil.copyfile(pair.image, site / "images" / f"{pair.stem}{suffix(pair.image)}")
        if read_picture(pair.image, "RGB", source).shape[:2] != mask.shape:
            raise UserError(f"{source}: {pair.image} and its annotation differ in size", remedy="download both again")
    else:
        Image.fromarray(pair.image).save(site / "images" / f"{pair.stem}.png")
    Image.fromarray(mask).save(site / "masks" / f"{pair.stem}.png")


def _small(voxels: np.ndarray) -> np.ndarray:
    """int16, as scanners store it, if nothing is lost; otherwise float32 (many NIfTI readers cannot read int64)."""
    whole = np.issubdtype(voxels.dtype, np.integer)
    return voxels.astype(np.int16 if whole and voxels.min() >= -(2**15) and voxels.max() < 2**15 else np.float32)


def describe_sources() -> str:
    """What `fedsm data prepare --list` prints: each source's origin, terms, layout, rule and what is unchecked."""
    blocks = []
    for source in SOURCES.values():
        layout = "\n".join(f"    {line}" for line in source.layout.splitlines())
        blocks.append(
            f"{source.name}  (task {source.task}, site {source.site}, readers: {', '.join(source.readers)})\n"
            f"  get it:  {source.where}\n  terms:   {source.terms}\n  masks:   {source.rule}\n"
            f"  checked: {source.checked}\n  layout below RAW:\n{layout}"
        )
    return "\n\n".join(blocks)
