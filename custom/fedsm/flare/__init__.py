"""Our FLARE components: controller, aggregator, executor, the exchange of tracks. Only this room imports nvflare."""

from fedsm.core import own_process

own_process.PROGRAMS.add("nvflare")  # FLARE's own processes run our jobs
