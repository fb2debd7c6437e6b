"""Volumes as a whole: two boxes that are shifted by known voxels, in a grid that differs along each axis."""

from math import hypot, sqrt

import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="MONAI's Hausdorff distance needs scipy: pip install 'fedsm[report]'")

from monai.metrics import compute_hausdorff_distance, compute_surface_dice

from fedsm.data.cases import Volume
from fedsm.evaluation.volume_scores import VolumeMasks, VolumeScores, volume_metrics

SPACING = (3.0, 0.5, 0.8)  # slices, rows, columns
SLICES, ROWS, COLUMNS = 6, 8, 10  # of the box


def box(first: int, shape=(12, 20, 20)) -> np.ndarray:
    """(S, 1, H, W): a box that begins at a slice."""
    mask = np.zeros((shape[0], 1, *shape[1:]), bool)
    mask[first : first + SLICES, 0, 5 : 5 + ROWS, 5 : 5 + COLUMNS] = True
    return mask


def scores(prediction, truth, tolerance=2.0, spacing=SPACING) -> dict:
    return {name: v.item() for name, v in volume_metrics(prediction, truth, spacing, tolerance).items()}


def test_a_box_two_slices_away():
    """4 of 6 slices are shared: Dice 2 * 4 / (6 + 6).

    Of the box's surface voxels, the first slice of one (80 voxels) is 2 slices of 3 mm before the other; that is far
    more than 5 % of the 6 * 80 - 4 * 48 = 288 surface voxels, and nothing is farther away. With a tolerance of 6 mm all
    is within it.
    """
    found = scores(box(4), box(2), 6.0)
    assert found["dice"] == pytest.approx(8 / 12) and found["hd95"] == pytest.approx(6.0) and found["nsd"] == 1


def test_surface_dice_by_hand():
    """The surface has an element at each point where eight voxels meet; a box has (6 + 1) layers of them.

    Its area: between two layers the sides count a rectangle for each voxel, narrowed at the four edges, which are cut
    off half a voxel from the corner. With a tolerance below the smallest step, the parts that coincide count: of a box
    shifted by 2 slices, the sides of 4 layers, and the rim of the last layer, which lies on the other one's sides.
    """
    s, r, c = SPACING
    sides = 2 * (COLUMNS - 1) * s * c + 2 * (ROWS - 1) * s * r + 4 * s * hypot(r / 2, c / 2)
    corner = sqrt((s * r / 4) ** 2 + (r * c / 4) ** 2 + (s * c / 4) ** 2) / 2
    rim = 2 * (ROWS - 1) * r * hypot(s / 2, c / 2) + 2 * (COLUMNS - 1) * c * hypot(s / 2, r / 2) + 4 * corner
    end = (ROWS - 1) * (COLUMNS - 1) * r * c
    whole = (SLICES - 1) * sides + 2 * rim + 2 * end
    shared = (SLICES - 2) * sides + rim
    assert scores(box(4), box(2), 0.1)["nsd"] == pytest.approx(shared / whole, rel=1e-5)


def test_spacing_is_of_slices_rows_and_columns():
    """The same box two columns away: 2 * 0.8 mm, within a tolerance of 2 mm."""
    moved = np.roll(box(2), 2, axis=3)
    found = scores(moved, box(2))
    assert found["hd95"] == pytest.approx(1.6) and found["nsd"] == 1 and found["dice"] == pytest.approx(0.8)


def test_the_scores_are_those_of_monai():
    """Its own functions, on masks that are not all at once in a hard place for them."""
    rng = np.random.default_rng(0)
    pair = [np.stack([rng.random((9, 14, 12)) > share for share in (0.7, 0.9)], axis=1) for _ in range(2)]
    found = volume_metrics(*pair, SPACING, 1.0)
    first, second = (torch.from_numpy(np.moveaxis(mask, 1, 0))[None] for mask in pair)
    options = {"include_background": True, "spacing": list(SPACING)}
    nsd = compute_surface_dice(first, second, [1.0, 1.0], use_subvoxels=True, **options)
    hd95 = compute_hausdorff_distance(first, second, percentile=95, **options)
    torch.testing.assert_close(found["nsd"], nsd.float(), atol=1e-6, rtol=0)
    torch.testing.assert_close(found["hd95"], hd95.float(), atol=1e-5, rtol=0)


def test_no_tree_is_searched(monkeypatch):
    """MONAI searches one, which takes minutes for a bad model. Noise in a ball is far from all of its surface:
    10 s of CPU for one label of 40 x 256 x 256 voxels, and 0.4 s for a distance transform of the whole grid."""
    monkeypatch.delattr("monai.metrics.utils.KDTree")
    assert scores(box(4), box(2), 6.0)["hd95"] == pytest.approx(6.0)


def test_empty_volumes_are_defined():
    """12 slices, 20 rows, 20 columns: the diagonal is 11 * 3, 19 * 0.5 and 19 * 0.8 mm."""
    nothing = np.zeros_like(box(0))
    diagonal = hypot(33, 9.5, 15.2)
    assert scores(nothing, nothing) == {"dice": 1, "nsd": 1, "hd95": 0}
    for pair in ((box(0), nothing), (nothing, box(0))):
        assert scores(*pair) == {"dice": 0, "nsd": 0, "hd95": pytest.approx(diagonal)}


def test_a_single_slice_is_a_flat_image():
    """A hole of one pixel in 8 x 10. The truth's outline: 32 pixels outside, and 4 around the hole that are 1.0 mm
    and three times 1.5 mm from the outside; the 95th percentile of these 36 is 1.5. As a volume, every voxel of a
    single slice would be surface, and the distance 0.
    """
    filled = box(0)[:1]
    holed = filled.copy()
    holed[0, 0, 5 + 4, 5 + 5] = False
    found = scores(filled, holed)
    assert found["hd95"] == pytest.approx(1.5) and found["dice"] == pytest.approx(2 * 79 / (80 + 79))
    assert found["nsd"] == 1 and scores(filled, holed, 0.9)["nsd"] < 1


def test_every_model_and_label_in_the_size_of_the_file():
    """Slices of 8 x 8 become masks of 16 x 12, whose width is no multiple of 8, batch by batch; labels stay apart."""
    probabilities = torch.zeros(5, 2, 8, 8)
    probabilities[1:4, 0, 2:6, 2:6] = 1
    probabilities[:, 1] = 1
    masks = VolumeMasks((5, 2, 16, 12))
    for batch in probabilities.split(2):
        masks.add("global", batch)
        masks.add("personal.a", 1 - batch)
    found = masks.of("global")
    assert (
        found.shape == (5, 2, 16, 12) and found[:, 1].all() and found[2, 0, 5:11, 4:8].all() and not found[0, 0].any()
    )
    assert found[2, 0].sum() == 8 * 6
    table = VolumeScores(2.0)
    for patient in ("p", "q"):
        table.add(patient, Volume(found, SPACING), masks)
    assert len(table) == 2 and list(table.scores) == ["global", "personal.a"]
    assert table.scores["global"]["dice"].tolist() == [[1, 1], [1, 1]]
    assert table.scores["personal.a"]["dice"][:, 0].tolist() == [0, 0]
