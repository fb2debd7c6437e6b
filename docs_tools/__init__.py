"""What makes the documentation site: generated references, diagrams, the README's picture."""
