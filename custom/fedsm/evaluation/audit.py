"""What left each site in a run, and what others could learn from it: the content of privacy_audit.json."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedsm.core.errors import UserError
from fedsm.core.plain_json import parse_json, read_json
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import payload_bytes
from fedsm.evaluation.runs import Run
from fedsm.selectors.descriptor import ENCODER, IMAGE, IMAGE_RANDOM
from fedsm.selectors.inference import GLOBAL
from fedsm.tracks import lam_of, playing, server_tracks
from fedsm.tracks.base import DELIVER, REGISTER, TRAIN, Phase, ServerTrack

FILE, PAGE = "privacy_audit.json", "privacy_audit.html"
_WORDS = {  # phase, whether they are sums over images
    (REGISTER, True): "sums over the training images",
    (DELIVER, True): "sums over the training images",
    (TRAIN, False): "changes of its weights, or gradients",
    (DELIVER, False): "a finished network",
    (REGISTER, False): "tensors of the network",
    (TRAIN, True): "sums over the training images",
}
_DESCRIPTORS = {
    IMAGE: "brightness, contrast, colour and texture of an image as a whole",
    IMAGE_RANDOM: "brightness, contrast, colour, texture, and how a network that nobody trained responds to an image",
    ENCODER: "how the encoder of the trained global network responds to an image",
}
_PLAIN = [
    "the number of its training, validation and test images",
    "in each round, the mean training loss of each network and the validation score of the models that it got",
    "at the end, the mean Dice of every model on its validation and test images, per label, and at each threshold; for"
    " how many images the selector chose which model",
    "one word about its files: pictures, volumes or mixed",
    "if something failed, a message without names of files",
]


def audit_content(run: Run, attacks: dict[str, dict], missing: dict[str, str], seed: int) -> dict:
    """The content of privacy_audit.json.

    Args:
        run: the run.
        attacks: site -> what `fedsm.evaluation.membership.audit_of` gave.
        missing: site -> why there are no attacks.
        seed: of the bootstrap.

    Raises:
        UserError: a centralized run, in which nothing left a site.
    """
    if run.is_centralized:
        raise UserError(
            f"{run.folder} is a centralized run: all images were in one place", remedy="audit a federated one"
        )
    results, settings = run.results, run.settings
    tracks = server_tracks(settings, run.sites)
    wire = results.get("wire") or {}
    merged = _merged(run.folder / "accepted.jsonl")
    up, down = (
        {site: sum(_numbers(part.get(site)) for key, part in wire.items() if way in key) for site in run.sites}
        for way in ("up_bytes", "down_bytes")
    )
    history = run.history()
    return {
        "run": {key: results.get(key) for key in ("task", "method", "rounds", "sites", "run_id")},
        "sent": list(_sent(tracks, [row["round"] for row in history], settings.secure_sum is not None)),
        "told": [
            *_PLAIN,
            *(["a mean score for each share that was tried (`personal_mix`)"] if settings.personal_mix else []),
        ],
        "sites": {
            site: {
                "images": results["images"].get(site, {}),
                "rounds": sum(site in row["answered"] for row in history),
                "merged": merged.get(site, 0) if merged else None,
                "up_bytes": up[site],
                "down_bytes": down[site],
            }
            for site in run.sites
        },
        "privacy": _epsilons(results, run.sites),
        "filters": filters_of(run.folder),
        "learn": _learn(settings, tracks, run),
        "attacks": attacks,
        "missing": missing,
        "seed": seed,
    }


def filters_of(folder: Path) -> list[str]:
    """The classes of the privacy filters that the run's job asks of sites; what a site adds itself is not known."""
    found: set[str] = set()
    for file in sorted((folder / "job").glob("*/app*/config/config_fed_client.json"))[:10]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            for entry in read_json(file).get("task_result_filters", []):
                for one in entry["filters"]:
                    found.add(str(one.get("path") or one.get("name")).rpartition(".")[2][:80])
    return sorted(found)


def _sent(tracks: dict[str, ServerTrack], rounds: list[int], masked: bool) -> Iterator[dict]:
    """What each track expects of a site in each phase; `masked`: updates travel under masks."""
    trained = Counter(name for number in rounds for name in playing(tracks, number))
    for name, track in tracks.items():
        for phase in Phase:
            expected = track.expects(phase)
            if not expected:
                continue
            yield {
                "track": name,
                "phase": str(phase),
                "what": _WORDS[phase, track.sums] + (", under masks" if masked and phase == TRAIN else ""),
                "rounds": trained[name] if phase == TRAIN else 1,
                "tensors": len(expected),
                "values": sum(t.numel() for t in expected.values()),
                "bytes": payload_bytes({name: expected}),
                "shapes": {key: list(t.shape) for key, t in expected.items()},
            }


def _merged(file: Path) -> Counter[str]:
    """Site -> updates in accepted.jsonl."""
    found: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for line in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found[str(parse_json(line)["site"])] += 1
    return found


def _numbers(value: Any) -> int:
    """The sum of a number of bytes, or of a list of them."""
    values = value if isinstance(value, list) else [value]
    return sum(int(v) for v in values if isinstance(v, (int, float)) and math.isfinite(v))


def _epsilons(results: dict, sites: list[str]) -> dict[str, list[dict]]:
    """Each site's privacy losses, as far as results.json tells of them."""
    found: dict[str, list[dict]] = {}
    for key, what in (("privacy", "the statistics of its images"), ("dp", "the training of its networks")):
        told = results.get(key)
        by_site = told if isinstance(told, dict) else {}
        for site in sites:
            entry = by_site.get(site)
            if not isinstance(entry, dict):
                continue
            epsilon = entry.get("epsilon", entry.get("spent"))
            if isinstance(epsilon, (int, float)) and math.isfinite(epsilon):
                releases = entry.get("releases", 1) if key == "privacy" else 1  # basic composition
                found.setdefault(site, []).append(
                    {"of": what, "epsilon": float(epsilon) * releases, "delta": entry.get("delta")}
                )
    return found


def _learn(settings: JobSettings, tracks: dict[str, ServerTrack], run: Run) -> dict[str, list[str]]:
    """What the server, the other sites and readers of the results could learn, from the job's settings."""
    travelling = [name for name, track in tracks.items() if track.expects(TRAIN)]
    delivered = [name for name, track in tracks.items() if track.expects(DELIVER) and not track.sums]
    server, sites = [], ["The names of all sites, and the settings of the job."]
    if travelling and settings.secure_sum:
        server.append(
            f"The sum of all sites' updates of {_and(travelling)} in every round, and no site's alone: updates leave a"
            " site under masks that cancel in the sum (secure sum). Sums of different sites tell about those in which"
            " they differ."
        )
    elif travelling:
        counts = [n["train"] for n in run.results["images"].values() if n.get("train")]
        steps = settings.local_epochs * math.ceil(min(counts) / settings.batch_size) if counts else 0
        server.append(
            f"Each site's update of {_and(travelling)} in every round, alone and in the clear. From an update one can"
            " try to rebuild images that were trained on; this is easiest where a round has few images and few steps"
            f" (here at least {min(counts, default=0)} images and {steps} steps)."
        )
    if delivered:
        server.append(f"Each site's finished network ({_and(delivered)}), once.")
    for track in (track for track in tracks.values() if track.sums):
        about = _DESCRIPTORS[track.options["descriptor"]]
        server.append(
            f"For the selector, the mean and the spread of the descriptors of each site's training images: {about}."
            " With few images the sums say much about each of them."
        )
        sites.append(f"The mean descriptor of each site's images ({about}), as a part of the selector.")
    server.append("Each site's numbers of images, losses and scores; of two runs, also what changed between them.")
    if GLOBAL in tracks:
        sites.append("The average of all sites' global networks, in every round; not whose part is which.")
    if "personal" in travelling:
        lam = lam_of(settings)
        share = f" ({1 - lam:.0%} of it the mean of the others)" if lam is not None else ""
        sites.append(f"In every round its own personal model mixed with the others'{share}; not whose part is which.")
    sites.append(
        "At the end every network of the super model, to test it on its own images: with personal models, each other"
        " site's. What an attacker can do with them is measured on this page."
    )
    readers = [
        "Every network of the super model, so all that is measured on this page.",
        "Each site's name, its numbers of images, and its scores.",
    ]
    return {"server": server, "sites": sites, "readers": readers}


def _and(names: list[str]) -> str:
    return f"the networks {' and '.join(names)}" if len(names) > 1 else f"the network {names[0]}"
