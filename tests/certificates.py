"""Certificates for tests, made by openssl."""

import shutil
import subprocess
from pathlib import Path

import pytest


def made_certificates(folder: Path) -> Path:
    """Make ca.pem, and node.pem with node.key by it for 127.0.0.1; return the folder. Skips the
    test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for words in (
        ("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca",
         "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=keyCertSign"),
        ("req", *key, "-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=node"),
        ("x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
         "-CAcreateserial", "-extfile", "ext", "-out", "node.pem", "-days", "2"),
    ):  # fmt: skip
        subprocess.run(("openssl", *words), cwd=folder, check=True, capture_output=True)
    return folder
