"""Descriptors of the statistics selector on a finished run's models: `python -m benchmarks.descriptors RUN DATA`.

A run with another descriptor would train bit for bit the same networks, for the tracks do not touch each other. So the
sums are formed here as sites and server form them, and every site tries the run's own candidates with the result.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

import torch

from app_fedsm.runs.run_folder import RESULTS
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors, payload_bytes
from fedsm.data.dataset import load_site
from fedsm.data.split import PARTS
from fedsm.evaluation.candidates import evaluate_candidates
from fedsm.selectors.descriptor import DESCRIPTORS
from fedsm.server.checkpoint import FOLDER, Checkpoints
from fedsm.server.results import summarize
from fedsm.super_model.artefact import load_super_model
from fedsm.tracks import client_tracks, server_tracks
from fedsm.tracks.base import DELIVER, REGISTER, SiteContext

_CPU = torch.device("cpu")


def with_descriptor(settings: JobSettings, name: str) -> JobSettings:
    """The job with another descriptor."""
    tracks = settings.tracks | {"selector": {"kind": "selector_statistics", "descriptor": name}}
    return dataclasses.replace(settings, tracks=tracks)


def selector_of(settings: JobSettings, sites: list[str], parts: dict[str, dict], last: Tensors) -> tuple[Tensors, int]:
    """The selector's tensors, and the bytes that a site sends for it. `last`: the run's last global network."""
    server = server_tracks(settings, sites)
    server["global"].load_files({"global": last})
    clients = [client_tracks(settings, SiteContext(k, len(sites), _CPU)) for k in range(len(sites))]

    def batches(site: str, part: str):
        return parts[site][part].batches(settings.batch_size, _CPU)

    sent = 0
    for site, tracks in zip(sites, clients, strict=True):
        tracks["global"].receive(DELIVER, last)
        for phase in (REGISTER, DELIVER):
            if tensors := tracks["selector"].send(phase, batches(site, "train")):
                server["selector"].accept(phase, site, tensors)
                sent = payload_bytes({"selector": tensors})
    reports = {}
    for site, tracks in zip(sites, clients, strict=True):
        tracks["selector"].receive(DELIVER, server["selector"].payload(DELIVER, site))
        reports[site] = tracks["selector"].validate(DELIVER, batches(site, "validation"))
    server["selector"].close(DELIVER, reports)
    return server["selector"].payload(DELIVER, sites[0]), sent


def main(argv: list[str]) -> int:
    """Prints a row a descriptor."""
    run, data = Path(argv[0]), Path(argv[1])
    settings = JobSettings.from_dict(json.loads((run / RESULTS).read_text())["settings"])
    model = load_super_model(run / "super_model")
    sites = model.manifest["sites"]
    checkpoints = Checkpoints(run / FOLDER)
    last = checkpoints.load_weights(checkpoints.load()["files"]["global"])
    parts = {site: load_site(data / site, site, settings) for site in sites}
    print(f"{'descriptor':14} {'accuracy':>8} {'client avg':>10} {'gamma':>6} {'KB up, once':>12} {'s for all':>9}")
    for name in DESCRIPTORS:
        job, started = with_descriptor(settings, name), time.time()
        selector, sent = selector_of(job, sites, parts, last)
        seconds = time.time() - started
        candidates = {n: t for n, t in model.networks.items() if n != "selector"} | {"selector": selector}
        evaluations = {
            site: {
                part: evaluate_candidates(
                    job, sites, candidates, lambda s=site, p=part: parts[s][p].batches(settings.batch_size, _CPU), _CPU
                )
                for part in PARTS[1:]
            }
            for site in sites
        }
        summary = summarize(evaluations, job, sites)
        test = summary["test"]
        print(
            f"{name:14} {test['selector_accuracy']['mean']:8.4f} {test['super_model']['client_avg']:10.4f}"
            f" {summary['gamma']:6g} {sent / 1000:12.1f} {seconds:9.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
