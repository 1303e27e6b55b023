"""The prompts of `foreword demo`: from hard to easy to predict."""

_FUNCTION = """\
def total(x, tax):
    if x < 0:
        raise ValueError("x must not be negative")
    x_with_tax = x + x * tax
    print("x is", x, "and with tax", x_with_tax)
    return x_with_tax"""

PROMPTS = {
    "chat": "Explain in a few sentences why the sky is blue.",
    "code": "Write a Python function that counts the words in a text, with a docstring and three examples of its use.",
    "edit": f"Rewrite this Python function with `x` renamed to `price`. Reply with the function only.\n\n{_FUNCTION}",
}
