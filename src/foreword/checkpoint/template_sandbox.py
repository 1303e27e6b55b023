"""Jinja's immutable sandbox, in which no single operation takes for ever. Imported with the first template: jinja is slow to import."""

from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from foreword.checkpoint.template_bounds import check_power, check_product

_CHECKS = {"*": check_product, "**": check_power}


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """Looks at products and powers before they are computed."""

    intercepted_binops = frozenset(_CHECKS)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """As jinja does it, after the check."""
        _CHECKS[operator](left, right)
        return super().call_binop(context, operator, left, right)
