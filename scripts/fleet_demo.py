"""Three gateways that share a store, behind one port, in front of simulated replicas.

    python -m scripts.fleet_demo [--port 8080] [--admin-port 8081] [--gateways 3]

The kernel spreads connections over the gateways (`server.share_port`); elsewhere a load balancer
does. Their admin ports follow each other.
"""

import argparse
import contextlib
import signal
import subprocess
import sys
import time

from bench.tools.client import fetch
from bench.tools.store_server import StoreServer
from tokenlane.cli.verbs.serving import curl_line
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.tokens.demo import demo_folder

REPLICAS = 4
DRAIN_S = 40.0
READY_S = 60.0


def main() -> int:
    """Serve until Ctrl-C; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8080, help="of all gateways (default: 8080)")
    parser.add_argument("--admin-port", type=int, default=8081, help="of the first (default: 8081)")
    parser.add_argument("--gateways", type=int, default=3, help="how many (default: 3)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(StoreServer())
        events = ("--kv-events", "maps", "--token-interval-s", "0.02")
        fleet = stack.enter_context(FleetProcess(REPLICAS, free_ports(REPLICAS), events))
        argv = [
            sys.executable, "-m", "tokenlane", "serve", "--backend", *fleet.urls,
            "--tokenizer", f"demo={demo_folder()}", "--fleet-store", store.url,
            "--port", str(options.port), "--server-share-port", "true",
        ]  # fmt: skip
        gateways = []
        for number in range(options.gateways):
            port = options.admin_port + number
            gateways.append(subprocess.Popen([*argv, "--admin-port", str(port)]))
            print(f"gateway {number + 1}: http://127.0.0.1:{port}/", flush=True)
        stack.callback(_stop, gateways)
        for number in range(options.gateways):
            _wait_ready(options.admin_port + number)
        print(f"\nTry it:\n\n{curl_line(f'http://127.0.0.1:{options.port}')}\n", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            codes = [gateway.wait() for gateway in gateways]
            return max(codes)
    return 0


def _wait_ready(admin_port: int) -> None:
    ends_s = time.monotonic() + READY_S
    while time.monotonic() < ends_s:
        if fetch(admin_port, "/readyz").status == 200:
            return
        time.sleep(0.1)
    raise SystemExit(f"the gateway with admin port {admin_port} is not ready")


def _stop(gateways: list[subprocess.Popen[bytes]]) -> None:
    for gateway in gateways:
        gateway.terminate()
    for gateway in gateways:
        gateway.wait(DRAIN_S)


if __name__ == "__main__":
    raise SystemExit(main())
