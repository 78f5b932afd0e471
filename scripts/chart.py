"""The chart's values.schema.json, by which Helm refuses a misspelt value and changes nothing:

    python -m scripts.chart

Invariants:
- Every value of values.yaml is in it, with its type there; `settings` are the gateway's own
  (config/schema.json). What Kubernetes has the words for (resources, extraVolumes …) is left to it.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from tokenlane.config.loading import schema
from tokenlane.config.settings import Settings

CHART = Path(__file__).parents[1] / "deploy" / "helm" / "tokenlane"
SCHEMA = CHART / "values.schema.json"
# Helm 3 and 4 both read this one.
_DIALECT = "http://json-schema.org/draft-07/schema#"
_TYPES = {bool: "boolean", int: "integer", str: "string"}
# Sections whose fields are Kubernetes' or the user's own.
_FREE = {
    "affinity", "annotations", "commonLabels", "labels", "nodeSelector", "podAnnotations",
    "podLabels", "resources", "timeouts",
}  # fmt: skip
# Lists of names; all others are of objects, in Kubernetes' words.
_NAMES = {"hosts", "hostnames"}
_ALSO = {"maxUnavailable": ["integer", "string"]}  # a number or a share


def _shape(name: str, value: Any) -> dict[str, Any]:
    if name in _FREE:
        return {"type": "object"}
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "string" if name in _NAMES else "object"}}
    if not isinstance(value, dict):
        return {"type": _ALSO.get(name, _TYPES[type(value)])}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {key: _shape(key, one) for key, one in value.items()},
    }


def values_schema(kind: type[Settings] = Settings) -> dict[str, Any]:
    """As it is written."""
    own = schema(kind)
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    made = _shape("", values)
    made["properties"]["settings"] = {"$ref": own["$ref"]}
    made["properties"]["global"] = {"type": "object"}  # Helm's, of a chart that has this one
    return {"$schema": _DIALECT, "title": "tokenlane", **made, "$defs": own["$defs"]}


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(values_schema(), indent=1) + "\n", encoding="utf-8")
