#include "src/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace overlace::base {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

// Values of RFC 3720, appendix B.4, and of the check string of the CRC catalogue.
TEST(Crc32c, GivesPublishedValues) {
  for (const auto sum : {crc32c, crc32c_by_table}) {
    EXPECT_EQ(sum(bytes_of(""), 0), 0u);
    EXPECT_EQ(sum(bytes_of("123456789"), 0), 0xe3069283u);
    EXPECT_EQ(sum(bytes_of(std::string(32, '\0')), 0), 0x8a9136aau);
    EXPECT_EQ(sum(bytes_of(std::string(32, '\xff')), 0), 0x62a8ab43u);
  }
}

TEST(Crc32c, IsTheSameInPartsAndByTable) {
  std::string text;
  for (int i = 0; i < 100; ++i) text.push_back(static_cast<char>(i * 37 + i / 7));
  for (size_t length = 0; length <= text.size(); ++length) {
    const auto all = bytes_of(text).first(length);
    EXPECT_EQ(crc32c(all), crc32c_by_table(all));
    for (const size_t cut : {length / 3, length / 2, length})
      EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all));
  }
}

}  // namespace
}  // namespace overlace::base
