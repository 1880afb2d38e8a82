#!/usr/bin/env bash
# The CPU engine on aarch64 without such a processor: builds tests and binary for aarch64 Linux, runs them under
# qemu-user with and without the dot products that the NEON kernels need, and type-checks the crates for macOS.
# Says nothing about speed. Installs nothing; what is missing is named. The last line is `N passed, N failed, N skipped`.
# With --long also the byte comparisons of whole models between instruction sets, which take half an hour more.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec </dev/null

target=aarch64-unknown-linux-gnu
apple=aarch64-apple-darwin
libc=/usr/aarch64-linux-gnu
out=$PWD/target/aarch64
# Seed, offset: what of the engine's byte comparisons is cheap. The kernels' own tests compare the sets.
bytes=(bytes::seeded_sampling bytes::weights_at_any_byte)
case ${1:-} in
    "") ;;
    --long) bytes+=(bytes::every_architecture bytes::any_thread_count) ;;
    *)
        echo "tools/aarch64/check.sh [--long]" >&2
        exit 2
        ;;
esac
with_dots=max
without_dots=cortex-a57

missing=()
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) || missing+=("qemu-aarch64 (apt: qemu-user)")
command -v aarch64-linux-gnu-gcc >/dev/null || missing+=("aarch64-linux-gnu-gcc (apt: gcc-aarch64-linux-gnu)")
[ -e "$libc/lib/ld-linux-aarch64.so.1" ] || missing+=("$libc (apt: libc6-dev-arm64-cross)")
rustlib=$(rustc --print sysroot)/lib/rustlib
if [ -d "$rustlib/$target/lib" ]; then
    std=()
elif [ -e "$rustlib/src/rust/library/Cargo.lock" ]; then
    # What -Z needs of a stable toolchain.
    export RUSTC_BOOTSTRAP=1
    std=(-Zbuild-std)
else
    missing+=("std for $target (rustup target add $target), or its source (rustup component add rust-src)")
fi
if [ "${#missing[@]}" -gt 0 ]; then
    echo "tools/aarch64/check.sh needs:" >&2
    printf '  %s\n' "${missing[@]}" >&2
    exit 1
fi

export CARGO_TARGET_DIR=$out
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
logs=$out/check
rm -rf "$logs"
mkdir -p "$logs"

rows=()
passed=0
failed=0
skipped=0

# row OUTCOME SECONDS NAME NOTE: a line of the table, printed at the end.
row() {
    rows+=("$(printf '%-7s %5ss  %s%s' "$1" "$2" "$3" "${4:+: $4}")")
}

# step NAME COMMAND…: counts as one.
step() {
    local name=$1 start=$SECONDS
    shift
    echo "== $name"
    if "$@"; then
        passed=$((passed + 1))
        row passed $((SECONDS - start)) "$name"
    else
        failed=$((failed + 1))
        row FAILED $((SECONDS - start)) "$name"
    fi
}

# Sum of the numbers before a word in the results of a log.
count() {
    grep -o "test result: .*" "$1" | grep -oE "[0-9]+ $2" | awk '{ n += $1 } END { print n + 0 }'
}

# tests NAME CPU PACKAGE ARGUMENTS…: counts every test.
tests() {
    local name="$1, $2" cpu=$2 package=$3 start=$SECONDS outcome=passed log skips ok bad ignored
    shift 3
    log="$logs/${name//[^a-z0-9]/-}.log"
    echo "== $name"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -cpu $cpu -L $libc"
    cargo test --locked --release --no-fail-fast --target "$target" "${std[@]}" -p "$package" "$@" --nocapture 2>&1 |
        tee "$log" || outcome=FAILED
    # `-a`: what a test prints may be anything.
    skips=$(grep -aoE "SKIP [^:]+: .*" "$log" | sort -u | wc -l || true)
    ok=$(count "$log" passed) bad=$(count "$log" failed) ignored=$(count "$log" ignored)
    # A build that failed or a run that found no test is a failure too.
    if [ "$outcome" = FAILED ] || [ "$ok" -eq 0 ]; then
        outcome=FAILED
        [ "$bad" -gt 0 ] || bad=1
    fi
    passed=$((passed + ok))
    failed=$((failed + bad))
    skipped=$((skipped + skips + ignored))
    row "$outcome" $((SECONDS - start)) "$name" "$ok passed, $bad failed, $ignored ignored, $skips skipped themselves"
}

# answer CPU SET: the binary answers, by the code of this instruction set.
answer() {
    local said
    said=$("$qemu" -cpu "$1" -L "$libc" "$out/$target/release/lily" run --model lily-demo --no-think --temperature 0 \
        --max-tokens 16 "What is the capital of France?" 2>"$logs/answer.err") || return 1
    "$qemu" -cpu "$1" -L "$libc" "$out/$target/release/lily" bench --model lily-demo --prompt-tokens 8 --tokens 2 \
        --rounds 1 --json >"$logs/device.json" || return 1
    echo "$said"
    grep -o '"device":"[^"]*"' "$logs/device.json"
    [[ $said == *Paris* ]] && grep -q "\"device\":\"cpu ($2," "$logs/device.json"
}

# Of the kernels only: no other crate has code for aarch64 alone.
step "clippy of the kernels" cargo clippy --quiet --locked --target "$target" "${std[@]}" -p lily-kernels --all-targets \
    -- -D warnings
if [ -d "$rustlib/$apple/lib" ]; then
    # Not the binary: ring has C code, which needs Apple's headers.
    step "types for $apple" cargo check --quiet --locked --target "$apple" -p lily-kernels -p lily-engine --all-targets
else
    skipped=$((skipped + 1))
    row skipped 0 "types for $apple" "its std is not installed (rustup target add $apple)"
fi
tests "kernels" "$with_dots" lily-kernels --lib --test cases_on_cpu --test plans --test intrinsics --
tests "kernels" "$without_dots" lily-kernels --lib --test cases_on_cpu --test plans --test intrinsics --
tests "goldens and bytes" "$with_dots" lily-engine --test engine -- golden:: "${bytes[@]}"
tests "checkpoints" "$with_dots" lily-engine --test checkpoint --
step "the binary builds" cargo build --quiet --locked --release --target "$target" "${std[@]}" -p lily
step "the binary answers, $with_dots" answer "$with_dots" neon
step "the binary answers, $without_dots" answer "$without_dots" scalar

echo
echo "$(git rev-parse --short HEAD)$(git diff --quiet HEAD || echo ' and changes'), $(rustc --version), $("$qemu" --version | head -n 1)"
printf '%s\n' "${rows[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
