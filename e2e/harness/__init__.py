"""What the demo and the fault scenarios share: kubectl, waits, manifests, a streaming client."""
