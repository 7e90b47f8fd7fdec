"""The law on a real engine, beside the best that fixed settings give: `make bench-engine`."""
