"""Real images beside the repository; tests that need them are skipped where they are missing."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "data"


NUCLEI, PROSTATE = SHARED / "nuclei", SHARED / "prostate" / "prostatex"


needs_nuclei = pytest.mark.skipif(not NUCLEI.is_dir(), reason=f"{NUCLEI} is missing: real nuclei pictures")


needs_prostate = pytest.mark.skipif(not PROSTATE.is_dir(), reason=f"{PROSTATE} is missing: real MR volumes")
