"""MONAI Label's protocol, as far as a client needs it to have images segmented by our super model (3D Slicer does).

`/info/` lists the networks, `PUT /session/` takes an image, `/infer/NETWORK` segments one. The answer to `/infer/` is
a form with `params` (JSON) and the file of labels, one number per label, on the image's grid. There is no datastore,
no training and no active learning: `/info/` says so.
"""

from __future__ import annotations

import gzip
import json
import secrets
from enum import Enum
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import JSONResponse, Response

import fedsm
from fedsm.data.labels import decompose, flat_numbers
from fedsm.data.limits import load_volume
from fedsm.serve.answer import NOTICE
from fedsm.serve.choices import choices_of, options_of
from fedsm.serve.form import read_plain_form
from fedsm.serve.limits import Refused
from fedsm.serve.memory_file import memory_file
from fedsm.serve.result import Result
from fedsm.serve.service import Service, Session
from fedsm.serve.token import Token

_FILE = "label.nii.gz"
_TAGS: list[str | Enum] = ["MONAI Label"]
_FORM = {
    "requestBody": {"content": {"multipart/form-data": {"schema": {"type": "object", "properties": {
        "params": {"type": "string", "description": "JSON; not used."},
        "file": {"type": "string", "format": "binary", "description": "The image, unless a session has it."},
    }}}}},
}  # fmt: skip
SessionId = Annotated[str, Path(description="What `PUT /session/` answered.", max_length=64)]


def add_monai_label(app: FastAPI, service: Service, token: Token | None) -> None:
    """Adds the protocol's addresses."""
    _add_info(app, service)
    _add_sessions(app, service)
    _add_login(app, token)

    @app.post("/infer/{network}", tags=_TAGS, summary="Segment an image", openapi_extra=_FORM)
    async def infer(
        request: Request, network: str, session_id: Annotated[str, Query(max_length=64)] = "",
        output: Literal["all", "image", "json"] = "all",
    ) -> Response:  # fmt: skip
        options_of(service.model, network)  # before the upload is read
        async with service.form_of(request) as form:
            files = service.sessions.get(session_id).files if session_id else form.files
            if not files:
                raise Refused(404, "there is no datastore here", "send the image as `file`, or in a session")
            result = await service.predict(files, network)
        service.results.remove(result.answer.id)  # a program fetches nothing afterwards
        params = params_of(result)
        if output == "json":
            return JSONResponse(params)
        labels = await service.in_thread(lambda: label_file(result))
        if output == "image":
            return Response(labels, media_type="application/gzip")
        return _form_answer(params, labels)


def _add_info(app: FastAPI, service: Service) -> None:
    @app.get("/info/", tags=_TAGS, summary="The networks")
    async def info() -> dict[str, Any]:
        task = service.model.settings.task
        numbers = label_numbers(list(task.labels))
        models = {
            name: {
                "type": "segmentation",
                "labels": numbers,
                "dimension": 2,
                "description": "the selector chooses a network" if not options else f"the network {name}",
                "config": {},
            }
            for name, options in choices_of(service.model).items()
        }
        return {
            "name": f"FedSM {task.name}", "description": NOTICE, "version": fedsm.__version__,
            "labels": list(task.labels), "models": models, "trainers": {}, "strategies": {}, "scoring": {},
            "train_stats": {}, "datastore": {},
        }  # fmt: skip


def _add_sessions(app: FastAPI, service: Service) -> None:
    @app.put("/session/", tags=_TAGS, summary="Upload an image once", openapi_extra=_FORM)
    async def create(request: Request) -> dict[str, Any]:
        async with service.form_of(request) as form:
            if not any(form.files):
                raise Refused(400, "the form has no file")
            name = secrets.token_urlsafe(16)
            service.sessions.put(name, Session(form.files))
        return {"session_id": name, "session_info": {"expiry": service.limits.results_seconds}}

    @app.get("/session/{name}", tags=_TAGS, summary="Whether a session is still there")
    async def get(name: SessionId) -> dict[str, Any]:
        service.sessions.get(name)
        return {"expiry": service.limits.results_seconds}

    @app.delete("/session/{name}", tags=_TAGS, summary="Forget an image")
    async def delete(name: SessionId) -> dict[str, Any]:
        service.sessions.get(name)
        service.sessions.remove(name)
        return {}


def _add_login(app: FastAPI, token: Token | None) -> None:
    @app.get("/auth/", tags=_TAGS, summary="Whether a token is needed")
    async def enabled() -> dict[str, bool]:
        return {"enabled": token is not None}

    @app.post("/auth/token", tags=_TAGS, summary="The token as a password, for clients that log in")
    async def login(request: Request) -> dict[str, str]:
        given = (await read_plain_form(request)).get("password", "")
        if token and not token.matches(given):
            raise Refused(401, "this is not the token", "give it as the password; the user's name does not matter")
        return {"access_token": given if token else "", "token_type": "bearer"}

    @app.get("/auth/token/valid", tags=_TAGS, summary="Whether the token is right")
    async def valid() -> dict[str, str]:  # the guard has looked at it
        return {}


def label_numbers(labels: list[str]) -> dict[str, int]:
    """Label -> its number in the file of labels."""
    return {name: i + 1 for i, name in enumerate(labels)}


def params_of(result: Result) -> dict[str, Any]:
    """What is said beside the file of labels."""
    answer = result.answer
    return {
        "label_names": label_numbers(list(result.task.labels)),
        "network": answer.model,
        "networks": answer.used,
        "why": answer.summary,
        "foreign_slices": sum(bool(s.foreign) for s in answer.slices),
        "seconds": answer.seconds,
        "notice": answer.notice,
    }


def label_file(result: Result) -> bytes:
    """The labels as .nii.gz, one number per label; where labels overlap, the smaller structure's."""
    with memory_file(result.nifti, ".nii.gz") as path:
        mask = load_volume(path)
        numbers = flat_numbers(decompose(np.asanyarray(mask.dataobj), result.task), result.task)
        header = mask.header.copy()
        header.set_data_dtype(numbers.dtype)
        return gzip.compress(type(mask)(numbers, mask.affine, header).to_bytes(), compresslevel=4)


def _form_answer(params: dict[str, Any], labels: bytes) -> Response:
    limit = secrets.token_hex(16)
    head = (
        f'--{limit}\r\nContent-Disposition: form-data; name="params"\r\nContent-Type: application/json\r\n\r\n'
        f'{json.dumps(params)}\r\n--{limit}\r\nContent-Disposition: form-data; name="image"; filename="{_FILE}"\r\n'
        "Content-Type: application/gzip\r\n\r\n"
    )
    body = head.encode() + labels + f"\r\n--{limit}--\r\n".encode()
    return Response(body, media_type=f"multipart/form-data; boundary={limit}")
