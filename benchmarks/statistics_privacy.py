"""How the statistics selector's accuracy falls when all sites send private sums.

`python -m benchmarks.statistics_privacy demo_data --task retinal --size 64`

No network is trained. The accuracy is that of the sites' test images, averaged over sites and over draws of the noise;
the shrinkage is chosen on their validation images, as in a run. No bar: the table is in `docs/explanation/privacy.md`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import mean

import torch
from tqdm import tqdm

from app_fedsm.config.build import build_settings
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.data.dataset import load_site
from fedsm.data.site_folder import list_sites
from fedsm.selectors.descriptor import describe
from fedsm.selectors.gaussian import StatisticsSelector, gaussian_classes, pack
from fedsm.selectors.private_sums import PrivateSums, StatisticsPrivacy
from fedsm.tracks.selector_statistics import SHRINKAGES

EPSILONS = (None, 8.0, 3.0, 1.0)  # None: no noise
DELTA = 1e-5
_CPU = torch.device("cpu")

Rows = list[dict[str, torch.Tensor]]  # for each site: part -> descriptors


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.statistics_privacy", description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="data root with one folder per site")
    parser.add_argument("--task", default="retinal")
    parser.add_argument("--size", type=int, default=64, help="pixels (default: 64)")
    parser.add_argument("--clip", type=float, default=StatisticsPrivacy.clip, help="default: %(default)g")
    parser.add_argument("--draws", type=int, default=20, help="of the noise (default: 20)")
    given = parser.parse_args(argv)
    settings = build_settings(task=given.task, method="fedsm", size=given.size)
    rows: Rows = []
    for site in tqdm(list_sites(given.data), unit="site", disable=None):
        parts = load_site(given.data / site, site, settings)
        rows.append({p: torch.cat([describe(x) for x, _ in part.batches(32, _CPU)]) for p, part in parts.items()})
    print(f"training images: {', '.join(str(len(r['train'])) for r in rows)}; delta {DELTA:g}, clip {given.clip:g}")
    for epsilon in EPSILONS:
        draws = given.draws if epsilon else 1
        values = [_accuracy(_sums(rows, epsilon, given.clip, settings), rows, settings) for _ in range(draws)]
        print(f"epsilon {epsilon or 'inf'}: accuracy {mean(values):.3f} ({min(values):.3f} to {max(values):.3f})")
    return 0


def _sums(rows: Rows, epsilon: float | None, clip: float, settings: JobSettings) -> list[Tensors]:
    """What the sites send, with fresh noise."""
    if epsilon is None:
        trains = [r["train"] for r in rows]
        return [{"n": torch.tensor(float(len(t))), "sum": t.sum(0), "outer": pack(t.T @ t)} for t in trains]
    with tempfile.TemporaryDirectory() as folder:
        privacy = StatisticsPrivacy(epsilon, DELTA, clip)
        return [
            PrivateSums(privacy, Path(folder, str(k)))(r["train"], settings.task.channels) for k, r in enumerate(rows)
        ]


def _accuracy(sums: list[Tensors], rows: Rows, settings: JobSettings) -> float:
    classes = gaussian_classes(sums)
    selectors = [
        StatisticsSelector(settings, len(rows), classes | {"shrinkage": torch.tensor(a)}, _CPU) for a in SHRINKAGES
    ]

    def hits(selector: StatisticsSelector, part: str) -> list[torch.Tensor]:
        return [(selector.distances_of(r[part]).argmin(1) == k).double() for k, r in enumerate(rows)]

    best = max(selectors, key=lambda s: torch.cat(hits(s, "validation")).mean().item())
    return mean(h.mean().item() for h in hits(best, "test"))


if __name__ == "__main__":
    sys.exit(main())
