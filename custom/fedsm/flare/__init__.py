"""Our FLARE components: controller, aggregator, executor, the exchange of tracks. Only this room imports nvflare."""
