"""Row 5, after the fact: a run goes back to a checkpoint from before the harm."""

import json

import pytest
from safetensors.torch import load_file, save_file

from fedsm.core.errors import UserError
from fedsm.core.rounds import rounds_to_keep
from fedsm.server.checkpoint import Checkpoints
from tests.helpers.federation import Federation, results_of
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import last_weights


def kept_after(rounds: int) -> list[int]:
    """What stays on disk when every round is saved and pruned in turn."""
    known: set[int] = set()
    for number in range(rounds + 1):
        known = rounds_to_keep({*known, number}, number, last=2)
    return sorted(known)


def test_one_checkpoint_is_always_older_than_the_guards_window():
    """By hand: after round 13 the last two, 10 (needed from round 15 on) and 5, which is more than five rounds old."""
    assert kept_after(3) == [0, 2, 3]
    assert kept_after(13) == [5, 10, 12, 13]
    for number in range(5, 40):
        kept = kept_after(number)
        assert min(kept) <= number - 5 and {number - 1, number} <= set(kept) and len(kept) <= 4


def test_a_run_that_is_resumed_takes_the_older_checkpoints_along(tmp_path):
    """The newest one alone may be the harmed one: the resume that we advised left nothing else."""
    first, second = Checkpoints(tmp_path / "first"), Checkpoints(tmp_path / "second")
    for number in range(4):
        first.save(number, {}, {"best": {}})
    (tmp_path / "second" / "weights").mkdir(parents=True)
    second.adopt(first)
    assert [path.name for path in sorted((tmp_path / "second").glob("round_*.json"))] == [
        "round_000000.json", "round_000002.json", "round_000003.json"
    ]  # fmt: skip


def test_a_run_that_goes_back_ends_where_it_would_have_ended(tmp_path, data_root):
    """Six rounds at once, and six of which the last did harm and is undone: back to round 5 and on. To the last bit."""
    settings = small_settings(rounds=6)
    first = Federation(tmp_path / "first", data_root, settings, SITES).run()
    whole = last_weights(first.run_folder)
    source = tmp_path / "source"
    first.run_folder.rename(source)
    harmed = list((source / "checkpoints" / "weights").glob("r000006.*"))
    for path in harmed:
        save_file({key: value * 1000 for key, value in load_file(path).items()}, path)
    assert harmed
    second = Federation(tmp_path / "first", data_root, settings, SITES, resume_from=str(source / "checkpoints"))
    second.controller.from_round = 5
    second.run()
    assert second.panic is None
    again = last_weights(second.run_folder)
    assert whole.keys() == again.keys()
    for model, weights in whole.items():
        assert all((weights[k] == again[model][k]).all() for k in weights), model
    assert [row["round"] for row in results_of(second)["validation"]["history"]] == [1, 2, 3, 4, 5, 6]


def test_a_round_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(UserError, match="no checkpoint to resume from"):
        checkpoints.rewind(3)
    for number in (0, 1):
        checkpoints.save(number, {}, {"best": {}})
    with pytest.raises(UserError, match="no checkpoint of round 3 in .*; it holds rounds 0, 1"):
        checkpoints.rewind(3)
    checkpoints.rewind(0)
    assert checkpoints.rounds() == [0] and checkpoints.load()["round"] == 0
    assert json.loads((tmp_path / "round_000000.json").read_text())["round"] == 0
