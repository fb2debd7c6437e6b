"""What an experiment's YAML file holds.

title: what the table shows
base: {task: retinal, rounds: 150}      # options of `fedsm run` with _ for -, and any `--set` key with its dots
seeds: [0, 1, 2]
runs:                                   # the table's rows: options over the base
  FedSM: {method: fedsm}
  FedAvg: {from: FedSM, show: global}   # another model of the same run
axes: {lam: [0.3, 0.7]}                 # every row once for each value
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedsm.core.model import EXPECTED, Settings, Switch

Options = Annotated[dict[str, Any] | None, Field(json_schema_extra={EXPECTED: "a mapping of options"})]


class ExperimentFile(Settings):
    """A grid of runs, and the table that is made of them."""

    title: str = Field(default="", description="What the table shows. Default: the name of the file.")
    base: dict[str, Any] = Field(
        default={},
        json_schema_extra={EXPECTED: "a mapping of options"},
        description="Options of all runs: those of `fedsm run` with `_` for `-`, and any key of `--set` with its dots.",
    )
    runs: dict[str, Options] = Field(
        default={},
        json_schema_extra={EXPECTED: "a mapping of the rows' names to their options"},
        description="The rows of the table: options over `base`. `from: ROW` shows another model of that row's runs,"
        " `show:` says which. Default: one row of `base`.",
    )
    axes: dict[
        str, Annotated[list[Any], Field(min_length=1, json_schema_extra={EXPECTED: "a list of at least one value"})]
    ] = Field(
        default={},
        json_schema_extra={EXPECTED: "a mapping of options to lists of values"},
        description="Options with a list of values; every row is run once for each value, or each combination of them.",
    )
    seeds: list[Annotated[int, Field(ge=0, le=2**63 - 1)]] = Field(
        default=[0], min_length=1,
        json_schema_extra={EXPECTED: "a list of different whole numbers of at least 0"},
        description="Every run is made once for each seed; tables show mean and spread. Default: one, the job's own.",
    )  # fmt: skip
    choose: str | None = Field(
        default=None,
        description="An option, such as `lr`, that may have a list of values; the best on the validation images is"
        " taken.",
    )
    table: Literal["dice", "candidates"] = Field(
        default="dice", description="`dice`: one score per row. `candidates`: every model at every site."
    )
    compare: str | None = Field(
        default=None,
        description="The row that all others are compared with, image by image. Default: the first one that shows a"
        " super model, or else the first one.",
    )
    leave_one_out: Switch = Field(
        default=False,
        description="Train once without each site and test there, for data from a hospital that took no part.",
    )
    costs: Switch = Field(default=False, description="Show also what a run costs, in bytes on the wire and in seconds.")
    unfit: Literal["refuse", "skip"] = Field(
        default="refuse",
        description="What is done about rows that do not fit the number of sites and axis values that the method does"
        " not support: `refuse` ends with an error, so that nothing is missing by mistake; `skip` leaves them out.",
    )
    parallel: int = Field(default=1, ge=1, description="Runs at the same time. One needs all cores by default.")
    threads: int | None = Field(
        default=None, ge=1, description="Sites of a run that are trained at the same time. Default: all of them."
    )
    data: str | None = Field(
        default=None, description="Folder with one sub-folder per site. Default: `--data` of the command."
    )
    out: str | None = Field(
        default=None, description="Folder of the runs and tables. Default: `runs/` and the file's name."
    )

    @field_validator("seeds")
    @classmethod
    def _different_seeds(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise ValueError
        return seeds

    @model_validator(mode="after")
    def _chosen_or_axis(self) -> Self:
        if self.choose in ("method", "task"):
            raise ValueError(f"a {self.choose} cannot be chosen: make each one a row")
        if self.choose in self.axes:
            raise ValueError(f"{self.choose!r} is an axis and chosen: keep one")
        return self
