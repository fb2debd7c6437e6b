"""How often a selector is right, and how well its confidence predicts it.

confidence c(x) = max yhat(x),  right(x) = whether argmax yhat(x) is the image's own site
bin b holds the images with c in (b/B, (b+1)/B]
ECE = sum_b n_b / n |mean right of b - mean c of b|        expected calibration error (Naeini et al., 2015)
"""

from __future__ import annotations

import numpy as np

BINS = 10


def reliability(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> dict:
    """The reliability diagram's numbers.

    Args:
        confidence: (N,) in [0, 1].
        right: (N,) boolean.
        bins: how many, of equal width.

    Returns:
        `bins`: one row per bin with `low`, `high`, `images`, and for a bin with images `confidence` and `accuracy`;
        `ece`; `accuracy` and `confidence` over all images.
    """
    confidence, right = np.asarray(confidence, np.float64), np.asarray(right, bool)
    # float32 probabilities: 0.3 is 0.30000001, which must not move to the bin above
    index = np.clip(np.ceil(np.round(confidence * bins, 6)) - 1, 0, bins - 1).astype(int)
    rows, ece = [], 0.0
    for b in range(bins):
        inside = index == b
        row = {"low": b / bins, "high": (b + 1) / bins, "images": int(inside.sum())}
        if row["images"]:
            row |= {"confidence": float(confidence[inside].mean()), "accuracy": float(right[inside].mean())}
            ece += row["images"] / len(confidence) * abs(row["accuracy"] - row["confidence"])
        rows.append(row)
    return {"bins": rows, "ece": float(ece), "accuracy": float(right.mean()), "confidence": float(confidence.mean())}


def join_reliability(sites: list[dict]) -> dict | None:
    """One diagram from several sites' numbers, the same as from all their images; None without sites."""
    if not sites:
        return None
    rows = []
    for bins in zip(*(s["bins"] for s in sites), strict=True):
        filled = [b for b in bins if b["images"]]
        row = {"low": bins[0]["low"], "high": bins[0]["high"], "images": sum(b["images"] for b in filled)}
        if filled:
            row |= {key: _mean(filled, key) for key in ("confidence", "accuracy")}
        rows.append(row)
    filled = [row for row in rows if row["images"]]
    total = sum(row["images"] for row in filled)
    ece = sum(row["images"] * abs(row["accuracy"] - row["confidence"]) for row in filled) / total
    return {"bins": rows, "ece": ece} | {key: _mean(filled, key) for key in ("accuracy", "confidence")}


def _mean(rows: list[dict], key: str) -> float:
    return sum(row["images"] * row[key] for row in rows) / sum(row["images"] for row in rows)
