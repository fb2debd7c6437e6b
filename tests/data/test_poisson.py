"""Batches for differential privacy."""

import numpy as np
import torch

from fedsm.data.dataset import Part
from fedsm.data.poisson import PoissonBatches


def test_rate_and_length_by_hand():
    """Five images of three patients, two at a time: q = 2/3, and 5/2 rounded up are three batches an epoch."""
    batches = PoissonBatches([torch.tensor([0, 1, 2]), torch.tensor([3]), torch.tensor([4])], 2)
    assert (batches.rate, batches.per_epoch, batches.size) == (2 / 3, 3, 2)
    everybody = PoissonBatches([torch.tensor([0]), torch.tensor([1])], 8)
    assert (everybody.rate, everybody.size, everybody.per_epoch) == (1.0, 2, 1)


def test_a_patient_is_drawn_with_its_chance_and_with_one_image():
    patients = [torch.tensor([0, 1, 2]), torch.tensor([3]), torch.tensor([4])]
    drawn = list(PoissonBatches(patients, 1).draw(6000, np.random.default_rng(0)))
    assert all(len({0 if r < 3 else r for r in rows.tolist()}) == len(rows) for rows in drawn)
    counts = torch.bincount(torch.cat(drawn), minlength=5).double() / 6000
    assert torch.allclose(counts, torch.tensor([1 / 9, 1 / 9, 1 / 9, 1 / 3, 1 / 3]).double(), atol=0.02)
    sizes = torch.bincount(torch.tensor([len(rows) for rows in drawn])) / 6000
    assert torch.allclose(sizes, torch.tensor([8, 12, 6, 1]) / 27, atol=0.02), "independent coins: 0 to 3 patients"


def test_the_rows_of_patients():
    """Three files, of 2, 1 and 3 slices; the first and the last are of one patient."""
    images = torch.zeros(6, 1, 2, 2)
    part = Part(images, images, [("a", "x"), ("b", "y"), ("c", "x")], [2, 1, 3])
    assert [rows.tolist() for rows in part.rows_by_patient()] == [[0, 1, 3, 4, 5], [2]]
    assert [rows.tolist() for rows in Part(images[:2], images[:2]).rows_by_patient()] == [[0], [1]]
