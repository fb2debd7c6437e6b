"""Attacks by participants, one file for each hole that was found and closed. Each of them worked once."""
