"""The sites' side of a job."""
