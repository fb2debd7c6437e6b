"""Dice, tables, figures, the report."""
