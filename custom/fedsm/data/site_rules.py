"""What the site, never a job, decides about its own files.

A job comes from outside. If its seed chose the training images, sums over many such choices could be solved for single
images. If its pattern ran on file names, the answers would reveal them. So a real site splits its images once, and
decides itself how its patients are told apart. On one machine with all data (`data_root`) both may follow the job, as
research needs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.task_settings import TaskSettings
from fedsm.data.patients import FILE_NAME

FIXED_SEED = 0  # a job's default, so that it finds the same split in the simulator and at a real site


@dataclass(frozen=True)
class SiteRules:
    """The rules of one site; the defaults are those of research on one machine.

    Attributes:
        fixed_splits: the split is drawn once, whatever the job's seed.
        patient_pattern: the site's own, see `patients_of`; empty: each file is a patient; None: the site does not say.
        task_pattern: whether the task's pattern may run on the site's file names.
    """

    fixed_splits: bool = False
    patient_pattern: str | None = None
    task_pattern: bool = True

    def split_seed(self, settings: JobSettings) -> int:
        """The seed of the site's split."""
        return FIXED_SEED if self.fixed_splits else settings.seed

    def pattern(self, folder: Path, task: TaskSettings, site: str) -> str | None:
        """The pattern that finds the patient in a file's name; None: each file is a patient.

        Args:
            folder: the site's folder; with a `patients.csv` there no pattern is needed.
            task: the task, whose own pattern is used only if the site allows it.
            site: named in errors.

        Raises:
            UserError: the task tells patients apart by a pattern, and the site has not said how to.
        """
        if self.patient_pattern is not None:
            return self.patient_pattern or None
        if self.task_pattern:
            return task.patient_pattern or None
        if task.patient_pattern and not (folder / FILE_NAME).is_file():
            # JSON text is YAML text, and shows no control characters of a pattern that came from outside.
            raise UserError(
                f"task {task.name!r} tells patients apart by a pattern, which is used here only if you allow it",
                site=site,
                remedy=f"write `patient_pattern: {json.dumps(task.patient_pattern)}` to fedsm_site.yaml, or"
                f' `patient_pattern: ""` if each file is a patient, or add {folder / FILE_NAME}',
                public="the site must say how its patients are told apart: patient_pattern in its fedsm_site.yaml,"
                " or patients.csv",
            )
        return None


RESEARCH = SiteRules()
