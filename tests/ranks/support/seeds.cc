#include "tests/ranks/support/seeds.h"

#include <charconv>
#include <cstdlib>
#include <random>

#include "overlace/error.h"
#include "src/base/format.h"

namespace overlace::test {
namespace {

constexpr uint64_t kMaxSeed = 1000000000;

bool parse(std::string_view text, uint64_t min, uint64_t* value) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return code == std::errc() && end == text.data() + text.size() && *value >= min && *value <= kMaxSeed;
}

}  // namespace

Seeds parse_seeds(std::string_view text) {
  Seeds result;
  result.first = std::random_device{}() % 1000000;
  if (text.empty()) return result;
  const size_t at = text.find('@');
  uint64_t count = 0;
  if (!parse(text.substr(0, at), 1, &count) || (at != text.npos && !parse(text.substr(at + 1), 0, &result.first)))
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("OVERLACE_TEST_SEEDS is \"{}\", wanted COUNT or COUNT@FIRST", text));
  result.count = static_cast<int>(count);
  return result;
}

const Seeds& seeds() {
  static const Seeds instance = [] {
    const char* text = std::getenv("OVERLACE_TEST_SEEDS");
    return parse_seeds(text == nullptr ? "" : text);
  }();
  return instance;
}

}  // namespace overlace::test
