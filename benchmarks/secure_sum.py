"""One round's sum of six sites: under masks, and with homomorphic encryption (CKKS, FLARE's defaults).

`python -m benchmarks.secure_sum`, with `pip install tenseal` for the second.

The default U-Net's update; bytes and processor seconds for one site and for the server, and the largest error of the
mean. No training, no network between. No bar: the table is in `docs/explanation/secure-sum.md`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app_fedsm.config.build import build_settings
from fedsm.client.secure_sum import SiteSum
from fedsm.core.secure_settings import SecureSum
from fedsm.core.secure_sum import fixed_point
from fedsm.core.secure_sum.group import Group
from fedsm.core.tensors import Tensors, payload_bytes
from fedsm.nets import build_unet
from fedsm.server.secure_sum import ServerSum

_RUN = "0123456789ab"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.secure_sum", description=__doc__.partition("\n")[0])
    parser.add_argument("--sites", type=int, default=6, help="default: %(default)d")
    sites = parser.parse_args(argv).sites
    net = build_unet(build_settings("retinal", "fedavg").task).state_dict()
    updates = [{k: 0.01 * torch.randn_like(v) for k, v in net.items()} for _ in range(sites)]
    expected = np.mean([fixed_point.flat(update) for update in updates], axis=0)
    plain = payload_bytes({"global": updates[0]})
    print(f"{len(expected)} parameters, {plain} bytes, {sites} sites")
    print("| sum | bytes up / plain | bytes down / plain | site, s | server, s | largest error |")
    rows = {f"masks, {bits} bits": (lambda bits=bits: _masks(updates, bits)) for bits in (32, 64)}
    rows["masks, 32 bits, one site missing"] = lambda: _masks(updates, 32, missing=1)
    rows["CKKS"] = lambda: _encrypted(updates)
    for name, measure in rows.items():
        up, down, site, server, mean = measure()
        kept = expected if "missing" not in name else np.mean([fixed_point.flat(u) for u in updates[1:]], axis=0)
        error = np.abs(mean - kept).max()
        print(f"| {name} | {up / plain:.2f} | {down / plain:.2f} | {site:.3f} | {server:.3f} | {error:.1e} |")
    return 0


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    done = work()
    return time.process_time() - started, done


def _masks(updates: list[Tensors], bits: int, missing: int = 0) -> tuple[float, float, float, float, np.ndarray]:
    settings = SecureSum(bits=bits)
    names = [f"site-{k}" for k in range(len(updates))]
    weighing = {"global": True}
    with tempfile.TemporaryDirectory() as folder:
        parts = {s: SiteSum(settings, weighing, s, _RUN, Path(folder, s), Path(folder), 3) for s in names}
        members = [part.register() | {"site": s, "share": 1 / len(names)} for s, part in parts.items()]
        group = Group.from_dict({"round": 1, "members": members})
        meta = {"group": group.to_dict()}
        server = ServerSum(group, {"global": updates[0]}, weighing, settings, group.context(_RUN, settings))
        site_seconds, server_seconds, up = 0.0, 0.0, 0
        for site, update in list(zip(names, updates, strict=True))[missing:]:
            parts[site].keep(1, {"global": update})
            site_seconds, sent = _seconds(lambda site=site: parts[site].mask(meta))
            server_seconds += _seconds(lambda site=site, sent=sent: server.add(site, sent))[0]
            up = payload_bytes(sent)
        for site in server.summed:
            payload = {"sealed": server.sealed_for(site)}
            more, opened = _seconds(
                lambda site=site, payload=payload: parts[site].open(meta | {"summed": server.summed}, payload)
            )
            server.take_opened(site, opened)
        server_seconds += (last := _seconds(server.means))[0]
    row = fixed_point.flat(last[1]["global"])
    down = payload_bytes({"global": updates[0]}) + payload_bytes(payload)
    return up + payload_bytes(opened), down, site_seconds + more, server_seconds, row


def _encrypted(updates: list[Tensors]) -> tuple[float, float, float, float, np.ndarray]:
    """CKKS as FLARE's HE builder sets it up. All sites have one secret key, the server none."""
    try:
        import tenseal
    except ImportError as e:
        raise SystemExit("CKKS needs TenSEAL: pip install --no-deps tenseal==0.3.18") from e
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40])
    context.global_scale = 2**40
    rows = [fixed_point.flat(update) / len(updates) for update in updates]
    encrypt, sent = _seconds(lambda: [tenseal.ckks_vector(context, rows[0]).serialize()])
    sent += [tenseal.ckks_vector(context, row).serialize() for row in rows[1:]]
    public = context.copy()
    public.make_context_public()

    def add() -> bytes:
        total = tenseal.ckks_vector_from(public, sent[0])
        for one in sent[1:]:
            total += tenseal.ckks_vector_from(public, one)
        return bytes(total.serialize())

    server, total = _seconds(add)
    decrypt, mean = _seconds(lambda: np.array(tenseal.ckks_vector_from(context, total).decrypt()))
    return len(sent[0]), len(total), encrypt + decrypt, server, mean


if __name__ == "__main__":
    sys.exit(main())
