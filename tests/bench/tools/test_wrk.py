"""wrk's report is read whole: its errors as well as its rate."""

import pytest

from bench.tools import wrk
from bench.tools.processes import BenchError

REPORT = """\
Running 3s test @ http://127.0.0.1:8080
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   407.12us  110.02us   3.10ms   80.51%
    Req/Sec    70.81k     2.11k   74.00k    70.00%
  Latency Distribution
     50%  327.00us
     75%  402.00us
     90%  488.00us
     99%    1.25ms
  212509 requests in 3.00s, 98.11MB read
Requests/sec:  70814.73
Transfer/sec:     32.70MB
"""

TROUBLED = REPORT.replace(
    "Requests/sec",
    "  Socket errors: connect 1, read 2, write 3, timeout 4\n"
    "  Non-2xx or 3xx responses: 17\nRequests/sec",
)


def test_a_clean_report() -> None:
    assert wrk.parse(REPORT) == wrk.Report(70814.73, 212509, 327e-6, 1.25e-3, 0, 0)


def test_wrk_pads_seconds() -> None:
    assert wrk.parse(REPORT.replace("1.25ms", "2.96s ")).p99_s == 2.96


def test_errors_are_kept() -> None:
    report = wrk.parse(TROUBLED)
    assert (report.errors, report.refused) == (10, 17)


@pytest.mark.parametrize("text", ["", "unable to connect to 127.0.0.1:1 Connection refused"])
def test_no_report_is_an_error(text: str) -> None:
    with pytest.raises(BenchError, match="no report"):
        wrk.parse(text)


def test_bodies_become_lua_strings() -> None:
    assert wrk.quoted(b'{"a": "b\\n"}') == '"{\\"a\\": \\"b\\\\n\\"}"'


@pytest.mark.parametrize("number", [0, 99_999_999, 100_000_000, 10**wrk.DIGITS - 1])
def test_a_body_is_as_long_as_its_head_says_whatever_its_number(number: int) -> None:
    before, after = b"{", b"}"
    script = wrk.script_of_parts("/p", [(before, after)], [1], number)
    assert f"#part[1] + {len(wrk.spelled(number))} + #part[2]" in script
    assert f'string.format("%0{len(wrk.spelled(number)) // 2}d", number)' in script
