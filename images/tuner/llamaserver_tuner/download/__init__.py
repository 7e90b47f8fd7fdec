"""Fetches a model from the Hugging Face hub to a cache before an engine starts, and tells how far it is.

Runs as `python3 -m llamaserver_tuner.download` and needs nothing but Python, so that any engine's image can
run it. Modules, from pure to thin: `selection` says which files an engine reads, `progress` counts what is on
disk, `record` remembers what is whole, `cache` knows the form of huggingface_hub's cache, `hub` asks over
HTTP, `fetch` brings what is missing, `answer` serves the progress.
"""
