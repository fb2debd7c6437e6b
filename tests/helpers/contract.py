"""What tests of the track's contract compare."""

import torch

NEW = "site-4"


def equal(a: dict, b: dict) -> bool:
    """Whether two checkpoints are equal to the bit."""
    return a.keys() == b.keys() and all(
        a[stem].keys() == b[stem].keys() and all(torch.equal(a[stem][k], b[stem][k]) for k in a[stem]) for stem in a
    )


def finite(files: dict) -> bool:
    """Whether a checkpoint holds numbers only."""
    tensors = [v for tensors in files.values() for v in tensors.values() if v.is_floating_point()]
    return all(torch.isfinite(v).all() for v in tensors)


def hooks(half: type) -> list[str]:
    """The methods that a half of a track declares."""
    return [name for name, value in vars(half).items() if callable(value) or isinstance(value, classmethod)]
