"""The layout: rooms as CONTRIBUTING lists them, imports one way, no circle, and no two modules of one name."""

import ast
import collections
import graphlib
import re

from pages import ROOT

PACKAGE = ROOT / "epf_jax"
LATE_FOR_PICTURES = ("plots",)  # `.plot()` methods import this room when they are called


def rooms():
    """The rooms in the order of CONTRIBUTING, the highest first."""
    listed = re.search(r"^epf_jax/\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE)[1]
    return [line.split("/")[0].strip() for line in listed.splitlines()]


def modules():
    """Every module by its dotted name without the package's."""
    files = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in files.items()}


def imports(known):
    """Pairs (module, imported module, whether inside of a function)."""
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        at_top = set(map(id, tree.body))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "epf_jax":
                base = node.module.removeprefix("epf_jax").lstrip(".")
                for alias in node.names:
                    inner = f"{base}.{alias.name}".lstrip(".")
                    yield name, inner if inner in known else base, id(node) not in at_top


def test_the_package_holds_the_rooms_and_nothing_else():
    listed = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert listed - {"__init__.py", "__main__.py", "_version.py", "py.typed"} == {
        room for room in rooms() if (PACKAGE / room).exists()
    }


def test_imports_go_down_the_list_of_rooms():
    place = {room: i for i, room in enumerate(rooms())}
    wrong = []
    for name, used, late in imports(modules()):
        mine, other = name.split(".")[0], used.split(".")[0]
        if mine in place and other in place and place[other] < place[mine]:
            wrong += [(name, used)] if not (late and other in LATE_FOR_PICTURES) else []
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle():
    known = modules()
    graph = collections.defaultdict(set)
    for name, used, _ in imports(known):
        leaves = known[used].name != "__init__.py"  # a package's own list of names is no module of its own
        if leaves and name != used and used.split(".")[0] not in LATE_FOR_PICTURES:
            graph[name].add(used)
    graphlib.TopologicalSorter({n: u for n, u in graph.items() if known[n].name != "__init__.py"}).prepare()


def test_no_two_modules_share_a_name():
    names = collections.Counter(name.split(".")[-1] for name in modules() if name)
    assert [name for name, count in names.items() if count > 1] == []


def test_names_of_tests_are_short_and_tests_need_no_benchmarks():
    for path in (ROOT / "tests").rglob("*.py"):
        tree = ast.parse(path.read_text())
        used = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert not [module for module in used if module and module.split(".")[0] == "benchmarks"], path.name
        named = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert not [name for name in named if name.startswith("test_") and len(name) > 70], path.name
