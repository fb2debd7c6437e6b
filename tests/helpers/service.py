"""The service on a free port of this machine, in a thread; requests go through real sockets."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import nibabel
import numpy as np
import requests
import uvicorn
from PIL import Image

from fedsm.serve.app import create_app
from fedsm.serve.run import Listening
from fedsm.serve.service import Service
from fedsm.serve.token import Token


@contextlib.contextmanager
def serving(service: Service, token: str | None = None, hosts: tuple[str, ...] = ()) -> Iterator[str]:
    """The service's address, without a slash at its end, while the block runs."""
    app = create_app(service, hosts, Token(token) if token else None)
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", server_header=False)
    server = uvicorn.Server(config)
    with contextlib.closing(Listening(port=0).bind()) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def send(address: str, content: bytes, path: str = "/api/predict", name: str = "image", **fields) -> requests.Response:
    """Uploads a file."""
    return requests.post(address + path, files={"file": (name, content)}, data=fields, timeout=60)


def picture(size: tuple[int, int] = (48, 40), seed: int = 0, kind: str = "PNG") -> bytes:
    """A noisy colour picture of (width, height)."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def volume(path: Path, shape: tuple[int, int, int] = (36, 40, 5), affine: np.ndarray | None = None) -> bytes:
    """A noisy NIfTI volume, written to `path`."""
    values = np.random.default_rng(0).integers(0, 900, shape, np.int16)
    nibabel.save(nibabel.Nifti1Image(values, np.diag([-0.5, -0.5, 3.0, 1.0]) if affine is None else affine), path)
    return path.read_bytes()
