#!/usr/bin/env bash
# Tries `lily serve` with the clients that are too many or too heavy for the test of every commit, and records what came out
# in RESULTS.md. By hand; installs what it needs below target/ and node_modules/, at the versions of the files beside it.
#
#     tools/clients/run.sh                  # all
#     tools/clients/run.sh page router      # some: node python page router
#
# Wants a release build of the program, Python 3.10, Node 20, and Chromium for the page; what is missing is told.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
export LILY="${LILY:-$root/target/release/lily}"
venv="$root/target/clients/by-hand"
parts=("$@")
[ "$#" -gt 0 ] || parts=(node python page router)
[ -x "$LILY" ] || { echo "there is no $LILY: cargo build --release"; exit 2; }

# A virtual environment with these versions.
python_clients() {
    if ! cmp -s requirements-by-hand.txt "$venv/installed.txt"; then
        python3 -m venv --clear "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements-by-hand.txt
        cp requirements-by-hand.txt "$venv/installed.txt"
    fi
}

node_clients() {
    [ -d node_modules ] || npm ci --no-audit --no-fund --silent
}

part() {
    case "$1" in
        node) node_clients && python3 lily.py node node_clients.mjs ;;
        python) python_clients && python3 lily.py "$venv/bin/python" -W ignore python_clients.py ;;
        page) node_clients && node page/check.mjs "$LILY" ;;
        router) python_clients && "$venv/bin/python" -W ignore router/check.py ;;
        *) echo "no part $1; there are: node python page router"; return 2 ;;
    esac
}

results=$(mktemp)
failed=0
for name in "${parts[@]}"; do
    part "$name" 2>/dev/null | tee -a "$results" || failed=1
done
grep -q '^FAILED' "$results" && failed=1

if [ "$#" -eq 0 ]; then
    {
        echo "# What other clients made of \`lily serve\`"
        echo
        echo "Written by \`tools/clients/run.sh\` on $(date -u +%F), $("$LILY" --version), commit $(git rev-parse --short HEAD)."
        echo "The server ran the built-in model."
        echo
        echo "Versions: $(grep -v '^#' requirements-by-hand.txt | tr '\n' ' ' | sed 's/ $//; s/ /, /g'),"
        echo "$(node -p 'Object.entries(require("./package.json").dependencies).map((pair) => pair.join(" ")).join(", ")'),"
        echo "Node $(node --version), $(python3 --version)."
        echo
        echo "| check | result |"
        echo "| --- | --- |"
        sed -nE 's/^ok +(.*)$/| \1 | passed |/p; s/^FAILED +([^:]*: [^:]*)(:.*)?$/| \1 | **failed**\2 |/p; s/^SKIP +(.*)$/| \1 | skipped |/p' "$results"
        echo
        echo "$(grep -c '^ok' "$results") passed, $(grep -c '^FAILED' "$results" || true) failed, $(grep -c '^SKIP' "$results" || true) skipped."
    } > RESULTS.md
fi
rm "$results"
exit "$failed"
