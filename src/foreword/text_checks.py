"""Checks of text."""

from foreword.errors import ConfigError


def check_unicode(what: str, text: str) -> None:
    """`ConfigError` where `text` has half of a surrogate pair in it, which no encoding can write."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{what} has {text[error.start]!r} in it, which is no Unicode character; give text that was UTF-8"
        ) from error
