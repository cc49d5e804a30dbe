"""Entry point of ``python -m examples.a2a_server``."""

from examples.a2a_server.server import main

if __name__ == "__main__":
    main()
