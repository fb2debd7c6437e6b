"""Runs on a federation: sessions, submission, following, POC."""
