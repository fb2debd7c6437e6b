"""What the service costs beside prediction: 50 uploads at once over `SuperModel.predict` in a loop, and one alone.

`python -m benchmarks.serving PART FOLDER` does a part in a process of its own; without arguments it measures and
prints the table, and keeps nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from threading import Barrier

from benchmarks import prediction
from benchmarks.process import Failed, measure_module, say
from benchmarks.report import Check, Outcome, table
from benchmarks.simulator import SITES, Simulator

BARS = {"many": 1.5, "one": 1.5}
UPLOADS, _SIZE, _REPEATS, _SINGLE = 50, 256, 3, 20


def measure(simulator: Simulator | None = None) -> Outcome:
    """Time to an answer, half of the images, over the time to a prediction in a loop, half of the images."""
    say(f"serving: {UPLOADS} uploads of {_SIZE} px at once, and {_SINGLE} one after the other, {_REPEATS} times")
    with tempfile.TemporaryDirectory(prefix="fedsm_bench_") as folder:
        measure_module("benchmarks.prediction", "write", folder)
        figures = measure_module("benchmarks.serving", "compare", folder)
    checks = [
        Check(f"{UPLOADS} uploads at once / predict in a loop, p50", figures["many_over_loop"], BARS["many"]),
        Check("one upload / one predict, p50", figures["one_over_one"], BARS["one"]),
        Check("uploads that were not answered", figures["errors"], 0),
    ]
    return Outcome(checks, figures)


def compare(folder: Path) -> dict:
    """Loop and service in turn, so that what disturbs the machine disturbs both; the best of each counts."""
    import requests
    from PIL import Image

    from fedsm.super_model.model import SuperModel

    files = []
    for i in range(UPLOADS):
        pixels = prediction._images(_SIZE, i % SITES, 1)[0].permute(1, 2, 0)
        files.append(folder / f"{i}.png")
        Image.fromarray((pixels * 255).byte().numpy()).save(files[-1])
    contents = [file.read_bytes() for file in files]
    model = SuperModel.load(folder / "super_model", "cpu")
    service = subprocess.Popen(
        [sys.executable, "-m", "app_fedsm.cli.main", "serve", str(folder / "super_model"), "--port", "0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert service.stdout is not None
        line = service.stdout.readline()
        if not line:
            raise Failed("the service did not start")
        address = f"{line.split()[0]}api/predict"
        errors = 0

        def upload(content: bytes, session: requests.Session) -> bool:
            return session.post(address, files={"file": content}, timeout=300).status_code == 200

        def loop() -> list[float]:
            started, done = time.perf_counter(), []
            for file in files:
                model.predict(file)
                done.append(time.perf_counter() - started)
            return done

        def at_once() -> list[float]:
            nonlocal errors
            barrier = Barrier(UPLOADS)

            def one(content: bytes) -> tuple[bool, float]:
                with requests.Session() as session:
                    barrier.wait()
                    started = time.perf_counter()
                    return upload(content, session), time.perf_counter() - started

            with ThreadPoolExecutor(UPLOADS) as pool:
                answers = list(pool.map(one, contents))
            errors += sum(not good for good, _ in answers)
            return [seconds for _, seconds in answers]

        def timed(work, argument) -> float:
            started = time.perf_counter()
            work(argument)
            return time.perf_counter() - started

        session = requests.Session()
        p50: dict[str, list[float]] = {"loop": [], "at_once": [], "predict": [], "upload": []}
        for number in range(_REPEATS + 1):
            found = {"loop": median(loop()), "at_once": median(at_once())}
            found["predict"] = median(timed(model.predict, file) for file in files[:_SINGLE])
            found["upload"] = median(timed(lambda c: upload(c, session), c) for c in contents[:_SINGLE])
            for name in p50 if number else ():  # the first imports and warms up
                p50[name].append(found[name])
    finally:
        service.terminate()
        service.wait()
    return {
        "errors": errors,
        "many_over_loop": min(p50["at_once"]) / min(p50["loop"]),
        "one_over_one": min(p50["upload"]) / min(p50["predict"]),
        "p50_milliseconds": {name: [round(1000 * s, 1) for s in seconds] for name, seconds in p50.items()},
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        json.dump(compare(Path(sys.argv[2])), sys.stdout)
    else:
        print(table({"serving": measure()}))
