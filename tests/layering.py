"""The rules of docs/architecture.md on imports, checked on source text: nothing is imported or run.

`violations(root)` returns a line for each broken rule, also for imports inside functions and under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.import_cycles import cycles
from tests.sources import nodes_of, parsed, python_files


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _of_bkspark(names: str) -> tuple[str, ...]:
    return tuple(f"bkspark.{name}" for name in names.split())


PACKAGES = ("bkspark", "bookie_service", "bkspark_console", "pyspark_bookkeeper")

LAYERS = (
    _of_bkspark(
        """
        ids errors extras options tasks memory stages tracing metrics version properties configuration_files
        client_files parent_death child_reports interpreter secret_files changed_files one_line command_line arrow_sizes
        decimals buckets log_limit log_lines failure_log wall_clock
        """
    ),
    ("bkspark.entries",),
    ("bkspark.wire", "bkspark.tls", "bkspark.security"),
    ("bkspark.core",),
    ("bkspark.metadata",),
    ("bkspark.net",),
    ("bkspark.ledger",),
    ("bkspark.log",),
    ("bkspark.pulsar",),
    ("bkspark.client",),
    ("bkspark.blocking",),
    ("bkspark.cli",),
    ("bkspark.spark",),
)
"""From the bottom up: a module imports its own layer and those before it. `bkspark` itself may import all of them."""

CONSOLE = ("bkspark_console",)
CONSOLE_IMPORTS = _of_bkspark(
    """
    ids errors version arrow_sizes entries wire tls security core metadata ledger log client cli log_limit log_lines
    failure_log tasks wall_clock
    """
)
"""All of bkspark that the console may import. No other package imports the console (`HOME_OF`)."""

SERVER_LAYERS = (
    ("bookie_service.formats", "bookie_service.metrics"),
    ("bookie_service.storage",),
    ("bookie_service.engine", "bookie_service.admin.inspection"),
    ("bookie_service.network",),
    ("bookie_service.cluster", "bookie_service.gc", "bookie_service.replication"),
    ("bookie_service.settings",),
    ("bookie_service.service",),
    ("bookie_service.operation",),
    ("bookie_service.admin",),
    ("bookie_service.wiring",),
    ("bookie_service.process",),
    ("bookie_service.__main__", "bookie_service.replication.__main__"),
)
"""The rooms of the server, from the bottom up. A module imports its own room and those below it, but none beside it."""

IMPORTED_BY = {
    "bookie_service.admin.inspection": ("bookie_service.admin",),
    "bookie_service.replication": (
        "bookie_service.settings",
        "bookie_service.operation",
        "bookie_service.admin",
        "bookie_service.wiring",
    ),
}
"""Rooms beside the way of a request: who else may import them."""

SERVER_IMPORTS = _of_bkspark(
    """
    ids errors extras options tasks memory tracing version secret_files entries wire tls security properties
    configuration_files parent_death child_reports metadata changed_files one_line command_line buckets
    log_limit log_lines failure_log wall_clock
    """
)
"""All of bkspark that bookie_service may import."""

REPAIR = (
    "bookie_service.replication",
    "bookie_service.admin.repair_commands",
    "bookie_service.admin.http.cluster_v1",
    "bookie_service.admin.http.api_v2",
)
REPAIR_IMPORTS = (*SERVER_IMPORTS, "bkspark.core", "bkspark.net", "bkspark.ledger")
"""Autorecovery is a client of the cluster, too, and needs its decisions. The rest of the server does without."""

PURE = (
    "bkspark.ids",
    "bkspark.errors",
    "bkspark.extras",
    "bkspark.one_line",
    "bkspark.arrow_sizes",
    "bkspark.buckets",
    "bkspark.options",
    "bkspark.entries",
    "bkspark.wire",
    "bkspark.properties",
    "bkspark.tls.names",
    "bkspark.security.authorization",
    "bkspark.security.digest_md5",
    "bkspark.security.jaas",
    "bkspark.security.mechanism",
    "bkspark.security.attempts",
    "bkspark.security.certificate_roles",
    "bkspark.security.principal",
    "bkspark.security.roles",
    "bkspark.core",
    "bkspark.metadata.acls",
    "bkspark.metadata.tree",
    "bkspark.metadata.uri",
    "bkspark.log.positions",
    "bkspark.log.formats",
    "bkspark.log.node",
    "bkspark.log.publication",
    "bkspark.log.changes",
    "bkspark.log.delta",
    "bkspark.log.schemas",
    "bkspark.log.times",
    "bkspark.log.retention",
    "bkspark.log.consumer_nodes",
    "bkspark.pulsar.avro",
    "bkspark.pulsar.base64_values",
    "bkspark.pulsar.chunks",
    "bkspark.pulsar.compression",
    "bkspark.pulsar.entries",
    "bkspark.pulsar.fields",
    "bkspark.pulsar.jackson",
    "bkspark.pulsar.malformed",
    "bkspark.decimals",
    "bkspark.pulsar.message_columns",
    "bkspark.pulsar.message_ids",
    "bkspark.pulsar.messages",
    "bkspark.pulsar.metadata",
    "bkspark.pulsar.names",
    "bkspark.pulsar.protobuf_values",
    "bkspark.pulsar.pulsar_formats_pb2",
    "bkspark.pulsar.schemas",
    "bkspark.pulsar.slices",
    "bkspark.pulsar.transactions",
    "bkspark.spark.foreign_options",
    "bkspark.spark.ledger_offsets",
    "bkspark.spark.formats.arrow_limits",
    "bkspark.spark.formats.arrow_types",
    "bkspark.spark.formats.compression",
    "bkspark.spark.formats.decimal_casts",
    "bkspark.spark.formats.nested",
    "bkspark.spark.formats.spark_json_types",
    "bkspark.spark.offsets",
    "bkspark.spark.option",
    "bkspark.spark.option_values",
    "bkspark.spark.ranges",
    "bkspark.spark.read_options",
    "bkspark.spark.topic_options",
    "bkspark.spark.write_options",
    "bkspark_console.history",
    "bkspark_console.payloads",
    "bkspark_console.plots",
    "bkspark_console.prometheus_text",
    "bookie_service.admin.http.jackson",
    "bookie_service.admin.http.openapi",
    "bookie_service.formats",
    "bookie_service.metrics",
    "bookie_service.storage.disks",
    "bookie_service.storage.journal.flush_policy",
    "bookie_service.storage.ledger_id_sets",
    "bookie_service.engine.add_batch",
    "bookie_service.engine.deferrals",
    "bookie_service.engine.pacing",
    "bookie_service.engine.responses",
    "bookie_service.engine.rules",
    "bookie_service.engine.shares",
    "bookie_service.engine.sync_cursor",
    "bookie_service.engine.turns",
    "bookie_service.network.add_decoders",
    "bookie_service.network.connection_options",
    "bookie_service.network.closing",
    "bookie_service.network.connections",
    "bookie_service.network.deadlines",
    "bookie_service.network.response_encoders",
    "bookie_service.network.tls_records",
    "bookie_service.storage.io.framed_entries",
    "bookie_service.cluster.ledger_shares",
    "bookie_service.gc.gc_policy",
    "bookie_service.replication.drain_sharing",
    "bookie_service.replication.lost_bookies",
    "bookie_service.replication.repair",
    "bookie_service.replication.repair_targets",
)
"""No clock, socket, thread, file or random source: those arrive as arguments. They import only one another."""

CLAIMS_PURITY = re.compile(r"\bPURE\b|\bPure\b|[Dd]ecisions only")
"""How a docstring says that its module is pure."""

PROTOCOLS = _words(
    "bkspark.wire.v2 bkspark.wire.v3 bkspark.wire.v3_adds bkspark.wire.v3_fields bkspark.wire.v3_lacs "
    "bkspark.wire.v3_reads bkspark.wire.bookkeeper_protocol_pb2 bkspark.wire.adds"
)
WITHOUT_PROTOCOL = ("bkspark.core", "bookie_service.engine", "bookie_service.gc", "bookie_service.storage")
"""What decides and stores knows `bkspark.wire.status` and no wire protocol."""

PURE_MAY_IMPORT = _words(
    "__future__ abc base64 binascii bisect collections contextlib copy dataclasses datetime enum functools "
    "hashlib heapq hmac ipaddress itertools json math operator re string struct textwrap types typing zlib "
    "crc32c cryptography decimal google html msgpack numpy pyarrow"
)
"""A list of what is allowed, so that a new way to reach the world does not slip past a list of what is forbidden."""

CORES = ("bkspark.core", "bkspark.wire", "bookie_service.formats", "bookie_service.replication.repair")
"""The cores of CONTRIBUTING.md: their classes are composed of others, and never inherited from."""

HOME_OF = {
    "kazoo": ("bkspark.metadata.zookeeper", "bkspark.metadata.zookeeper_connection"),
    "cryptography": ("bkspark.tls", "bkspark.wire.encrypted_entries"),
    "gssapi": ("bkspark.security.kerberos",),
    "opentelemetry": ("bkspark.tracing", "bookie_service.admin.trace_output"),
    "rocksdict": ("bookie_service.storage.io.rocks",),
    "h11": ("bookie_service.admin.http.server",),
    "pyspark": ("bkspark.spark", "pyspark_bookkeeper"),
    "bookie_service": ("bookie_service",),
    "bkspark_console": CONSOLE,
    "aiohttp": CONSOLE,
    "jinja2": CONSOLE,
}
"""Packages that may be imported in these places only."""

READING = "Reading"
"""Base class of requests that change nothing: an error of theirs is contained (`bookie_service.engine.reads`)."""
CHANGING = (
    "bookie_service.engine.bookie",
    "bookie_service.network.request_stream",
    "bookie_service.service",
    "bookie_service.gc.garbage_collector",
    "bookie_service.storage.journal.checkpoint",
    "bookie_service.storage.logs.compaction",
    "bookie_service.storage.journal.journal",
    "bookie_service.storage.journal.journal_thread",
    "bookie_service.storage.ledgers.base",
)
"""What changes a bookie's state; a module with a request that changes nothing has no way to it."""
CHANGING_CALLS = _words(
    "create_ledger fence advance_lac insert add_single begin_flush write_flush end_flush drop move submit commit "
    "fence_and_read write_lac force checkpoint"
)

SERVER_FILE_MODULES = (
    "bookie_service.storage.io.files",
    "bookie_service.storage.io.process_usage",
    "bookie_service.settings.rules_file",
    "bookie_service.settings.address",
    "bookie_service.admin.control",
)
"""Where the server may touch the file system: the one door, the file of authorization rules, the address, which asks a
network interface with fcntl, and the control socket."""

FILE_LIBRARIES = _words("io shutil tempfile fcntl mmap glob")
OS_WITHOUT_FILES = _words(
    "os.PathLike os._exit os.cpu_count os.environ os.execv os.fspath os.geteuid os.getpid os.getppid os.nice "
    "os.sched_getaffinity "
    "os.strerror os.path os.path.abspath os.path.basename os.path.commonpath os.path.dirname os.path.isabs "
    "os.path.join os.path.normpath os.path.relpath os.path.split os.path.splitext"
)
PATH_CALLS = _words(
    "read_text read_bytes write_text write_bytes iterdir is_file is_dir exists mkdir unlink touch rmdir stat"
)
"""Methods of pathlib.Path that reach the disk; without an argument they are not methods of our own."""


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name."""

    target: str
    line: int


@dataclass(frozen=True)
class Module:
    """One source file, parsed; `imports` are resolved to modules of the tree where they name one.

    nodes: all of the tree's, in the order of `ast.walk`: a walk takes longer than any rule.
    """

    name: str
    path: Path
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    imports: tuple[Import, ...]


Sources = Mapping[str, Module]


def violations(root: Path) -> list[str]:
    """Return `path:line: what is wrong` for every broken rule in the packages under `root`, in order."""
    sources = _read(root)
    found: list[str] = []
    for module in sources.values():
        for rule in _RULES:
            found += [f"{module.path.relative_to(root)}:{line}: {reason}" for line, reason in rule(module)]
    targets = {name: sorted({imported.target for imported in module.imports}) for name, module in sources.items()}
    return sorted(found) + [f"import cycle: {' -> '.join(cycle)}" for cycle in cycles(targets)]


def shared_names(root: Path) -> dict[str, list[str]]:
    """Return the names that several public classes of the product share, and where.

    A class of `bkspark.blocking` has the name of the one class whose calls it makes.
    """
    places: dict[str, list[str]] = {}
    for path in python_files(root, PACKAGES):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(_module_name(path.relative_to(root)))
    return {
        name: modules
        for name, modules in places.items()
        if len(modules) - sum(is_within(module, ("bkspark.blocking",)) for module in modules) > 1
    }


def is_within(name: str, packages: tuple[str, ...]) -> bool:
    """Return whether a module is one of these modules or lies in one of these packages."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _read(root: Path) -> Sources:
    paths = {_module_name(path.relative_to(root)): path for path in python_files(root, PACKAGES)}
    sources = {}
    for name, path in paths.items():
        nodes = nodes_of(path)
        sources[name] = Module(name, path, parsed(path), nodes, tuple(_imports(nodes, paths)))
    return sources


def _module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imports(nodes: Iterable[ast.AST], known: Mapping[str, Path]) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            package = node.module or ""
            for alias in node.names:
                # `from package import name`: name is a module of the package, or something inside the package's own.
                submodule = f"{package}.{alias.name}"
                yield Import(submodule if submodule in known else package, node.lineno)


Broken = Iterator[tuple[int, str]]


def _no_relative_import(module: Module) -> Broken:
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "a relative import; write the full name"


def _downwards_only(module: Module) -> Broken:
    own = _layer(module.name, LAYERS)
    if own is None:
        return
    for imported in module.imports:
        other = _layer(imported.target, LAYERS)
        if imported.target == "bkspark" or (other is not None and other[0] > own[0]):
            yield imported.line, f"{LAYERS[own[0]][0]} imports {imported.target}, which is above it"


def _server_downwards_only(module: Module) -> Broken:
    own = _layer(module.name, SERVER_LAYERS)
    if own is None:
        if is_within(module.name, ("bookie_service",)) and module.name != "bookie_service":
            yield 1, f"{module.name} is in no room; give it one in docs/architecture.md and tests/layering.py"
        return
    room = own[1]
    for imported in module.imports:
        other = _layer(imported.target, SERVER_LAYERS)
        if other is None:
            continue
        importers = IMPORTED_BY.get(other[1], (room,))
        if other[0] > own[0]:
            yield imported.line, f"{room} imports {imported.target}, which is above it"
        elif other[0] == own[0] and other[1] != room:
            yield imported.line, f"{room} imports {imported.target}, which is beside it"
        elif other[1] != room and not is_within(module.name, importers):
            yield imported.line, f"{room} imports {imported.target}, which only {' and '.join(importers)} may"


def _layer(name: str, layers: tuple[tuple[str, ...], ...]) -> tuple[int, str] | None:
    """Return the number and the package of a module's layer: the package that says most of its name."""
    found = [(i, package) for i, packages in enumerate(layers) for package in packages if is_within(name, (package,))]
    return max(found, key=lambda layer: len(layer[1]), default=None)


def _server_imports_little(module: Module) -> Broken:
    if not is_within(module.name, ("bookie_service",)):
        return
    permitted = REPAIR_IMPORTS if is_within(module.name, REPAIR) else SERVER_IMPORTS
    for imported in module.imports:
        if is_within(imported.target, ("bkspark",)) and not is_within(imported.target, permitted):
            yield imported.line, f"the server imports {imported.target}; it may import only {', '.join(permitted)}"


def _console_is_a_client(module: Module) -> Broken:
    if not is_within(module.name, CONSOLE):
        return
    for imported in module.imports:
        if is_within(imported.target, ("bkspark",)) and not is_within(imported.target, CONSOLE_IMPORTS):
            yield (
                imported.line,
                f"the console imports {imported.target}; it may import only {', '.join(CONSOLE_IMPORTS)}",
            )


def _stays_at_home(module: Module) -> Broken:
    for imported in module.imports:
        homes = HOME_OF.get(imported.target.partition(".")[0])
        if homes is not None and not is_within(module.name, homes):
            yield imported.line, f"imports {imported.target}, which only {' and '.join(homes)} may"


_CLOCKS = _words("datetime.now datetime.utcnow datetime.today date.today")


def _pure_is_pure(module: Module) -> Broken:
    if not is_within(module.name, PURE):
        return
    for imported in module.imports:
        library = imported.target.partition(".")[0]
        if library not in PURE_MAY_IMPORT and not is_within(imported.target, PURE):
            yield imported.line, f"is PURE but imports {imported.target}"
        elif imported.target.startswith("numpy.random"):
            yield imported.line, "is PURE but imports numpy.random"
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "numpy.random"):
            yield node.lineno, "is PURE but uses numpy.random"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("open", "print", "input", "__import__"):
            yield node.lineno, f"is PURE but calls {ast.unparse(node.func)}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in _CLOCKS:
            yield node.lineno, f"is PURE but uses {ast.unparse(node)}"


def _claim_of_purity_is_checked(module: Module) -> Broken:
    if not is_within(module.name, PURE) and CLAIMS_PURITY.search(ast.get_docstring(module.tree) or ""):
        yield 1, "says that it is pure; list it in PURE in tests/layering.py"


def _decides_without_protocol(module: Module) -> Broken:
    if is_within(module.name, WITHOUT_PROTOCOL):
        for imported in module.imports:
            if imported.target in PROTOCOLS:
                yield imported.line, f"imports {imported.target}; a core knows no wire protocol, only Status"


def _nothing_inherits_from_a_core(module: Module) -> Broken:
    classes = [node for node in module.nodes if isinstance(node, ast.ClassDef)]
    homes = {alias.asname or alias.name: source for source, alias in _imported_names(module.nodes)}
    if is_within(module.name, CORES):
        homes |= {node.name: module.name for node in classes}
    for node in classes:
        for base in node.bases:
            name = ast.unparse(base)
            if is_within(homes.get(name.split(".")[0].split("[")[0], ""), CORES):
                yield node.lineno, f"{node.name} inherits from {name}, which is part of a core; compose it"


def _imported_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.alias]]:
    """Yield (module, name) for each name that is imported from a package or module."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", alias) for alias in node.names)


def _server_files_have_one_door(module: Module) -> Broken:
    if not is_within(module.name, ("bookie_service",)) or is_within(module.name, SERVER_FILE_MODULES):
        return
    for imported in module.imports:
        if imported.target.partition(".")[0] in FILE_LIBRARIES:
            yield imported.line, f"imports {imported.target}; only {SERVER_FILE_MODULES[0]} touches files"
    for node in module.nodes:
        if (call := _file_call(node)) is not None:
            yield node.lineno, f"uses {call}; only {SERVER_FILE_MODULES[0]} touches files"


def _file_call(node: ast.AST) -> str | None:
    """Return the file operation that a node is, or None."""
    if isinstance(node, ast.ImportFrom) and node.module in ("os", "os.path"):
        names = (f"{node.module}.{alias.name}" for alias in node.names)
        return next((name for name in names if name not in OS_WITHOUT_FILES), None)
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("os", "os.path"):
        name = ast.unparse(node)
        return None if name in OS_WITHOUT_FILES else name
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Name) and node.func.id == "open":
        return "open()"
    if isinstance(node.func, ast.Attribute) and node.func.attr in PATH_CALLS:
        is_paths = node.func.attr.startswith("write_") or not node.args
        return f"Path.{node.func.attr}()" if is_paths else None
    return None


def _readings_change_nothing(module: Module) -> Broken:
    if not is_within(module.name, ("bookie_service",)) or not any(_is_reading(node) for node in module.nodes):
        return
    for imported in module.imports:
        if is_within(imported.target, CHANGING):
            yield imported.line, f"has requests that change nothing but imports {imported.target}"
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and node.attr in CHANGING_CALLS:
            yield node.lineno, f"has requests that change nothing but uses .{node.attr}"


def _is_reading(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and READING in (node.name, *map(ast.unparse, node.bases))


SOCKETS = _words("socket selectors h11 http.server ssl")
WITHOUT_SOCKETS = ("bookie_service.operation", "bookie_service.metrics")
"""What operators see and do has one place; sockets are its faces, above."""


def _commands_know_no_socket(module: Module) -> Broken:
    if is_within(module.name, WITHOUT_SOCKETS):
        for imported in module.imports:
            if imported.target in SOCKETS:
                yield imported.line, f"imports {imported.target}; the face above it has the sockets"


_RULES: tuple[Callable[[Module], Broken], ...] = (
    _no_relative_import,
    _downwards_only,
    _server_downwards_only,
    _server_imports_little,
    _console_is_a_client,
    _stays_at_home,
    _pure_is_pure,
    _claim_of_purity_is_checked,
    _decides_without_protocol,
    _nothing_inherits_from_a_core,
    _server_files_have_one_door,
    _readings_change_nothing,
    _commands_know_no_socket,
)
