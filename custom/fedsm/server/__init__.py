"""The server's side of a job."""
