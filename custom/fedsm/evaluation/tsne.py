"""Exact t-SNE (van der Maaten & Hinton, 2008), for the few hundred images of a report.

    p_{j|i} ~ exp(-|x_i - x_j|^2 beta_i),  beta_i such that the perplexity 2^H(p_i) is as asked for
    P = (p_{j|i} + p_{i|j}) / 2N
    q_ij ~ 1 / (1 + |y_i - y_j|^2)
    dC/dy_i = 4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2)

Gradient descent with momentum, early exaggeration and gains, as in the authors' own program.
"""

from __future__ import annotations

import numpy as np

_STEPS, _EXAGGERATED = 750, 200
_TINY = 1e-12


def tsne(features: np.ndarray, seed: int = 0, perplexity: float = 20.0, steps: int = _STEPS) -> np.ndarray:
    """Places images in the plane so that neighbours stay neighbours.

    Args:
        features: (N, D), N at least 4.
        seed: fixes the start, and so the result.
        perplexity: about how many neighbours each has; at most (N - 1) / 3 is used.
        steps: of gradient descent.

    Returns:
        (N, 2).
    """
    p = joint_probabilities(np.asarray(features, np.float64), min(perplexity, (len(features) - 1) / 3))
    y = np.random.default_rng(seed).normal(0, 1e-4, (len(features), 2))
    velocity, gains = np.zeros_like(y), np.ones_like(y)
    rate = max(len(y) / 12 / 4, 50)
    for step in range(steps):
        gradient = cost_gradient(y, 12 * p if step < _EXAGGERATED else p)
        same = np.sign(gradient) == np.sign(velocity)
        gains = np.where(same, gains * 0.8, gains + 0.2).clip(0.01)
        velocity = (0.5 if step < _EXAGGERATED else 0.8) * velocity - rate * gains * gradient
        y = y + velocity
        y = y - y.mean(0)
    return y


def joint_probabilities(x: np.ndarray, perplexity: float) -> np.ndarray:
    """(N, N) P, which sums to 1."""
    conditional = conditional_probabilities(_distances(x), perplexity)
    return ((conditional + conditional.T) / (2 * len(x))).clip(_TINY)


def conditional_probabilities(distances: np.ndarray, perplexity: float) -> np.ndarray:
    """(N, N) p_{j|i} from squared distances; each row's beta by bisection."""
    distances = distances / max(np.median(distances), _TINY)  # so that betas start near 1
    result = np.zeros_like(distances)
    for i, row in enumerate(distances):
        low, high, beta = 0.0, np.inf, 1.0
        others = np.arange(len(row)) != i
        nearest = row[others].min()
        for _ in range(64):
            weights = np.where(others, np.exp(-(row - nearest) * beta), 0.0)
            p = weights / weights.sum()
            entropy = -(p[others] * np.log(p[others].clip(_TINY))).sum()
            if entropy > np.log(perplexity):
                low, beta = beta, beta * 2 if high == np.inf else (beta + high) / 2
            else:
                high, beta = beta, (beta + low) / 2
        result[i] = p
    return result


def cost_gradient(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """(N, 2) gradient of KL(P || Q)."""
    closeness = 1 / (1 + _distances(y))
    np.fill_diagonal(closeness, 0)
    q = (closeness / closeness.sum()).clip(_TINY)
    pull = (p - q) * closeness
    return 4 * (pull.sum(1)[:, None] * y - pull @ y)


def _distances(x: np.ndarray) -> np.ndarray:
    squares = (x**2).sum(1)
    return (squares[:, None] + squares - 2 * x @ x.T).clip(0)
