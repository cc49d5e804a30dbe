"""A workflow server of LlamaIndex whose runs another server continues."""
