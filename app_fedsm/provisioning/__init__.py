"""Startup kits for the parties of a federation."""
