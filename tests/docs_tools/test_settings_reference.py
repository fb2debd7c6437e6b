"""The settings reference names every field of every model, with its description."""

from collections.abc import Iterator

import pytest

from docs_tools.settings_reference import SECTIONS, render, render_all, render_site
from fedsm.core.model import Settings


def models(base: type[Settings] = Settings) -> Iterator[type[Settings]]:
    """Every kind of settings there is."""
    for model in base.__subclasses__():
        yield model
        yield from models(model)


OURS = [model for model in models() if model.__module__.startswith(("fedsm.core.", "fedsm.client.", "app_fedsm."))]


@pytest.mark.parametrize("model", OURS, ids=lambda model: model.__name__)
def test_every_field_is_described(model):
    for name, field in model.model_fields.items():
        text = field.description or ""
        assert len(text) > 10 and text.endswith("."), f"{model.__name__}.{name}: {text!r}"


def test_every_model_and_field_is_in_the_reference():
    page, listed = render(), [pair for _, tables in SECTIONS.values() for pair in tables]
    assert {model for _, model in listed} == set(OURS)
    for prefix, model in listed:
        for name in model.model_fields:
            assert f"| `{prefix}{name}` |" in page, name


def test_what_a_row_says():
    page = render()
    assert "| `size` | a whole number from 32 to 8192 | `256` | Images are resized" in page
    assert "| `norm_check` | one of off, warn, clip, refuse | `clip` | What is done" in page
    assert "| `name` | text | required | Name of the task." in page
    assert "| `cache_budget` | a size such as `20 GB`, or a number of bytes | `20000000000` |" in page
    assert all(line.count(" | ") == 3 for line in page.splitlines() if line.startswith("| `"))


def test_the_site_file_has_a_page_of_its_own():
    assert "| `cache_budget` |" in render_site() and "| `rounds` |" not in render_site()
    assert "| `cache_budget` |" not in render_all() and "| `rounds` |" in render_all()
