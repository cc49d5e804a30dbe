"""The gateway: tasks, streams and approvals over HTTP. It needs the extra ``gateway``."""
