"""A form with one file (`curl -F file=@train.jsonl`), taken apart as it comes in. Nothing of it is held in memory."""

from __future__ import annotations

from typing import IO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header


class FormRefused(ValueError):
    """The body is no form with one file; the message says what to send."""


def is_form(content_type: str) -> bool:
    return content_type.strip().lower().startswith("multipart/")


class OneFile:
    """Writes the file in the form to `out`. name: what the form calls it, once its part has begun."""

    def __init__(self, content_type: str, out: IO[bytes]) -> None:
        """Raises FormRefused."""
        self.name: str | None = None
        self._out, self._ended = out, False
        self._header, self._value, self._disposition = b"", b"", b""
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise FormRefused("a form has the type multipart/form-data and a boundary; `curl -F file=@FILE` sends both")
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._part_begins,
                    "on_header_field": self._header_goes_on,
                    "on_header_value": self._value_goes_on,
                    "on_header_end": self._header_ends,
                    "on_headers_finished": self._headers_end,
                    "on_part_data": self._data,
                    "on_end": self._form_ends,
                },
            )
        except FormParserError as error:
            raise FormRefused(str(error)) from None

    def write(self, chunk: bytes) -> None:
        """Raises FormRefused."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise FormRefused(f"it cannot be read as a form: {str(error)[:200]}") from None

    def finish(self) -> str:
        """The file's name. Raises FormRefused when the form has no file or no end."""
        if not self._ended:
            raise FormRefused("the form has no end")
        if self.name is None:
            raise FormRefused("the form has no file; send one, as `curl -F file=@FILE` does")
        return self.name

    def _part_begins(self) -> None:
        self._disposition = b""

    def _header_goes_on(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _value_goes_on(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ends(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _headers_end(self) -> None:
        options = parse_options_header(self._disposition)[1]
        if b"filename" not in options:
            field = options.get(b"name", b"").decode(errors="replace")[:100]
            raise FormRefused(f"{field!r} is no file; give all that is not the file in the address: ?{field}=...")
        if self.name is not None:
            raise FormRefused("the form has several files; send one")
        self.name = options[b"filename"].decode(errors="replace")

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._out.write(data[start:end])

    def _form_ends(self) -> None:
        self._ended = True
