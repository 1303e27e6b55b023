"""What a server allows, as plain data."""

from dataclasses import dataclass
from ipaddress import ip_address

from foreword.errors import ConfigError
from foreword.validate import Bounds

_BOUNDS = {
    "port": Bounds(int, 0, 65535),
    "stream_pause_s": Bounds(float, 0, 60),
    "request_timeout_s": Bounds(float, 0.001, 1e9, or_none=True),
    "max_body_bytes": Bounds(int, 1024, 1 << 30),
    "body_timeout_s": Bounds(float, 0.001, 1e9),
    "max_prompts": Bounds(int, 1, 65536),
    "max_n": Bounds(int, 1, 128),
    "max_logprobs": Bounds(int, 0, 1000),
    "max_grammar_bytes": Bounds(int, 16, 1 << 24),
}


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where a server listens, whom it answers, and how much one request may ask for.

    Raises:
        ConfigError: a value that is not allowed, or an address that others reach without a key.
    """

    model_name: str  # what clients call the model
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    api_key: str | None = None  # wanted of every request but those for the page and /health
    allow_unauthenticated: bool = False  # listen on an address that others reach, without a key
    allowed_hosts: tuple[str, ...] = ()  # further names under which the server is reached, as behind a proxy
    allowed_origins: tuple[str, ...] = ()  # pages of other origins that may ask (CORS)
    stream_pause_s: float = 0.04  # between two events of a streamed answer; 0: one per step
    request_timeout_s: float | None = None  # most time per request; its answer then ends with what there is
    max_body_bytes: int = 16 << 20
    body_timeout_s: float = 30.0  # for a request's headers and body to arrive
    max_prompts: int = 128  # of one completion request
    max_n: int = 16  # answers per prompt
    max_logprobs: int = 20  # top tokens per token
    max_grammar_bytes: int = 65536  # of a JSON schema or a regular expression

    def __post_init__(self) -> None:
        for name, bounds in _BOUNDS.items():
            object.__setattr__(self, name, bounds.checked(name, getattr(self, name)))
        if not self.model_name.strip():
            raise ConfigError("served-model-name is empty; give the name that clients will use")
        if not self.is_loopback and self.api_key is None and not self.allow_unauthenticated:
            raise ConfigError(
                f"host {self.host} can be reached from other machines, and no API key is set; give --api-key-file FILE, "
                f"or --allow-unauthenticated if everyone who reaches it may use it"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the server."""
        return _is_loopback(self.host)

    def allows_host(self, host: str) -> bool:
        """Whether a request that names this host is meant for this server.

        Not that of a page of another site which had its name resolved to this machine (DNS rebinding). On an open address
        any name goes: the key protects it.
        """
        named = {*self.allowed_hosts, self.host.lower()}
        if self.is_loopback or self.allowed_hosts:
            return host in named or _is_loopback(host)
        return True


def _is_loopback(host: str) -> bool:
    """A name or address of this machine that no other machine reaches."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
