"""What kinds of drafters there are, by their names: who takes a path, who runs a model, who must have seen the pass before."""

TRIMMED = ("eagle", "eagle2", "medusa", "medusa2")  # heads over the whole vocabulary, which `draft_vocab` trims
WITHOUT_WEIGHTS = ("auto", "none", "ngram", "suffix", "recycling", "lookahead", "layerskip")  # these take no path
SEEING = ("medusa", "medusa2", "eagle", "eagle2", "eagle3")  # they read the target's states of the pass before
LOOKED_UP = ("auto", "ngram", "suffix", "recycling", "lookahead", "ngram_lm")  # their guesses cost no model's time


def num_looked_up(method: str) -> int:
    """Of a cascade, how many drafters come before the first that runs a model; 0 where none runs one."""
    runs = [part.partition("=")[0] not in LOOKED_UP for part in method.split(",")]
    return runs.index(True) if True in runs else 0


def is_looked_up(method: str) -> bool:
    """Whether none of them runs a model."""
    return all(part.partition("=")[0] in LOOKED_UP for part in method.split(","))


def needs_to_see(method: str) -> bool:
    """Whether one that runs a model can only guess after a pass that it has seen, as those do that read the target's states."""
    return any(part.partition("=")[0] in SEEING for part in method.split(","))


def reads_near(method: str) -> bool:
    """Whether none of them reads a whole text for its first guess."""
    return all(part.partition("=")[0] in (*LOOKED_UP, *SEEING) for part in method.split(","))
