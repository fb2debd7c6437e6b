"""The map of the selector's features: groups stay together, the seed fixes it, a missing package is one line."""

import sys

import numpy as np
import pytest

from fedsm.core.errors import UserError
from fedsm.evaluation.tsne import load_tsne, tsne


def test_groups_stay_together_and_the_seed_fixes_all():
    rng = np.random.default_rng(2)
    groups = np.repeat([0, 1, 2], 20)
    x = rng.normal(size=(60, 10)) + 6 * np.eye(10)[groups]
    places = tsne(x, seed=5)
    distances = ((places[:, None] - places) ** 2).sum(-1) + 1e9 * np.eye(60)
    assert (groups[distances.argmin(1)] == groups).all()
    assert (places == tsne(x, seed=5)).all() and (places != tsne(x, seed=6)).any()


@pytest.mark.parametrize("images", [4, 5])
def test_few_images_and_equal_ones_have_a_place(images):
    assert np.isfinite(tsne(np.zeros((images, 3)))).all() and len(tsne(np.eye(images))) == images


def test_without_scikit_learn_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(UserError, match=r"pip install 'fedsm\[report\]'"):
        load_tsne()
