"""What `helm test` asks a release: is it ready, and which models does it serve?

python -c SCRIPT ADMIN_URL GATEWAY_URL; it needs nothing but Python. The exit code is 1, with a
sentence, where the gateway is not ready or does not answer.
"""

import json
import ssl
import sys
import urllib.error
import urllib.request

# The admin port answers under this name wherever it is.
HOST = {"Host": "localhost"}
# A certificate names the gateway as its clients do, not as the service is called; nothing secret
# is sent.
ANYBODY = ssl.create_default_context()
ANYBODY.check_hostname = False
ANYBODY.verify_mode = ssl.CERT_NONE


def ask(url: str) -> tuple[int, str]:
    """Return status and body."""
    request = urllib.request.Request(url, headers=HOST)
    try:
        with urllib.request.urlopen(request, timeout=10, context=ANYBODY) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        sys.exit(f"{url} does not answer: {error}")


def main(admin: str, gateway: str) -> None:
    """Ask both ports; exit with a sentence where something is wrong."""
    status, body = ask(f"{admin}/readyz")
    if status != 200:
        sys.exit(f"not ready ({status}): {body}")
    print("ready")
    status, body = ask(f"{gateway}/v1/models")
    if status == 200:
        print("models:", ", ".join(model["id"] for model in json.loads(body)["data"]))
    elif status == 401:
        print("models: for clients with a key")
    else:
        sys.exit(f"{gateway}/v1/models answers {status}: {body}")


if __name__ == "__main__":
    main(*sys.argv[1:])
