"""Tests mirror the rooms; what they share is in `helpers`. Kinds of tests: `helpers/kinds.py`."""

import pytest

pytest.register_assert_rewrite("tests.helpers")  # so that a failed `assert` there shows its values
