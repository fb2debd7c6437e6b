"""t-SNE: perplexity as asked for, the gradient is the cost's, neighbours stay neighbours."""

import numpy as np
import pytest

from fedsm.evaluation.tsne import conditional_probabilities, cost_gradient, joint_probabilities, tsne


def test_every_row_has_the_perplexity():
    x = np.random.default_rng(0).normal(size=(30, 4))
    distances = ((x[:, None] - x) ** 2).sum(-1)
    p = conditional_probabilities(distances, 7.0)
    entropy = -(p * np.log2(p.clip(1e-300))).sum(1)
    assert 2**entropy == pytest.approx(7.0, abs=1e-3)
    assert p.sum(1) == pytest.approx(1) and (p.diagonal() == 0).all()


def test_gradient_is_that_of_the_divergence():
    rng = np.random.default_rng(1)
    p, y = joint_probabilities(rng.normal(size=(8, 3)), 2.0), rng.normal(size=(8, 2))

    def cost(places):
        closeness = 1 / (1 + ((places[:, None] - places) ** 2).sum(-1))
        np.fill_diagonal(closeness, 0)
        q = closeness / closeness.sum()
        off = ~np.eye(len(q), dtype=bool)
        return (p[off] * np.log(p[off] / q[off])).sum()

    step = np.zeros_like(y)
    step[3, 1] = 1e-5
    assert cost_gradient(y, p)[3, 1] == pytest.approx((cost(y + step) - cost(y - step)) / 2e-5, rel=1e-4)


def test_groups_stay_together_and_the_seed_fixes_all():
    rng = np.random.default_rng(2)
    groups = np.repeat([0, 1, 2], 20)
    x = rng.normal(size=(60, 10)) + 6 * np.eye(10)[groups]
    places = tsne(x, seed=5)
    distances = ((places[:, None] - places) ** 2).sum(-1) + 1e9 * np.eye(60)
    assert (groups[distances.argmin(1)] == groups).all()
    assert (places == tsne(x, seed=5)).all() and (places != tsne(x, seed=6)).any()
