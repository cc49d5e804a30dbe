"""Sessions that outlive their process, and that several processes share."""
