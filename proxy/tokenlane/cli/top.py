"""`tokenlane top`: the live page in a terminal.

Invariants:
- The terminal is as it was when this ends, however it ends.
- Where nobody can press a key (a pipe, a file), one screen is all there is.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import TextIO

from tokenlane.cli.admin_client import ErrorAnswer, Unreachable, ask, understood
from tokenlane.cli.output import take_any_letter
from tokenlane.config.secret import ADMIN_TOKEN_VARIABLE
from tokenlane.control.dashboard.live import Live
from tokenlane.control.dashboard.screen import draw

PERIOD_S = 1.0
DEADLINE_S = 5.0
# One screen, where there is no screen.
_FILE_COLUMNS, _FILE_LINES = 160, 80
_ENTER = "\x1b[?1049h\x1b[?25l"  # another screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def fetch(url: str, headers: Mapping[str, str]) -> Live:
    """Return the current `/live.json`. Raise Unreachable."""
    try:
        told = ask(url, "GET", "/live.json", timeout_s=DEADLINE_S, headers=headers)
        return understood(told, Live, url)
    except ErrorAnswer as error:
        if error.status == HTTPStatus.UNAUTHORIZED:
            raise Unreachable(
                f"{url} wants the admin token: --admin-token-file, or {ADMIN_TOKEN_VARIABLE}"
            ) from None
        raise Unreachable(
            f"{url} answers with status {error.status}: is it the admin port of a gateway?"
        ) from None


def top(url: str, headers: Mapping[str, str], *, once: bool) -> int:
    """Show the gateway behind this admin URL until `q`; the exit code. headers: with the admin
    token, where there is one."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not once
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    if not interactive:
        try:
            live = fetch(url, headers)
        except Unreachable as why:
            sys.stderr.write(f"tokenlane: {why}\n")
            return 1
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _FILE_COLUMNS
        _print(draw(live, width, _FILE_LINES, colour=colour))
        return 0
    with _screen(sys.stdin, sys.stdout) as pressed:
        while True:
            _show(sys.stdout, _frame(url, headers, colour))
            if pressed(PERIOD_S) in {"q", "Q", "\x03", "\x04", ""}:
                return 0


def _print(text: str) -> None:
    """To stdout, whatever its encoding, and without a word if nobody reads on (`| head -1`)."""
    take_any_letter()
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _frame(url: str, headers: Mapping[str, str], colour: bool) -> str:
    size = shutil.get_terminal_size()
    try:
        return draw(fetch(url, headers), size.columns, size.lines - 1, colour=colour) + "q quits"
    except Unreachable as why:
        return f"{why}\n\ntrying again every second; q quits"


def _show(out: TextIO, frame: str) -> None:
    """Show a screen in one write, which does not flicker."""
    out.write(_HOME + frame.replace("\n", f"{_REST_OF_LINE}\n") + _REST_OF_LINE + _REST_OF_SCREEN)
    out.flush()


@contextlib.contextmanager
def _screen(keys: TextIO, out: TextIO) -> Iterator[Callable[[float], str | None]]:
    """Open an alternate screen, and return a function that waits for a key: None where none came in
    time."""
    before = termios.tcgetattr(keys)

    def pressed(wait_s: float) -> str | None:
        ready, _, _ = select.select([keys], [], [], wait_s)
        return os.read(keys.fileno(), 1).decode("ascii", "replace") if ready else None

    for ends in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ends, lambda number, _: sys.exit(128 + number))
    try:
        tty.setcbreak(keys)
        out.write(_ENTER)
        yield pressed
    finally:
        out.write(_LEAVE)
        out.flush()
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
