"""`llamaserver crd`: the definition of the resource, for a cluster or for checks without one."""

from __future__ import annotations

from pathlib import Path

import click

from llamaserver.api import crd as definition
from llamaserver.api import jsonschema, reference

_FORMS = {
    "crd": (definition.FILE_NAME, definition.crd_yaml),
    "json-schema": (jsonschema.FILE_NAME, jsonschema.json_schema_text),
    "markdown": (reference.FILE_NAME, reference.reference),
}


@click.command("crd")
@click.option(
    "--json-schema",
    "form",
    flag_value="json-schema",
    help="As JSON Schema, which kubeconform and editors take, instead of the CustomResourceDefinition.",
)
@click.option(
    "--markdown",
    "form",
    flag_value="markdown",
    help="As a page to read: every field with its type, default, bounds and meaning.",
)
@click.option(
    "--output",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to write the file to; may be given several times. Default: print it.",
)
def crd(form: str | None, output: tuple[Path, ...]) -> None:
    """Print the CustomResourceDefinition of LlamaServer, or write it to a folder.

    To install it by hand: llamaserver crd | kubectl apply --server-side -f -
    """
    name, made = _FORMS[form or "crd"]
    text = made()
    if not output:
        click.echo(text, nl=False)
    for folder in output:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        path.write_text(text, encoding="utf-8")
        click.echo(f"wrote {path}", err=True)
