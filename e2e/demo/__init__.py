"""The demo: a real vLLM is overloaded three times, at last with both knobs; every figure is measured."""
