"""What a person reads when the product is ready."""

from pathlib import Path
from typing import Any

BODY = '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Name three rivers."}}]}}'


def banner(serve: dict[str, Any], serve_file: Path, seconds: float) -> str:
    """Return the text: where the console is, who signs in, a first request that works, how to stop."""
    body = BODY.format(model=serve["model"])
    return f"""
  Tollgate is ready ({seconds:.1f} s), model {serve["model"]}

  Console    {serve["console_url"]}
  Operator   {serve["operator"]["email"]}, password in {serve_file}
  Logs       {serve_file.parent / "log"}

  A first request:

    curl -N {serve["base_url"]}/chat/completions \\
      -H "Authorization: Bearer {serve["tenants"]["minnow"]["api_key"]}" \\
      -H "Content-Type: application/json" \\
      -d '{body}'

  Ctrl-C stops everything.
"""
