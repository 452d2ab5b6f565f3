#include "src/runtime/gpu_code.h"

#include <charconv>

#include "src/base/format.h"

namespace overlace::runtime {
namespace {

/// "90a-real": code for 9.0 and nothing else. "80-real": for 8.0 to 8.9. "80-virtual": translated by the driver of 8.0
/// and all that came later. "80": the latter two.
bool runs(std::string_view word, int major, int minor) {
  int number = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, number);
  if (error != std::errc()) return true;
  const std::string_view rest(stop, static_cast<size_t>(end - stop));
  const int found = 10 * major + minor;
  if (rest.starts_with('a')) return found == number;
  const bool is_same_major = found / 10 == number / 10 && found >= number;
  if (rest.starts_with('f') || rest == "-real") return is_same_major;
  return found >= number;
}

}  // namespace

bool has_code_for(std::string_view architectures, int major, int minor) {
  while (!architectures.empty()) {
    const size_t comma = architectures.find(',');
    const std::string_view word = architectures.substr(0, comma);
    if (!word.empty() && runs(word, major, minor)) return true;
    if (comma == std::string_view::npos) return false;
    architectures.remove_prefix(comma + 1);
  }
  return false;
}

base::Status check_code_for(std::string_view architectures, int ordinal, std::string_view gpu, int major, int minor) {
  if (has_code_for(architectures, major, minor)) return {};
  return base::error(Errc::not_supported,
                     "GPU {} ({}) has compute capability {}.{}, wanted one that this build has code for: {}", ordinal,
                     gpu, major, minor, architectures);
}

}  // namespace overlace::runtime
