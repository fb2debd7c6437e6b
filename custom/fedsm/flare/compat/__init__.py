"""Workarounds of FLARE 2.9, each with its symptom; `docs` lists them."""
