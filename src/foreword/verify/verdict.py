"""What a verifier decides."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """The part of a draft tree that the target agrees with, and the token it adds.

    `path` holds node numbers from the root: all committed tokens, then the accepted nodes. The KV cache keeps exactly these rows.
    `extra_token` comes from the target at the end of the path; None where the committed tokens stop before the end of the prompt,
    so that nothing can be sampled yet.
    """

    path: tuple[int, ...]
    accepted: tuple[int, ...] = ()  # token ids of the accepted nodes, in order
    extra_token: int | None = None

    @property
    def num_accepted(self) -> int:
        """Drafted tokens kept; excludes the extra token."""
        return len(self.accepted)

    @property
    def emitted(self) -> tuple[int, ...]:
        """The new tokens, before stop conditions."""
        return self.accepted if self.extra_token is None else (*self.accepted, self.extra_token)
