"""Start and stop engines written in Java, which run in a separate process."""

import functools
import shutil
from pathlib import Path
from typing import Any

from groundling.errors import ConfigError


def start_java(engine: str, jar: str, *options: str) -> Any:
    """Start a JVM with the given ``options`` and ``jar``, and return a py4j gateway to it.

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
        cwd=str(Path(jar).parent),  # contains the engine's data files
        return_proc=True,
        create_new_process_group=True,  # Ctrl-C should reach only the run, which then saves a checkpoint
    )
    return JavaGateway(gateway_parameters=GatewayParameters(auto_field=True, port=port), java_process=process)


def stop_java(gateway: Any) -> None:
    """Stop a gateway's JVM, which `JavaGateway.shutdown` alone leaves running."""
    gateway.shutdown()
    gateway.java_process.terminate()
    gateway.java_process.wait()
    gateway.java_process.stdin.close()


shared_java = functools.cache(start_java)
