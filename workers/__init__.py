"""The deployed pool: what compose and ``arq`` start. An application, not part of the wheel."""
