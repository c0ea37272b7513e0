"""Arguments that several verbs take."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="One JSON object instead of text.")]
Namespace = Annotated[
    str | None, Parameter(name=["--namespace", "-n"], help="The namespace; without it, the kubeconfig context's.")
]
Context = Annotated[str | None, Parameter(help="Context of the kubeconfig; without it, the current one.")]
Name = Annotated[str, Parameter(name="NAME", help="The Changefeed's name.")]
