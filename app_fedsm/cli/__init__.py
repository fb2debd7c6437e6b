"""The `fedsm` command."""
