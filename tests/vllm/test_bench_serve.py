"""vLLM's own load generator, through the gateway."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.vllm.conftest import Report
from tests.vllm.processes import VLLM_ENVIRONMENT, Server

COUNT = 24
# As `vllm bench serve`: the CPU build comes without the `vllm` command.
RUN = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)


@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")],
)
def test_bench_serve(
    vllm_python: Path,
    gateway: Server,
    model_folder: Path,
    report: Report,
    tmp_path: Path,
    backend: str,
    endpoint: str,
) -> None:
    command = [str(vllm_python), "-c", RUN, "--backend", backend, "--endpoint", endpoint]
    command += ["--base-url", gateway.url, "--model", "tiny", "--tokenizer", str(model_folder)]
    command += ["--dataset-name", "random", "--num-prompts", str(COUNT), "--random-input-len", "64"]
    command += ["--random-output-len", "8", "--save-result", "--result-dir", str(tmp_path)]
    command += ["--result-filename", "result.json"]
    done = subprocess.run(
        command, capture_output=True, check=False, env=os.environ | VLLM_ENVIRONMENT, timeout=200
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["total_output_tokens"]) == (COUNT, 8 * COUNT)
    report.add(f"vllm bench serve, {backend}: requests completed", result["completed"])
