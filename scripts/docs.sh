#!/usr/bin/env bash
# Copies the documents of a package: scripts/docs.sh FOLDER. tests/tests/links.rs checks their
# links.
set -euo pipefail
to=$(realpath -m "$1")
cd "$(dirname "$0")/.."
install -d -m 755 "$to"
install -m 644 README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md "$to/"
cp -r --no-preserve=ownership docs examples "$to/"

install -d -m 755 "$to/crates/engine"
cp -r --no-preserve=ownership crates/engine/examples "$to/crates/engine/"
