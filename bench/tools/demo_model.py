"""The model that every bench serves: the demo tokenizer that the package ships."""

from bench.tools.paths import ROOT

MODEL = "demo"
MODEL_FOLDER = ROOT / "proxy/tokenlane/tokens/demo"
