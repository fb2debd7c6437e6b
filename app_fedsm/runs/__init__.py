"""Runs on this machine: FLARE's simulator, run folders, centralized training."""
