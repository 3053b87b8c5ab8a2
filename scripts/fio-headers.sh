#!/usr/bin/env bash
# Fetches the headers of the installed fio from the distribution's source package, configures them,
# and prints their folder. An engine is compiled against them. Needs no root. Fetches once, and
# keeps them in the target folder.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v fio >/dev/null || { echo "fio is not installed. Debian: apt-get install fio" >&2; exit 1; }
version=$(dpkg-query -W -f '${source:Version}' fio)
into=$(realpath -m "${CARGO_TARGET_DIR:-target}")/fio-$version
if [ -e "$into/configured" ]; then
    echo "$into"
    exit
fi
mkdir -p "$into.part"
exec 9>"$into.part/lock"
flock 9
if [ -e "$into/configured" ]; then
    echo "$into"
    exit
fi

# Runs apt with its own lists of source packages, from the machine's sources that offer fio. The
# machine's lists stay as they are.
apt=$into.part/apt
mkdir -p "$apt/sources" "$apt/lists" "$apt/cache"
own=(-o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$apt/sources" -o "Dir::State::lists=$apt/lists"
    -o "Dir::Cache=$apt/cache" -o "APT::Sandbox::User=$(id -un)" -o "Acquire::Retries=3")
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -e "$file" ] || continue
    # Archives of the distribution have a component main; others may have no sources at all.
    grep -Eq '^(deb .* main|Components:.*\bmain\b)' "$file" || continue
    grep -Eq '(deb|archive|security|ports|ftp)[.a-z]*\.(debian|ubuntu)\.|/(debian|ubuntu)' "$file" || continue
    sed -E '/^deb(-src)? cdrom:/d; s/^Types:.*/Types: deb-src/; s/^deb /deb-src /' "$file" > "$apt/sources/${file##*/}"
done
apt-get "${own[@]}" -qq update >&2
(cd "$into.part" && apt-get "${own[@]}" -qq source --download-only "fio=$version" >&2)
rm -rf "$into"
mkdir "$into"
tar -xf "$into.part"/fio_*.orig.tar.?z --strip-components=1 -C "$into"
(cd "$into" && ./configure --disable-native >configure.log 2>&1) || { cat "$into/configure.log" >&2; exit 1; }
touch "$into/configured"
echo "$into"
