"""How busy this machine's accelerators are, as NVIDIA's driver counts them (NVML).

Invariants:
- Where there is no driver, or it does not answer, nothing is known: never an error.
- Only replicas on this machine are told of, and all alike: which device serves which of them is not
  known here.
"""

import ctypes
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from tokenlane.fleet_state import ReplicaState

LIBRARY = "libnvidia-ml.so.1"


class _Utilization(ctypes.Structure):
    """NVML's nvmlUtilization_t: percent of the last fraction of a second."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Accelerators:
    """Those of this machine. library: NVML's name or path."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._devices: list[ctypes.c_void_p] = []
        try:
            self._nvml = nvml = ctypes.CDLL(library)
            count = ctypes.c_uint()
            if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
                return
            for index in range(count.value):
                device = ctypes.c_void_p()
                handle = ctypes.c_uint(index), ctypes.byref(device)
                if not nvml.nvmlDeviceGetHandleByIndex_v2(*handle):
                    self._devices.append(device)
        except (OSError, AttributeError):
            # No driver, or another library of this name.
            self._devices = []

    def of(self, replicas: Iterable[ReplicaState]) -> dict[str, float]:
        """Return the mean share of the time that they work, by replica's id; nothing of replicas
        elsewhere."""
        shares = []
        for device in self._devices:
            used = _Utilization()
            if not self._nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(used)):
                shares.append(used.gpu / 100)
        if not shares:
            return {}
        return {one.id: sum(shares) / len(shares) for one in replicas if _is_here(one.url)}


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
