#!/usr/bin/env bash
# The whole program for Apple silicon, made on Linux: type-checks, lints and links `lily` for aarch64-apple-darwin.
# It runs nothing: that the host's names, types and symbols are Apple's is all that it shows.
# Zig compiles what C there is and links; of Apple's libraries it needs lists of names only, and those stand below.
# Installs nothing; what is missing is named. The last line says what was made.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec </dev/null

target=aarch64-apple-darwin
out=$PWD/target/macos
stubs=$out/stubs
# The Zig to use, in words: a path, or an interpreter with the package `ziglang`.
read -ra zig <<<"${ZIG:-zig}"

missing=()
"${zig[@]}" version >/dev/null 2>&1 || missing+=("zig (pip: ziglang, then ZIG='python3 -m ziglang'), or its place in ZIG")
[ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] || missing+=("std for $target (rustup target add $target)")
if [ "${#missing[@]}" -gt 0 ]; then
    echo "tools/metal/link-macos.sh needs:" >&2
    printf '  %s\n' "${missing[@]}" >&2
    exit 1
fi

# stub FILE INSTALLED SYMBOL…: a library as the linker sees it.
stub() {
    local file=$stubs/$1 installed=$2
    shift 2
    mkdir -p "$(dirname "$file")"
    {
        printf -- '--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\ninstall-name: %s\nexports:\n' "'$installed'"
        printf '  - targets: [ arm64-macos ]\n    symbols: [ %s ]\n...\n' "$(printf '%s, ' "$@" | sed 's/, $//')"
    } >"$file"
}

# framework NAME SYMBOL…
framework() {
    local name=$1
    shift
    stub "Frameworks/$name.framework/$name.tbd" "/System/Library/Frameworks/$name.framework/Versions/A/$name" "$@"
}

# tool NAME WORD…: a program that is Zig with these words before its arguments. Zig has its own names for targets, so
# those that Apple's tools are given are left out.
tool() {
    local file=$out/$1
    shift
    cat >"$file" <<TOOL
#!/usr/bin/env bash
kept=()
while [ "\$#" -gt 0 ]; do
    case \$1 in
        --target=* | -mmacosx-version-min=*) ;;
        -arch) shift ;;
        *) kept+=("\$1") ;;
    esac
    shift
done
exec $(printf '%q ' "${zig[@]}" "$@")"\${kept[@]}"
TOOL
    chmod +x "$file"
}

rm -rf "$stubs"
mkdir -p "$out"
framework Metal _MTLCreateSystemDefaultDevice
framework Foundation _NSLocalizedDescriptionKey
framework CoreFoundation _CFRelease _CFRetain
stub lib/libiconv.tbd /usr/lib/libiconv.2.dylib _iconv _iconv_open _iconv_close
stub lib/libobjc.tbd /usr/lib/libobjc.A.dylib \
    _objc_msgSend _objc_retain _objc_release _objc_autorelease _objc_retainAutoreleasedReturnValue \
    _objc_claimAutoreleasedReturnValue _objc_autoreleaseReturnValue _objc_autoreleasePoolPush \
    _objc_autoreleasePoolPop _objc_getClass _objc_alloc _objc_opt_class _objc_exception_throw \
    _objc_begin_catch _objc_end_catch _sel_registerName _sel_getName _object_getClass _class_getName _class_isMetaClass
tool cc cc -target aarch64-macos.14.0 "-L$stubs/lib" "-F$stubs/Frameworks"
tool ar ar

export CARGO_TARGET_DIR=$out
export CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER=$out/cc
export CC_aarch64_apple_darwin=$out/cc
export AR_aarch64_apple_darwin=$out/ar
export MACOSX_DEPLOYMENT_TARGET=14.0
# rustc asks for it and uses nothing of it here.
export SDKROOT=$stubs

packages=(-p lily -p lily-engine -p lily-kernels)
echo "== clippy"
cargo clippy --quiet --locked --target "$target" "${packages[@]}" --all-targets -- -D warnings
echo "== build"
cargo build --quiet --locked --release --target "$target" -p lily

program=$out/$target/release/lily
# A 64-bit Mach-O begins so, and says next that it is for arm64.
if [ "$(od -An -tx4 -N8 "$program" | tr -d ' \n')" != feedfacf0100000c ]; then
    echo "$program is no program for Apple silicon" >&2
    exit 1
fi
echo "$(git rev-parse --short HEAD)$(git diff --quiet HEAD || echo ' and changes'), $(rustc --version), zig $("${zig[@]}" version)"
echo "$program: Mach-O, arm64, $(wc -c <"$program") bytes"
