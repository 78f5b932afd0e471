"""The site, out of docs/*.md and the pages at the top of the repository:

    python -m scripts.site [FOLDER]       (build/site; `make docs` installs what it needs)

Invariants:
- The sources are what people read in the repository, links included; here links are turned into
  the site's, and one to a file that the site does not have becomes its path.
- Nothing is fetched, and a link or an anchor that leads nowhere fails the build.
"""

import posixpath
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
# In the repository, and on the site.
MOVED = {"README.md": "index.md", "config": "examples.md"}
TOP = {
    "README.md": "index.md",
    "THREAT_MODEL.md": "THREAT_MODEL.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
# As the README groups its links.
PARTS = {
    "Start": (
        "getting-started settings examples clients other-servers from-production-stack "
        "from-sglang-router from-litellm"
    ),
    "Operate": (
        "deploy fleet changing upgrading tuning runbook page dashboards metrics access-log tracing "
        "configuration"
    ),
    "Understand": (
        "architecture routing ladder exactness stalls kv-events reliability THREAT_MODEL "
        "amplification conformance vllm performance bench engine"
    ),
    "Develop": "contributing releasing CHANGELOG",
}
SETTINGS = {
    "project": "tokenlane",
    "extensions": ["myst_parser"],
    "html_theme": "furo",
    "html_title": "tokenlane",
    "html_copy_source": False,
    "html_show_copyright": False,
    "myst_heading_anchors": 4,
    "highlight_language": "none",
}


def examples() -> str:
    """The page of the example configurations."""
    lines = ["# Example configurations", ""]
    for path in sorted((ROOT / "config").glob("*.yaml")):
        lines += [f"## {path.stem}", "", f"`config/{path.name}`:", "", "```yaml"]
        lines += [path.read_text(encoding="utf-8").rstrip(), "```", ""]
    return "\n".join(lines)


def contents() -> str:
    """What the margin lists."""
    lines = []
    for part, pages in PARTS.items():
        lines += ["", "```{toctree}", ":hidden:", f":caption: {part}", "", *pages.split(), "```"]
    return "\n".join(lines) + "\n"


def turned(text: str, folder: str, pages: set[str]) -> str:
    """A page with the site's links. folder: where its source is; pages: of the site."""

    def link(found: re.Match[str]) -> str:
        image, words, target, anchor = found.groups()
        if re.match(r"[a-z]+:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        here = MOVED.get(path, path.removeprefix("docs/"))
        if here not in pages:
            return f"`{path}`" if words.strip("`/") in path else f"{words} (`{path}`)"
        return f"{image}[{words}]({here}{anchor or ''})"

    return LINK.sub(link, text)


def gather(to: Path) -> None:
    """The sources of the site."""
    shutil.copytree(ROOT / "docs" / "img", to / "img")
    sources = {page: f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    texts = {page.name: (page.read_text(encoding="utf-8"), "docs") for page in sources}
    for name, here in TOP.items():
        texts[here] = (ROOT / name).read_text(encoding="utf-8"), ""
    texts["examples.md"] = examples(), ""
    pages = {*texts, *(f"img/{picture.name}" for picture in (to / "img").iterdir())}
    for name, (text, folder) in texts.items():
        made = turned(text, folder, pages) + (contents() if name == "index.md" else "")
        (to / name).write_text(made, encoding="utf-8")


def build(to: Path) -> int:
    """Builds the site; the exit code."""
    from sphinx.cmd.build import build_main

    source = to.with_name(to.name + "-source")
    for folder in (to, source):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    gather(source)
    (source / "conf.py").write_text(
        "".join(f"{name} = {value!r}\n" for name, value in SETTINGS.items())
    )
    return int(build_main(["-q", "-W", "--keep-going", "-b", "html", str(source), str(to)]))


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"))
