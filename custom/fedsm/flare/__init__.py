"""FLARE's classes: controller, aggregator, executor, and how tracks travel. The only room that imports nvflare."""
