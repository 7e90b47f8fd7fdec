"""Holds a declared inter-token-latency objective on vLLM engines in Kubernetes."""
