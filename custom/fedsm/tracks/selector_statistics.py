"""The selector without training: Gaussian classes from each site's sums.

With d(x) a fixed descriptor of an image, site k sends once n_k, s_k = sum d and Q_k = sum d d^T. The server forms

    mu_k  = s_k / n_k
    Sigma = sum_k (Q_k - n_k mu_k mu_k^T) / (n - K)           pooled within-class covariance
    R     = (1 - a) D^-1 Sigma D^-1 + a I,  D = diag(Sigma)^1/2    shrunk correlation
    m_k   = z^T R^-1 z,  z = D^-1 (d(x) - mu_k)               squared Mahalanobis distance
    yhat  = softmax(-m / 2)

It is exactly what pooling all images would give, so there is no drift; a site joins or leaves by adding or
subtracting its sums; min_k m_k says how foreign an image is. a is chosen on validation data.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fedsm.tracks.base import Batch, ClientTrack, ServerTrack, Tensors, is_fraction
from fedsm.tracks.descriptor import describe, descriptor_length

SHRINKAGES = (0.02, 0.05, 0.1)
_TINY = 1e-12


def gaussian_classes(sums: list[Tensors]) -> Tensors:
    """Class means, deviations and correlation of the sites' sums (`n`, `sum`, `outer`, see `pack`).

    Returns:
        `means` (K, D), `deviation` (D,), `correlation` (D, D), all float64.
    """
    size = len(sums[0]["sum"])
    means = torch.stack([s["sum"] / s["n"] for s in sums])
    scatter = torch.zeros(size, size, dtype=torch.float64)
    for s, mean in zip(sums, means, strict=True):
        scatter += unpack(s["outer"], size) - s["n"] * torch.outer(mean, mean)
    count = sum(s["n"].item() for s in sums)
    covariance = scatter / max(1.0, count - len(sums))
    # A descriptor that never varies (an empty channel) tells nothing: a huge deviation switches it off.
    variance = covariance.diagonal()
    deviation = torch.where(variance > _TINY, variance.clamp(min=_TINY).sqrt(), 1e6)
    correlation = covariance / torch.outer(deviation, deviation)
    correlation.fill_diagonal_(1.0)
    return {"means": means, "deviation": deviation, "correlation": correlation}


def pack(symmetric: torch.Tensor) -> torch.Tensor:
    """Upper triangle of a symmetric matrix: half the bytes."""
    return symmetric[*torch.triu_indices(*symmetric.shape)]


def unpack(triangle: torch.Tensor, size: int) -> torch.Tensor:
    """The symmetric matrix of `pack`."""
    full = torch.zeros(size, size, dtype=triangle.dtype)
    rows, columns = torch.triu_indices(size, size)
    full[rows, columns] = triangle
    full[columns, rows] = triangle
    return full


class StatisticsSelector:
    """The closed-form selector at inference.

    Args:
        settings: the job's settings.
        n_sites: number of sites.
        tensors: `means`, `deviation`, `correlation` and `shrinkage`.
        device: unused; the descriptor is computed where the images are.
    """

    def __init__(self, settings, n_sites: int, tensors: Tensors, device: torch.device):
        self._means = tensors["means"]
        self._deviation = tensors["deviation"]
        a = tensors["shrinkage"].item()
        size = len(self._deviation)
        shrunk = (1 - a) * tensors["correlation"] + a * torch.eye(size, dtype=torch.float64)
        # z^T R^-1 z = |L^-1 z|^2 with R = L L^T.
        self._whiten = torch.linalg.solve_triangular(
            torch.linalg.cholesky(shrunk), torch.eye(size, dtype=torch.float64), upper=False
        )

    def distances(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) images to (B, K) squared Mahalanobis distances to the sites."""
        z = (describe(images)[:, None, :] - self._means) / self._deviation
        return (z @ self._whiten.T).square().sum(-1)

    def probabilities(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) images to (B, K) probabilities of the sites, on the CPU."""
        return (-self.distances(images) / 2).softmax(dim=1).float()


class StatisticsClient(ClientTrack):
    """Sends n, the sum and the sum of outer products of its training images' descriptors, once."""

    def register(self, batches: Iterable[Batch]) -> Tensors:
        rows = torch.cat([describe(images) for images, _ in batches])
        return {
            "n": torch.tensor(float(len(rows)), dtype=torch.float64),
            "sum": rows.sum(0),
            "outer": pack(rows.T @ rows),
        }

    def receive(self, payload: Tensors) -> None:
        self._payload = payload

    def validate(self, batches: Iterable[Batch]) -> dict:
        """Accuracy for each shrinkage, after the last round; during training there is nothing to score."""
        if not self._payload:
            return {}
        selectors = [
            StatisticsSelector(self.settings, self.n_sites, self._payload | {"shrinkage": torch.tensor(a)}, self.device)
            for a in SHRINKAGES
        ]
        hits = [0] * len(selectors)
        images = 0
        for x, _ in batches:
            images += len(x)
            for i, selector in enumerate(selectors):
                hits[i] += int((selector.probabilities(x).argmax(1) == self.index).sum())
        accuracies = [h / images for h in hits]
        return {"score": max(accuracies), "images": images, "accuracies": accuracies}


class StatisticsServer(ServerTrack):
    """Holds every site's sums; forms the classes when they are asked for.

    A site that has sent its sums keeps its class whether or not it answers later rounds. Nothing travels during
    training. A site whose sums never arrived has no class: it is given a mean that no image is near.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self._sums: dict[str, Tensors] = {}
        self.shrinkage = SHRINKAGES[0]

    def payload(self, site: str) -> Tensors:
        return {}

    def template(self) -> Tensors:
        return {}

    def merge(self, site: str, update: Tensors, n_images: int) -> None:
        """Nothing: the sums came once, with `register`."""

    def close(self) -> None:
        """Nothing."""

    def registration_template(self) -> Tensors:
        size = descriptor_length(self.settings.task.channels)
        return {
            "n": torch.zeros((), dtype=torch.float64),
            "sum": torch.zeros(size, dtype=torch.float64),
            "outer": torch.zeros(size * (size + 1) // 2, dtype=torch.float64),
        }

    def registration_problem(self, tensors: Tensors, images: dict[str, int]) -> str | None:
        if tensors["n"].item() != images["train"]:
            return f"statistics of {tensors['n'].item():g} images, but {images['train']} training images"
        return None

    def report_problem(self, report: dict) -> str | None:
        values = report.get("accuracies")
        if not isinstance(values, list) or len(values) != len(SHRINKAGES) or not all(map(is_fraction, values)):
            return "accuracies are malformed"
        return None

    def register(self, site: str, tensors: Tensors) -> None:
        self._sums[site] = {k: v.double() for k, v in tensors.items()}

    def final_payload(self, site: str) -> Tensors:
        known = [s for s in self.sites if s in self._sums]
        if not known:
            return {}
        classes = gaussian_classes([self._sums[s] for s in known])
        means = torch.full((len(self.sites), classes["means"].shape[1]), 1e9, dtype=torch.float64)
        for row, site_name in enumerate(known):
            means[self.sites.index(site_name)] = classes["means"][row]
        return classes | {"means": means, "shrinkage": torch.tensor(self.shrinkage, dtype=torch.float64)}

    def close_validation(self, reports: dict[str, dict]) -> None:
        """Takes the shrinkage with the best pooled validation accuracy; the smallest of equals."""
        reports = {s: r for s, r in reports.items() if r}
        if reports:
            hits = [sum(r["accuracies"][i] * r["images"] for r in reports.values()) for i in range(len(SHRINKAGES))]
            self.shrinkage = SHRINKAGES[hits.index(max(hits))]

    def models(self) -> list[str]:
        return []

    def files(self) -> dict[str, Tensors]:
        return {f"{self.name}.sums": {f"{site}/{k}": v for site, s in self._sums.items() for k, v in s.items()}}

    def load_files(self, files: dict[str, Tensors]) -> None:
        self._sums = {}
        for key, value in files[f"{self.name}.sums"].items():
            site, _, name = key.rpartition("/")
            self._sums.setdefault(site, {})[name] = value
