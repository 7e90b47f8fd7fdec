"""The demo: a real vLLM is overloaded with tuning off, then on; every figure is measured, none typed in."""
