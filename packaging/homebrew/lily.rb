# Homebrew formula, built from source. From a checkout of the repository:
#
#     brew tap-new local/lily
#     cp packaging/homebrew/lily.rb "$(brew --repository local/lily)/Formula/"
#     HOMEBREW_LILY_SOURCE="$PWD" brew install --HEAD local/lily/lily
#     brew services start lily
class Lily < Formula
  desc "Local inference engine for Qwen3.5 and Qwen3.6 hybrid models"
  license "Apache-2.0"
  head "file://#{ENV.fetch("HOMEBREW_LILY_SOURCE", "/usr/local/src/lily")}", using: :git, branch: "main"

  depends_on "rust" => :build

  def install
    system "cargo", "install", *std_cargo_args(path: "crates/lily")
    generate_completions_from_executable(bin/"lily", "completions", shells: [:bash, :zsh, :fish])
    system bin/"lily", "man", "--dir", man1
  end

  service do
    run [opt_bin/"lily", "serve"]
    keep_alive successful_exit: false
    environment_variables LILY_LOG_FORMAT: "json"
    log_path var/"log/lily.log"
    error_log_path var/"log/lily.log"
    process_type :interactive
  end

  test do
    ask = "#{bin}/lily run --model lily-demo --no-think --temperature 0"
    assert_match "Paris", shell_output("#{ask} 'What is the capital of France?'")
    assert_match "serve", shell_output("#{bin}/lily help")
  end
end
