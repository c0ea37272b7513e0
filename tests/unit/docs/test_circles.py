"""No module imports another one that leads back to it: each can be read, tested and moved after those below it."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp

PACKAGES = ("changefeed", "changefeed_operator", "changefeed_devcluster", "pyspark_changefeed")


def test_no_imports_go_in_a_circle() -> None:
    """Also imports that only types need."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules
