"""The text of an experiment's table.md."""

from __future__ import annotations

from app_fedsm.experiments.grid import Experiment
from app_fedsm.experiments.grid_fair import below_local_lines, paired_text
from app_fedsm.experiments.grid_format import as_markdown
from app_fedsm.experiments.grid_tables import Outcomes, choose, labels_of, table_lines
from fedsm.core.tables import markdown_table


def choice_table(experiment: Experiment, outcomes: Outcomes) -> str:
    """Which value was chosen for each row, and the validation score of every one that was tried."""
    values = list(dict.fromkeys(choice for row in experiment.rows for choice in row.choices))
    rows = []
    for row in experiment.rows:
        chosen, scores = choose(row, experiment, outcomes)
        left = len(row.choices) - len(scores)
        text = "-" if chosen is None else f"{chosen}" + (f" (so far; {left} to come or failed)" if left else "")
        rows.append([row.name, *(f"{scores[v]:.4f}" if v in scores else "-" for v in values), text])
    head = ["validation Dice", *(f"{experiment.choose} {v}" for v in values), "chosen"]
    return markdown_table(head, rows) + "\n"


def report(experiment: Experiment, outcomes: Outcomes, sites: list[str], notes: list[str]) -> str:
    """The whole of table.md."""
    dice = "Test Dice" if not experiment.leave_one_out else "Dice on the test images of a site that took no part"
    deviation = f", mean ± standard deviation over the seeds {', '.join(map(str, experiment.seeds))}"
    text = f"# {experiment.title}\n\n{dice}{deviation if len(experiment.seeds) > 1 else ''}.\n\n"
    text += as_markdown(table_lines(experiment, outcomes, sites))
    if not experiment.leave_one_out:
        text += "".join(f"\n**Warning:** {line}.\n" for line in below_local_lines(experiment, outcomes, sites))
    text += paired_text(experiment, outcomes, sites)
    for label in [] if experiment.leave_one_out else labels_of(outcomes):
        text += f"\n{label}:\n\n" + as_markdown(table_lines(experiment, outcomes, sites, label=label))
    if experiment.leave_one_out:
        text += "\nHow often each model was selected for the unseen site:\n\n"
        text += as_markdown(table_lines(experiment, outcomes, sites, selection=True))
    if any(row.choices[1:] for row in experiment.rows):
        text += (
            f"\n{experiment.choose} was chosen for each row on the validation images of seed {experiment.seeds[0]}:\n\n"
        )
        text += choice_table(experiment, outcomes)
    shared = [
        f"- {row.name}: `{row.show}` of the runs of {row.source}" for row in experiment.rows if row.source != row.name
    ]
    listed = shared + [f"- {note}" for note in notes]
    return text + ("\n" + "\n".join(listed) + "\n" if listed else "")
