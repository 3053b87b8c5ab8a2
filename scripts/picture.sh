#!/usr/bin/env bash
# Draws docs/picture.svg, the terminal at the top of the README, from a real run: scripts/picture.sh
# [LANEFS]. Runs the commands in a folder of their own, and draws their output unchanged. Needs
# e2fsck, and FUSE for the mount.
set -euo pipefail
cd "$(dirname "$0")/.."
lanefs=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/release/lanefs}")
out=$PWD/docs/picture.svg
dir=$(mktemp -d)
trap 'umount "$dir/mnt" 2> /dev/null || true; rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/mnt"
ln -s "$lanefs" "$dir/bin/lanefs"
cd "$dir"
export PATH=$dir/bin:$PATH SOURCE_DATE_EPOCH=1700000000 TZ=UTC LC_ALL=C.UTF-8
mkdir -p rootfs/etc
echo lane > rootfs/etc/hostname

commands=(
    'lanefs mkfs --size 2G -U 8dbfe019-3bda-4437-be04-22e30aea396d disk.img'
    'lanefs import --owner 0:0 ./rootfs disk.img:/'
    'lanefs ls -lR disk.img:/etc'
    'lanefs mount disk.img mnt'
    'echo hello > mnt/etc/motd'
    'lanefs umount mnt'
    'lanefs check disk.img'
    'e2fsck -fn disk.img'
)
columns=88 size=14 line=20 pad=16
transcript=$dir/transcript
for command in "${commands[@]}"; do
    echo "\$ $command" >> "$transcript"
    bash -c "$command" >> "$transcript" 2>&1
done

# Escapes XML's special characters, and wraps at the width of the terminal.
escaped() {
    fold -s -w "$columns" "$transcript" | sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g'
}

height=$(($(escaped | wc -l) * line + 2 * pad))
width=$((columns * size * 6 / 10 + 2 * pad))
{
    echo "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 $width $height\" width=\"$width\" height=\"$height\" role=\"img\">"
    echo '<title>A volume is made, filled, mounted and checked with lanefs, and judged by e2fsck</title>'
    echo "<style>text { font: ${size}px ui-monospace, Menlo, Consolas, monospace; white-space: pre; fill: #d0d7de } .command { fill: #7ee787 }</style>"
    echo "<rect width=\"$width\" height=\"$height\" rx=\"8\" fill=\"#161b22\"/>"
    y=$((pad + size))
    escaped | while IFS= read -r text; do
        class=
        case $text in '$ '*) class=' class="command"' ;; esac
        echo "<text x=\"$pad\" y=\"$y\"$class xml:space=\"preserve\">$text</text>"
        y=$((y + line))
    done
    echo '</svg>'
} > "$out"
echo "$out: $(grep -c '<text' "$out") lines"
