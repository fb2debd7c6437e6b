"""Bad files: what `check` says of each, and that what it lets pass really loads."""

import numpy as np
import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.data.check import check_root
from fedsm.data.dataset import load_site
from fedsm.data.split import PARTS
from tests.helpers.bad_files import BAD, COUNT, HARMLESS, put, write_root
from tests.helpers.small_jobs import small_settings


@pytest.mark.parametrize("how", BAD)
def test_bad_files_fail_the_check_and_do_not_load(tmp_path, how):
    spoil, words = BAD[how]
    write_root(tmp_path)
    name = spoil(tmp_path / "beta")
    good, bad = check_root(tmp_path, small_settings().task)
    assert good.level == "PASS"
    (finding,) = [f for f in bad.findings if f.level == "FAIL"]
    assert name in finding.file and words in f"{finding.what} {finding.file}" and finding.remedy
    with pytest.raises(UserError) as caught:
        load_site(tmp_path / "beta", "beta", small_settings())
    assert "'beta'" in str(caught.value) and "case_01" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("how", HARMLESS)
def test_harmless_files_load(tmp_path, how):
    spoil, words = HARMLESS[how]
    write_root(tmp_path / "data")
    spoil(tmp_path / "data" / "beta")
    good, odd = check_root(tmp_path / "data", small_settings().task)
    assert good.level == "PASS"
    assert [f.what for f in odd.findings] == ([words] if words else [])
    for _ in range(2):  # the second time with the split that was written down
        parts = load_site(tmp_path / "data" / "beta", "beta", small_settings(), tmp_path / "state")
        assert sum(len(parts[p]) for p in PARTS) == COUNT
        for part in parts.values():
            everything = torch.arange(len(part))
            assert part.images[everything].isfinite().all() and part.images[everything].max() > 0.2


def test_only_empty_masks_are_no_data(tmp_path):
    """One empty mask is a finding of the patient; all of them are a mistake."""
    for path in (write_root(tmp_path) / "beta" / "masks").iterdir():
        put(path, np.zeros((40, 40), np.uint8))
    (finding,) = check_root(tmp_path, small_settings().task)[1].findings
    assert (finding.level, finding.what) == ("FAIL", "all 12 masks are empty")
