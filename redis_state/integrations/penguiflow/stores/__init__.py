"""The stores that PenguiFlow asks for beside its state: jobs, tokens and A2A tasks."""
