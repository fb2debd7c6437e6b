"""Gaussian classes from the sites' sums, and the selector that they make. The formulas are in `selector_statistics`.

A site's sums are `n`, `sum` and `outer` (see `pack`) of its images' descriptors.
"""

from __future__ import annotations

import math
from statistics import median

import torch

from fedsm.core.settings import JobSettings
from fedsm.core.state import part
from fedsm.core.tensors import Tensors
from fedsm.selectors.descriptor import DESCRIPTORS, build_descriptor
from fedsm.selectors.inference import THRESHOLD

_TINY = 1e-12
_FAR = 1e9  # the mean of a site without sums: far from every image


def sums_template(size: int) -> Tensors:
    """Zeros in the shapes of the sums of D = size features."""
    return {
        "n": torch.zeros((), dtype=torch.float64),
        "sum": torch.zeros(size, dtype=torch.float64),
        "outer": torch.zeros(size * (size + 1) // 2, dtype=torch.float64),
    }


def scatter_of(sums: Tensors) -> torch.Tensor:
    """Q - s s^T / n (D, D): the scatter of a site's descriptors around their mean."""
    mean = sums["sum"] / sums["n"]
    return unpack(sums["outer"], len(mean)) - sums["n"] * torch.outer(mean, mean)


def gaussian_classes(sums: list[Tensors], weights: list[float] | None = None) -> Tensors:
    """Class means, deviations and correlation of the sites' sums.

    Args:
        sums: each site's.
        weights: the weight of a site's images in the covariance (`covariance_weights`); None: each image 1.

    Returns:
        `means` (K, D), `deviation` (D,), `correlation` (D, D), all float64.
    """
    size = len(sums[0]["sum"])
    weights = weights or [1.0] * len(sums)
    counts = [w * s["n"].item() for s, w in zip(sums, weights, strict=True)]
    count = sum(counts)
    means = torch.stack([s["sum"] / s["n"] for s in sums])
    scatter = torch.zeros(size, size, dtype=torch.float64)
    squares = torch.zeros(size, dtype=torch.float64)
    for s, weight in zip(sums, weights, strict=True):
        if weight:  # sums that are left out may overflow, and 0 times infinity is NaN
            scatter += weight * scatter_of(s)
            squares += weight * unpack(s["outer"], size).diagonal() / count
    covariance = scatter / max(1.0, count - sum(weights))
    # A descriptor that never varies (an empty channel, a dead unit) says nothing: a huge deviation switches it off.
    # Also relative to its size: the variance of a constant, a difference of two sums in float32, is not exactly 0.
    variance = covariance.diagonal()
    varies = variance > _TINY * squares.clamp(min=1)
    deviation = torch.where(varies, variance.clamp(min=_TINY).sqrt(), 1e6)
    correlation = covariance / torch.outer(deviation, deviation)
    correlation.fill_diagonal_(1.0)
    return {"means": means, "deviation": deviation, "correlation": correlation}


def classes_of(sums: dict[str, Tensors], sites: list[str], weights: dict[str, float]) -> Tensors:
    """The Gaussian classes of the sites; the class of a site without sums has a mean far from every image.

    Args:
        sums: site -> its sums.
        sites: all sites, in index order.
        weights: site -> the weight of its images in the covariance.
    """
    known = [s for s in sites if s in sums]
    classes = gaussian_classes([sums[s] for s in known], [weights[s] for s in known])
    means = torch.full((len(sites), classes["means"].shape[1]), _FAR, dtype=torch.float64)
    for row, site in enumerate(known):
        means[sites.index(site)] = classes["means"][row]
    return classes | {"means": means}


def typical_distances(classes: Tensors, sums: dict[str, Tensors], sites: list[str], shrinkage: float) -> torch.Tensor:
    """(K,) how far a site's own training images are from its mean: the root of their mean squared distance.

    With S_k the scatter of site k's n_k descriptors and R, D as in `selector_statistics`:

        t_k^2 = 1/n_k sum_x m_k(x) = trace(R^-1 D^-1 S_k D^-1) / n_k

    Sites differ in how widely their images scatter, and all share one covariance. In units of t_k a distance of 1 is
    usual at every site, so one threshold serves all. A site without sums, or whose noisy sums give nothing positive,
    has the median of the others.
    """
    deviation = classes["deviation"]
    inverse = torch.linalg.inv(shrunk_correlation(classes["correlation"], shrinkage))
    found = {}
    for site in (s for s in sites if s in sums):
        scaled = scatter_of(sums[site]) / torch.outer(deviation, deviation)
        mean_square = (inverse * scaled).sum().item() / sums[site]["n"].item()
        if math.isfinite(mean_square) and mean_square > _TINY:
            found[site] = math.sqrt(mean_square)
    usual = median(found.values()) if found else 1.0
    return torch.tensor([found.get(site, usual) for site in sites], dtype=torch.float64)


def shrunk_correlation(correlation: torch.Tensor, shrinkage: float) -> torch.Tensor:
    """R = (1 - a) C + a I, made positive where noise in the sums took that away."""
    identity = torch.eye(len(correlation), dtype=correlation.dtype)
    return positive((1 - shrinkage) * correlation + shrinkage * identity, shrinkage)


def whitening(correlation: torch.Tensor, shrinkage: float) -> torch.Tensor:
    """L^-1 with R = L L^T the shrunk correlation: z^T R^-1 z = |L^-1 z|^2."""
    root = torch.linalg.cholesky(shrunk_correlation(correlation, shrinkage))
    inverse: torch.Tensor = torch.linalg.solve_triangular(root, torch.eye(len(root), dtype=root.dtype), upper=False)
    return inverse


def flat_sums(sums: dict[str, Tensors]) -> Tensors:
    """Every site's sums as one file's entries."""
    return {f"{site}/{key}": value for site, own in sums.items() for key, value in own.items()}


def sums_by_site(flat: Tensors) -> dict[str, Tensors]:
    """The sums of `flat_sums`."""
    sums: dict[str, Tensors] = {}
    for key, value in flat.items():
        site, _, name = key.rpartition("/")
        sums.setdefault(site, {})[name] = value
    return sums


def positive(matrix: torch.Tensor, least: float) -> torch.Tensor:
    """The matrix itself; if it is no covariance (sums with noise, or invalid ones), the nearest matrix whose
    eigenvalues are at least `least`: one site's sums must not break the selector for all."""
    if torch.linalg.cholesky_ex(matrix).info == 0:
        return matrix
    values, vectors = torch.linalg.eigh(matrix)
    repaired: torch.Tensor = (vectors * values.clamp(min=least)) @ vectors.T
    return repaired


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
        tensors: `means`, `deviation`, `correlation`, `shrinkage`, `typical` (`typical_distances`; a super model of
            version 0.1 does not have it), and `descriptor`, its number in `DESCRIPTORS` (default: `image`); for the
            descriptor `encoder` the encoder's weights under `encoder/`.
        device: unused; the descriptor is computed where the images are.
    """

    rule = THRESHOLD

    def __init__(self, settings: JobSettings, n_sites: int, tensors: Tensors, device: torch.device):
        name = DESCRIPTORS[int(tensors.get("descriptor", 0))]
        self.describe = build_descriptor(name, settings, part("encoder", tensors))
        self._means = tensors["means"]
        self._deviation = tensors["deviation"]
        self._typical = tensors.get("typical", torch.ones(len(self._means), dtype=torch.float64))
        self._whiten = whitening(tensors["correlation"], tensors["shrinkage"].item())

    @property
    def means(self) -> torch.Tensor:
        """(K, D) the mean descriptors of the sites."""
        return self._means

    @property
    def unknown(self) -> torch.Tensor:
        """(K,) whether the statistics of a site are not known."""
        return (self._means == _FAR).all(1)

    def distances_of(self, rows: torch.Tensor) -> torch.Tensor:
        """(B, D) descriptors to (B, K) squared Mahalanobis distances to the sites."""
        z = (rows[:, None, :] - self._means) / self._deviation
        squares: torch.Tensor = (z @ self._whiten.T).square().sum(-1)
        return squares

    def distances(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) images to (B, K) squared Mahalanobis distances to the sites."""
        return self.distances_of(self.describe(images))

    def probabilities_and_distance(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Probabilities (B, K), and how unusual an image is: its distance (B,) to the nearest site, in units of what is
        usual there (`typical_distances`)."""
        squared = self.distances(images)
        nearest = squared.argmin(1, keepdim=True)
        distance = squared.gather(1, nearest)[:, 0].clamp(min=0).sqrt() / self._typical[nearest[:, 0]]
        return (-squared / 2).softmax(dim=1).float(), distance.float()

    def probabilities(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) images to (B, K) probabilities of the sites, on the CPU."""
        return self.probabilities_and_distance(images)[0]

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) images to (B, D) whitened features, whose Euclidean distance is the Mahalanobis distance."""
        whitened: torch.Tensor = ((self.describe(images) - self._means[0]) / self._deviation) @ self._whiten.T
        return whitened
