"""A list, kept at the site, of the sums that were sent from it.

Sums over different choices of images, or of different descriptors, can be solved for single images if there are enough
of them. So a site keeps a list of what it sent: the same sums may be sent again as often as a job asks, different ones
only up to a number that the site sets. The list stays across runs and restarts, and nothing in a job can shorten it.

Data grow: the sums before and after one image was added differ by that image. So the list also holds the images and
patients of each release, as digests with a salt of the site's own. The images of all releases fall into groups by the
releases that they are part of. However releases are added and subtracted, the result is over whole groups. A release
that would leave a group of fewer than `least` patients is refused. Images are compared by their file's content, and
once more by its name: if all files are written anew, or all renamed, and one is added, that one is still found.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from fedsm.core.errors import UserError
from fedsm.core.files import write_json
from fedsm.core.tensors import Tensors
from fedsm.selectors.gaussian import pack

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE_NAME = "statistics_releases.json"
_DIGITS = 24  # of a digest: enough that no two images share one

log = logging.getLogger(__name__)


def exact_sums(rows: torch.Tensor) -> Tensors:
    """n, the sum and the sum of outer products of (N, D) descriptors."""
    return {
        "n": torch.tensor(float(len(rows)), dtype=torch.float64),
        "sum": rows.sum(0),
        "outer": pack(rows.T @ rows),
    }


class SumsKey:
    """A digest of all that determines sums: the images, one after the other, and the descriptor.

    Not of the sums themselves: another batch size or machine rounds them differently, which reveals nothing new.

    Args:
        descriptor: plain values that say which descriptor it is.
        weights: of the network that the descriptor looks through.
    """

    def __init__(self, descriptor: list[Any], weights: Tensors):
        self._digest = hashlib.sha256(json.dumps(descriptor, sort_keys=True).encode())
        for name, tensor in sorted(weights.items()):
            self._digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            self._add(tensor)

    def see(self, images: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yields the batches of images and adds each to the digest."""
        for number, batch in enumerate(images):
            if number == 0:  # all have one shape; how they are cut into batches does not matter
                self._digest.update(f"{tuple(batch.shape[1:])}".encode())
            self._add(batch.float())
            yield batch

    def _add(self, tensor: torch.Tensor) -> None:
        self._digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)

    def hexdigest(self) -> str:
        """The key of what was seen so far."""
        return self._digest.hexdigest()


class Releases:
    """Hands out exact sums, as long as the site has not sent too many different ones.

    Args:
        folder: the site's state folder, which holds the list.
        site: named in errors.
        most: how many different sums may leave.
        files: the images that the sums are over, each with its patient.
        least: the fewest patients of any group of images that could be separated with these and earlier sums.
    """

    def __init__(
        self, folder: Path, site: str, most: int, files: list[tuple[Path, str]] | None = None, least: int = 1
    ):  # fmt: skip
        self._path = folder / FILE_NAME
        self._site, self._most = site, most
        self._files, self._least = files or [], least

    def __call__(self, rows: torch.Tensor, channels: int, key: str) -> Tensors:
        """(N, D) descriptors to sums; `key` is the digest of images and descriptor (`SumsKey`).

        Raises:
            UserError: too many different sums have left the site, these differ from earlier ones by a few patients, or
                its list cannot be used.
        """
        with locked(self._path.with_suffix(".lock"), self._site):
            sent = self._read()
            if key not in sent:
                if len(sent) >= self._most:
                    message = f"the site has sent {len(sent)} different sums of image descriptors, its limit"
                    raise UserError(
                        f"{message}: more could be solved for single images",
                        site=self._site,
                        remedy=f"if that is no danger here, raise max_statistics in fedsm_site.yaml; {self._path} lists"
                        " what was sent",
                        public=f"{message} (max_statistics)",
                    )
                salt = next((entry["salt"] for entry in sent.values() if "salt" in entry), secrets.token_hex(16))
                digests = self._digests(bytes.fromhex(salt))
                self._check_groups([*(entry.get("files", []) for entry in sent.values()), digests])
                sent[key] = {
                    "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                    "images": len(rows),
                    "numbers": rows.shape[1],
                    "salt": salt,
                    "files": digests,
                }
                write_json(self._path, sent)  # before they are sent
                log.info("site %r: new sums for the server, %d of at most %d", self._site, len(sent), self._most)
        return exact_sums(rows)

    def _digests(self, salt: bytes) -> list[list[str]]:
        """Of each image file: its content, its name and its patient, as digests that mean nothing without the files."""

        def digest(kind: str, value: bytes) -> str:
            return hmac.new(salt, kind.encode() + b"/" + value, hashlib.sha256).hexdigest()[:_DIGITS]

        rows = []
        for path, patient in self._files:
            try:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            except OSError as e:
                raise UserError(
                    f"cannot be read ({e.strerror or e})", site=self._site, file=path, remedy="restore it"
                ) from e
            name, person = (os.fsencode(text) for text in (path.name, patient))
            rows.append([digest("content", content), digest("name", name), digest("patient", person)])
        return rows

    def _check_groups(self, releases: list[list[list[str]]]) -> None:
        """Refuses the last of these releases if, with the others, it would separate a few patients from the rest.

        Raises:
            UserError: with the remedy.
        """
        for column in (0, 1):  # by content, by name
            patients = _smallest_group(releases, column)
            if patients is not None and patients < self._least:
                few = f"{patients} patient" + "s" * (patients != 1)
                message = (
                    f"with sums that were sent before, the new ones would give away the sums over {few}: it takes"
                    f" {self._least}"
                )
                raise UserError(
                    f"{message}, and the training images have changed by too few patients since",
                    site=self._site,
                    remedy="take these back, wait until there are more of them, ask for a job without the statistics"
                    f" selector, or lower min_patients in fedsm_site.yaml; {self._path} lists what was sent",
                    public=f"{message} (min_patients)",
                )

    def _read(self) -> dict[str, Any]:
        try:
            sent = json.loads(self._path.read_text(encoding="utf-8"))
            if not isinstance(sent, dict) or not all(isinstance(entry, dict) for entry in sent.values()):
                raise ValueError("no list of releases")
            return sent
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as e:
            raise UserError(
                f"cannot be read ({' '.join(str(e).split())})",
                site=self._site,
                file=self._path,
                remedy="restore it from a backup: it says which sums have left the site",
            ) from e


def _smallest_group(releases: list[list[list[str]]], column: int) -> int | None:
    """The fewest patients of any group of images that are part of the same releases; None where there are no images.

    Args:
        releases: for each release the digests of its files; the last digest of a file is the patient's.
        column: the digest by which images are compared.
    """
    parts: dict[tuple[str, int], set[int]] = {}  # image -> the releases that it is part of
    patient_of: dict[tuple[str, int], str] = {}
    for number, rows in enumerate(releases):
        seen: Counter[str] = Counter()
        for row in rows:
            image = (row[column], seen[row[column]])  # a second copy of a file is another image
            seen[row[column]] += 1
            parts.setdefault(image, set()).add(number)
            patient_of[image] = row[-1]
    groups: dict[frozenset[int], set[str]] = {}
    for image, numbers in parts.items():
        groups.setdefault(frozenset(numbers), set()).add(patient_of[image])
    return min(map(len, groups.values()), default=None)


@contextlib.contextmanager
def locked(path: Path, site: str) -> Iterator[None]:
    """Waits until no other process is between reading and writing; the system frees the lock of a killed process.

    Raises:
        UserError: the file cannot be locked, so two processes could both use the rest of the budget.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+"))
            if fcntl is None:
                raise OSError("no locks on this system")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as e:
            raise UserError(
                f"cannot be locked ({e.strerror or e})",
                site=site,
                file=path,
                remedy="set state_dir in fedsm_site.yaml to a disk whose files can be locked",
            ) from e
        yield
