"""The product: one model a clinic can load."""
