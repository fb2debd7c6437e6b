"""The server's side of a job."""

from fedsm.core.moved import refuse_old_classes

refuse_old_classes(__name__)
