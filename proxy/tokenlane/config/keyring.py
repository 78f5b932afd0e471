"""Keys out of files and the environment: those of clients, as digests, and the one for replicas.

Invariants:
- No setting holds a secret: settings are printed, shown and sent about. What is secret is read
  where it is used, from a file or a variable, into a Secret.
- A process gets of the variables that hold secrets what it needs itself (`environment`).
- A mistake in a file of keys is reported with its line and without its content.
"""

import os
import re
from collections.abc import Mapping
from math import inf
from pathlib import Path

import msgspec

from tokenlane.config.secret import (
    ADMIN_TOKEN_VARIABLE,
    REPLICA_KEY_VARIABLE,
    SECRET_VARIABLES,
    STORE_PASSWORD_VARIABLE,
    Secret,
)
from tokenlane.config.settings import (
    AdminSettings,
    AuthSettings,
    FleetSettings,
    Key,
    UpstreamSettings,
)
from tokenlane.errors import ConfigError, ConfigProblems

# Of the hub's client, which only the control plane runs.
HUB_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")


def client_keys(settings: AuthSettings) -> tuple[Key, ...] | None:
    """All keys that clients may use; None where none are configured and all may come in.

    Raises ConfigError.
    """
    if not settings.keys and not settings.keys_file:
        if settings.tenants:
            raise ConfigError("auth.tenants: names tenants, but there is no key: set auth.keys")
        return None
    keys = settings.keys + (_from_file(Path(settings.keys_file)) if settings.keys_file else ())
    problems = [
        f"auth.tenants.{name}: has no key"
        for name in sorted(set(settings.tenants) - {key.tenant for key in keys})
    ]
    if len({key.digest for key in keys}) < len(keys):
        problems.append("auth.keys: a key is given twice")
    if problems:
        raise ConfigProblems(problems)
    return keys


def _from_file(path: Path) -> tuple[Key, ...]:
    import yaml  # noqa: PLC0415 - a worker that reads no keys starts 20 ms sooner

    from tokenlane.config.settings_file import line_of, place_of, read_yaml  # noqa: PLC0415 - as above
    from tokenlane.config.validation import Validation  # noqa: PLC0415 - as above

    try:
        listed, node, twice = read_yaml(path, _text(path, "auth.keys_file"), inf)
        for (key, _), first in twice.items():
            raise ConfigError(
                f"{path}:{key.start_mark.line + 1}: gives a field twice, first in line {first};"
                " the last would count"
            )
        try:
            return msgspec.convert(listed or [], tuple[Key, ...])
        except msgspec.ValidationError:
            checked = Validation(lambda at: f"{path}:{line_of(node, at[1:])}", secret=True)
            checked.right(listed, tuple[Key, ...], ("keys",))
            raise ConfigProblems(checked.problems) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{place_of(error, path)}: is not YAML") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, ValueError):
        # PyYAML does not catch what its constructors raise: 2027-02-30 is a date to it.
        raise ConfigError(f"{path}: holds an invalid value") from None


def replica_key(
    settings: UpstreamSettings, environ: Mapping[str, str] = os.environ
) -> Secret | None:
    """Return the key shown to replicas instead of clients' keys. Raise ConfigError."""
    setting = "upstream.api_key_file", settings.api_key_file
    return _secret("the replicas' key", *setting, REPLICA_KEY_VARIABLE, environ)


def admin_token(settings: AdminSettings, environ: Mapping[str, str] = os.environ) -> Secret | None:
    """Return the token that changes over the admin port must show; None: changes are off. Raise
    ConfigError."""
    setting = "admin.token_file", settings.token_file
    return _secret("the admin token", *setting, ADMIN_TOKEN_VARIABLE, environ)


def store_password(
    settings: FleetSettings, environ: Mapping[str, str] = os.environ
) -> Secret | None:
    """Return the password for the store that gateways share. Raise ConfigError."""
    setting = "fleet.password_file", settings.password_file
    return _secret("the store's password", *setting, STORE_PASSWORD_VARIABLE, environ)


def environment(*needed: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a child process: everything but the secrets that it does not
    need."""
    kept_back = {*SECRET_VARIABLES, *HUB_VARIABLES} - set(needed)
    return {name: value for name, value in environ.items() if name not in kept_back}


def _secret(
    what: str, setting: str, file: str, variable: str, environ: Mapping[str, str]
) -> Secret | None:
    """Return what is in the file that a setting names, else the value of a variable."""
    source, text = variable, environ.get(variable, "")
    if file:
        source, text = file, _text(Path(file), setting).strip()
    elif not text:
        return None
    if _TOKEN.fullmatch(text) is None:
        raise ConfigError(f"{source}: {what} must be one line of printable ASCII")
    return Secret(text.encode("ascii"))


def _text(path: Path, setting: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{setting}: {path} is not UTF-8 text") from None
