"""The addresses of the service: the page, its REST interface, and its description (OpenAPI at `/openapi.json`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp

import fedsm
from fedsm.serve.answer import NOTICE, Answer, ModelInfo, model_info
from fedsm.serve.guard import Guard, headers_of, problem_of
from fedsm.serve.limits import Refused
from fedsm.serve.monai_label import add_monai_label
from fedsm.serve.result import MASK_DICOM, MASK_NIFTI, Result
from fedsm.serve.service import Service
from fedsm.serve.token import Token

_PAGE = {  # the only files that are served: address -> file and its type
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/dropped.js": ("dropped.js", "text/javascript; charset=utf-8"),
    "/panel.js": ("panel.js", "text/javascript; charset=utf-8"),
    "/server.js": ("server.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_OPEN = (*_PAGE, "/health", "/openapi.json", "/auth/")
_EXPIRE_SECONDS = 20
_NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "A picture, a NIfTI volume, or a DICOM series: a zip, or all of its files.",
                        },
                        "model": {"type": "string", "description": "One of `choices` of `/api/model`."},
                    },
                }
            }
        },
    }
}
Id = Annotated[str, Path(description="The `id` of an answer.", max_length=64)]
Slice = Annotated[int, Path(description="A slice, counted from 1.", ge=1)]


def create_app(service: Service, hosts: Collection[str] = (), token: Token | None = None) -> ASGIApp:
    """The service, guarded.

    Args:
        service: what answers.
        hosts: see `Guard`.
        token: see `Guard`.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        cleaner = asyncio.create_task(_expire(service))
        yield
        cleaner.cancel()
        service.close()

    app = FastAPI(
        title="FedSM", version=fedsm.__version__, description=f"A super model as a service. {NOTICE}",
        docs_url=None, redoc_url=None, lifespan=lifespan, telemetry=_NO_TELEMETRY,
    )  # fmt: skip  # the pages of docs_url load scripts from elsewhere
    app.add_exception_handler(Refused, _refuse)
    for address, (name, kind) in _PAGE.items():
        _add_file(app, address, name, kind)
    _add_results(app, service)
    add_monai_label(app, service, token)
    return Guard(app, hosts, token, _OPEN, "/auth/token")


async def _expire(service: Service) -> None:
    while True:
        await asyncio.sleep(_EXPIRE_SECONDS)
        service.results.expire()
        service.sessions.expire()


async def _refuse(_: Request, e: Exception) -> Response:
    assert isinstance(e, Refused)
    return JSONResponse(problem_of(e), e.status, headers_of(e))


def _add_file(app: FastAPI, address: str, name: str, kind: str) -> None:
    content = files("fedsm.serve").joinpath("page", name).read_bytes()

    @app.get(address, include_in_schema=False)
    async def file() -> Response:
        return Response(content, media_type=kind)


def _add_results(app: FastAPI, service: Service) -> None:
    @app.get("/health", summary="Whether the service runs")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "version": fedsm.__version__, "jobs": service.jobs}

    @app.get("/api/model", summary="What is served")
    async def model() -> ModelInfo:
        return model_info(service.model, service.limits, service.keep is not None)

    @app.post("/api/predict", summary="Segment an image", openapi_extra=_FORM)
    async def predict(request: Request) -> Answer:
        async with service.form_of(request) as form:
            if not form.files:
                raise Refused(400, "the form has no file", "send the image as the form's field `file`")
            if any(not name.isprintable() or set(name) & set("/\\") or name == ".." for name in form.names):
                raise Refused(400, "the file's name is a path", "send its last part")
            return (await service.predict(form.files, form.fields.get("model", ""))).answer

    @app.get("/api/results/{name}", summary="An answer again")
    async def answer(name: Id) -> Answer:
        return service.results.get(name).answer

    @app.delete("/api/results/{name}", status_code=204, summary="Forget a result")
    async def forget(name: Id) -> None:
        service.results.remove(name)

    @app.get(f"/api/results/{{name}}/{MASK_NIFTI}", summary="The mask as NIfTI, on the image's grid")
    async def nifti(name: Id) -> Response:
        return Response(service.results.get(name).nifti, media_type="application/gzip")

    @app.get(f"/api/results/{{name}}/{MASK_DICOM}", summary="The mask as DICOM-SEG, of a DICOM upload")
    async def dicom(name: Id) -> Response:
        return Response(service.results.get(name).dicom(), media_type="application/dicom")

    def pictures(kind: str, summary: str) -> None:
        @app.get(f"/api/results/{{name}}/{kind}/{{number}}.png", summary=summary)
        def png(name: Id, number: Slice) -> Response:  # not async: encoding runs in a thread
            result: Result = service.results.get(name)
            return Response(getattr(result, f"{kind}_png")(number), media_type="image/png")

    pictures("image", "A slice as it is shown")
    pictures("overlay", "The labels of a slice in colour")
    pictures("mask", "The mask of a slice, with the task's mask values")
