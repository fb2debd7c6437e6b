"""One table in four forms; what cells hold is shown and never obeyed."""

import csv
import io

import pytest

from fedsm.core.tables import csv_table, html_table, markdown_table, plain_table

HEAD = ["test Dice", "a", "all images"]
ROWS = [["global", "0.50", "-"], ["super model", "0.6125", ""]]
NASTY = "<b>|\x1b[2J\n=1+1"


def test_plain_by_hand():
    assert plain_table(HEAD, ROWS).splitlines() == [
        "test Dice         a    all images",
        "-----------  ------  ------------",
        "global         0.50             -",
        "super model  0.6125",
    ]


def test_markdown_by_hand():
    assert markdown_table(HEAD, ROWS).splitlines() == [
        "| test Dice   |      a |   all images |",
        "|:------------|-------:|-------------:|",
        "| global      |   0.50 |            - |",
        "| super model | 0.6125 |              |",
    ]


def test_html_escapes_every_cell():
    text = html_table([NASTY, "x"], [[NASTY, NASTY], ["1", "2"]], NASTY, {(1, 1)})
    assert "<td><b>2</b></td>" in text and '<th scope="row">1</th>' in text
    assert text.count("<b>") == 1 and text.count("&lt;b&gt;") == 5, "head, two cells, caption twice"


def test_csv_keeps_the_protection_against_formulas():
    rows = list(csv.reader(io.StringIO(csv_table(["=a", "b"], [["+1+1", -0.5], [NASTY, 1]]))))
    assert rows == [["'=a", "b"], ["'+1+1", "-0.5"], ["<b>|?[2J?=1+1", "1"]]


@pytest.mark.parametrize("form", [plain_table, markdown_table])
def test_cells_cannot_break_out_of_a_table(form):
    text = form([NASTY, "x"], [[NASTY, "1"]])
    assert "\x1b" not in text and len(text.splitlines()) == 3


@pytest.mark.parametrize("form", [plain_table, markdown_table])
def test_a_table_without_rows_has_its_head(form):
    assert "all images" in form(HEAD, [])
