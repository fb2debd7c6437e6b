"""A multipart form with one file, or those of a series, read into memory: nothing of it touches the disk."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from fedsm.serve.limits import Refused, ServeLimits

_OVERHEAD = 256 * 1024  # bytes of a form beside its file
_FIELD = 64 * 1024  # bytes of one field
_MOST_FIELDS = 16


class _MemoryParser(MultiPartParser):
    """Starlette's own, which moves a file to the disk when it has this size; ours never get there."""

    spool_max_size = 1 << 62


@dataclass(frozen=True)
class Form:
    """A form.

    Attributes:
        files: the contents of its files; empty: it has none.
        names: the files' names as the client gave them: never paths, never logged.
        fields: its text fields.
    """

    files: tuple[bytes, ...]
    names: tuple[str, ...]
    fields: dict[str, str]


def length_of(request: Request, limits: ServeLimits) -> int:
    """The bytes that a form announces, which are checked before any of them is read.

    Raises:
        Refused: no form, of unknown length, or too long.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise Refused(415, "this address takes multipart/form-data", "send the image as the form's field `file`")
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or len(length) > 18:
        raise Refused(411, "the length of the upload is not known", "send Content-Length")
    if int(length) > limits.upload + _OVERHEAD:
        raise Refused(413, f"the upload has {int(length) / 1e6:.0f} MB, the limit is {limits.upload / 1e6:.0f} MB")
    return int(length)


async def read_form(request: Request, limits: ServeLimits) -> Form:
    """Reads a form whose length was checked.

    Raises:
        Refused: it is broken, has too many files, or came too slowly.
    """
    parser = _MemoryParser(
        request.headers, request.stream(), max_files=limits.files, max_fields=_MOST_FIELDS, max_part_size=_FIELD
    )
    try:
        async with asyncio.timeout(limits.seconds):
            form = await parser.parse()
    except MultiPartException as e:
        raise Refused(400, f"the form cannot be read: {e.message}", "send one image at a time") from e
    except ClientDisconnect as e:
        raise Refused(400, "the upload ended early", "send it again") from e
    except TimeoutError as e:
        raise Refused(408, "the upload took too long", "send it again") from e
    except (ValueError, UnicodeError) as e:
        raise Refused(400, "the form cannot be read") from e
    files, names, fields = [], [], {}
    for key, value in form.multi_items():
        if isinstance(value, UploadFile):
            files.append(value.file.read())
            names.append(value.filename or "")
            value.file.close()
        else:
            fields[key] = value
    if sum(map(len, files)) > limits.upload:
        raise Refused(413, f"the upload has more than {limits.upload / 1e6:.0f} MB")
    return Form(tuple(files), tuple(names), fields)


async def read_plain_form(request: Request) -> dict[str, str]:
    """The fields of a small form without files.

    Raises:
        Refused: it is larger than a form with a password is.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FIELD:
            raise Refused(413, "the form is too long")
    return dict(parse_qsl(body.decode("utf-8", "replace")))
