"""Personal models that are handed over after the last round had any norm, and a model whose outputs are no numbers won
every image: NaN is the smallest loss to `argmin`, and 0 * NaN is NaN in a mixture."""

import pytest
import torch

from fedsm.core.task_names import VALIDATE
from fedsm.selectors.inference import mix
from fedsm.selectors.policy import probabilities_of
from fedsm.tracks.selector_extra import lowest
from tests.helpers.federation import Federation, results_of
from tests.helpers.hostile import HOSTILE, on, scale_updates
from tests.helpers.small_jobs import SITES, small_settings

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("personal", ["ditto", "fedbn"])
def test_a_delivered_model_of_an_absurd_norm_is_refused(tmp_path, data_root, personal):
    settings = small_settings(rounds=1, personal=personal)
    fault = on(VALIDATE, lambda result: scale_updates(result, 1e9))
    federation = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    assert federation.panic is None
    (entry,) = results_of(federation)["refused"]
    assert entry["site"] == HOSTILE and "far above the usual" in entry["reason"]


def test_an_honest_delivery_is_told_of_nothing(tmp_path, data_root):
    federation = Federation(tmp_path, data_root, small_settings(rounds=1, personal="ditto"), SITES).run()
    results = results_of(federation)
    assert results["refused"] == results["warned"] == []


def test_a_loss_that_is_no_number_is_never_the_lowest():
    losses = torch.tensor([[0.5, 0.4, NAN], [NAN, NAN, NAN], [0.3, 0.3, INF]])
    assert lowest(losses).tolist() == [1, 0, 0], "of equals the first, so the global one"


def test_a_model_without_outputs_takes_nothing_from_a_mixture():
    """Weights 0.5, 0.5, 0 and outputs 0.9, 0.9, NaN: 0.9. With a weight of its own it adds nothing, and no NaN."""
    logits = torch.logit(torch.tensor([0.9, 0.9, 0.5])).view(3, 1, 1, 1, 1)
    logits[2] = NAN
    said = probabilities_of(lambda x: x, logits)
    assert mix(torch.tensor([[0.5, 0.5, 0.0]]), said).item() == pytest.approx(0.9)
    assert mix(torch.tensor([[0.25, 0.25, 0.5]]), said).item() == pytest.approx(0.45)
