"""What is printed at the end of a run: how to go on with it, and the next commands, ready to paste."""

from __future__ import annotations

import shlex
from pathlib import Path

from app_fedsm.runs.run_folder import RESULTS, RUN, events_of, newest_checkpoint
from app_fedsm.runs.slim import spare, total_size
from fedsm.core.plain_json import read_json
from fedsm.core.task_names import DEFAULT_STUDY

SUPER_MODEL = "super_model"


def paste(*words: str | Path) -> str:
    """A command ready to paste: words are quoted where the shell needs it."""
    return shlex.join(map(str, words))


def go_on(out: Path) -> str:
    """For a stopped or failed run: its last checkpoint and the command to go on, or that there is no checkpoint."""
    checkpoint = newest_checkpoint(out)
    if checkpoint is None:
        return "no checkpoint was written yet; start again with the same command and --force"
    return f"last checkpoint: {checkpoint}\ngo on with: {paste('fedsm', 'resume', out)}"


def go_on_remotely(out: Path) -> str:
    """The same for a job on a server, which keeps the checkpoints: each round in the progress file has one."""
    if not any(event["event"] == "round" for event in events_of(out)):
        return "no round was closed; submit it again with --force"
    return f"go on with: {paste('fedsm', 'resume', out)}"


def finished(out: Path, rounds: int) -> str:
    """The message for `--resume` of a finished run."""
    more = paste("fedsm", "resume", out, "--rounds")
    return f"{out} has finished its {rounds} rounds; results: {out / RESULTS}\nmore rounds with: {more} N"


def in_words(out: Path, results: dict) -> str:
    """The message for a finished run: the table of Dice, the files, their size, and the next commands."""
    from fedsm.evaluation.tables import dice_table

    files = [f"results: {out / RESULTS}", f"super model: {out / SUPER_MODEL}", f"size on disk: {size_in_words(out)}"]
    next_lines = [f"  {line}" for line in next_commands(out, results).values()]
    return "\n".join([dice_table(results), "", *files, "", "next:", *next_lines])


def size_in_words(out: Path) -> str:
    """How large a run is, and the command that drops what only a resume needs."""
    size, only_resume = total_size([out]), total_size(spare(out))
    if not only_resume:
        return megabytes(size)
    clean = paste("fedsm", "clean", out)
    return f"{megabytes(size)}; {clean} drops the {megabytes(only_resume)} that only a resume needs"


def megabytes(size: int) -> str:
    """A size for a person."""
    return f"{size / 1e6:.1f} MB" if size < 1e8 else f"{size / 1e6:,.0f} MB"


def ask_commands(out: Path) -> dict[str, str]:
    """The commands that wait for a submitted job, and that ask how far it is."""
    return {verb: paste("fedsm", verb, out) for verb in ("fetch", "status")}


def next_commands(out: Path, results: dict) -> dict[str, str]:
    """What can be done with a finished run."""
    run, sites = read_json(out / RUN), results["sites"]
    if "data" in run:
        images, where = str(Path(run["data"]) / sites[0] / "images"), [run["data"]]
    else:
        study = run.get("study", DEFAULT_STUDY)
        images, where = "IMAGES", ["--env", "prod", "--kit", run["kit"], "--sites", *sites]
        where += [] if study == DEFAULT_STUDY else ["--study", study]
    return {
        "report": paste("fedsm", "report", out),
        "evaluate": paste("fedsm", "evaluate", out, *where, "-o", out),
        "predict": paste("fedsm", "predict", out, images, "-o", out / "predictions"),
    }
