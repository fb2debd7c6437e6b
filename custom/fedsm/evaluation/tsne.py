"""t-SNE (van der Maaten & Hinton, 2008) of the selector's features, by scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsm.core.errors import UserError

_PERPLEXITY = 20.0  # about how many neighbours each image has on the map


def load_tsne() -> Any:
    """scikit-learn's class; loaded when it is needed.

    Raises:
        UserError: scikit-learn is missing.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError as e:
        raise UserError("the t-SNE map needs scikit-learn", remedy="pip install 'fedsm[report]'") from e
    return TSNE


def tsne(features: np.ndarray, seed: int = 0) -> np.ndarray:
    """Places images in the plane so that neighbours stay neighbours.

    Args:
        features: (N, D), N at least 4.
        seed: fixes the starting points, and so the result.

    Returns:
        (N, 2).
    """
    perplexity = min(_PERPLEXITY, (len(features) - 1) / 3)
    return load_tsne()(2, perplexity=perplexity, init="random", random_state=seed).fit_transform(features)
