"""Tasks, methods and experiments as YAML files, and how a job's settings are built from them."""
