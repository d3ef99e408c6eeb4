"""Engines in Java, which run in a process of their own."""

import functools
import shutil
from pathlib import Path
from typing import Any

from groundling.errors import ConfigError


def start_java(engine: str, jar: str, *options: str) -> Any:
    """Start a JVM that runs a ``jar``, with ``options`` of the JVM, and return py4j's gateway to it.

    The JVM exits no later than this process.

    Raises:
        ConfigError: Java is missing.
    """
    if shutil.which("java") is None:
        raise ConfigError(f"{engine} needs Java 8 or newer, but there is no `java` on the PATH: install a JRE")
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    port, process = launch_gateway(
        classpath=jar,
        javaopts=[*options],
        die_on_exit=True,
        cwd=str(Path(jar).parent),  # holds the engine's data files
        return_proc=True,
        create_new_process_group=True,  # Ctrl-C is for the run, which then saves a checkpoint
    )
    return JavaGateway(gateway_parameters=GatewayParameters(auto_field=True, port=port), java_process=process)


def stop_java(gateway: Any) -> None:
    """Stop the JVM of a gateway, which `JavaGateway.shutdown` alone does not."""
    gateway.shutdown()
    gateway.java_process.terminate()
    gateway.java_process.wait()
    gateway.java_process.stdin.close()


shared_java = functools.cache(start_java)
