"""The types of the TypeScript client, written from the gateway's description.

    .venv/bin/python tools/typescript.py           # write clients/typescript/src/schema.ts again
    .venv/bin/python tools/typescript.py --check   # fail if it is not what would be written

openapi-typescript writes them. It needs Node, and the packages that package-lock.json pins there.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from redis_state.gateway.app import OPERATIONS
from redis_state.gateway.openapi import describe

CLIENT = Path(__file__).parents[1] / "clients" / "typescript"
SCHEMA = CLIENT / "src" / "schema.ts"


def description() -> str:
    """Return the gateway's description, without the version: a release changes no type."""
    return json.dumps(describe(OPERATIONS, version="0"), indent=1, sort_keys=True)


def first_line() -> str:
    """Return the line by which a test sees, without Node, what the types were written from."""
    digest = hashlib.sha256(description().encode()).hexdigest()
    return f"// Written by tools/typescript.py from the description of the gateway: {digest}\n"


def written() -> str:
    """Return the types as they are to be."""
    build = CLIENT / "build"
    build.mkdir(exist_ok=True)
    source, target = build / "openapi.json", build / "schema.ts"
    source.write_text(description(), encoding="utf-8")
    generate = ("npm", "run", "--silent", "generate", "--", "--output", str(target))
    subprocess.run(generate, cwd=CLIENT, check=True, stdout=subprocess.DEVNULL)
    return first_line() + target.read_text(encoding="utf-8")


def main() -> int:
    """Write the types, or check them."""
    if "--check" not in sys.argv[1:]:
        SCHEMA.write_text(written(), encoding="utf-8")
        return 0
    if SCHEMA.read_text(encoding="utf-8") == written():
        return 0
    print("clients/typescript/src/schema.ts is not current: run tools/typescript.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
