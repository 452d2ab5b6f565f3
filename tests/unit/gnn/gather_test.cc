// Rows by their numbers: every width, thread count and kind of id; what is out of range.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "src/gnn/gather/gather_rows.h"
#include "src/gnn/sample/random.h"
#include "tests/unit/gnn/support/graphs.h"

namespace overlace::gnn {
namespace {

struct Table {
  Table(int64_t num_rows, int64_t row_bytes) : bytes(static_cast<size_t>(num_rows * row_bytes)) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random_word(5, i));
    table = {bytes.data(), num_rows, row_bytes};
  }
  std::vector<std::byte> bytes;
  RowTable table;
};

TEST(GatherRows, GivesTheRowsOfEveryWidth) {
  for (const int64_t width : {1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 64, 100, 127, 128, 512, 1000, 4096, 4097, 6144}) {
    const Table t(97, width);
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1000}, (int64_t{1} << 20) / width + 3}) {
      const std::vector<int64_t> ids = test::drawn_rows(count, 97);
      const std::vector<int32_t> narrow(ids.begin(), ids.end());
      std::vector<std::byte> wanted;
      for (const int64_t id : ids)
        wanted.insert(wanted.end(), t.bytes.begin() + id * width, t.bytes.begin() + (id + 1) * width);
      for (const int threads : {0, 1, 3}) {
        std::vector<std::byte> out(wanted.size());
        gather_rows(t.table, std::span(ids), threads, out).or_throw();
        ASSERT_TRUE(out == wanted) << width << " " << count << " " << threads;
        std::fill(out.begin(), out.end(), std::byte{1});
        gather_rows(t.table, std::span(narrow), threads, out).or_throw();
        ASSERT_TRUE(out == wanted) << width << " " << count << " " << threads;
      }
    }
  }
}

TEST(GatherRows, NamesTheFirstIdOutOfRangeAndWritesNothing) {
  const Table t(100, 48);
  std::vector<int64_t> ids = test::drawn_rows(50000, 100);
  std::vector<std::byte> out(ids.size() * 48, std::byte{0xA5});
  const std::vector<std::byte> before = out;
  for (const auto& [at, id] : {std::pair<size_t, int64_t>{49999, 100}, {30000, -1}, {7, int64_t{1} << 40}, {0, -100}}) {
    ids[at] = id;
    for (const int threads : {1, 4})
      EXPECT_EQ(gather_rows(t.table, std::span(ids), threads, out).message(),
                base::format("ids[{}] is {}, wanted 0 to 99", at, id));
    EXPECT_TRUE(out == before);
  }
}

TEST(GatherRows, RefusesSizesThatDoNotBelongTogether) {
  Table t(10, 8);
  const std::vector<int64_t> ids = {1, 2};
  std::vector<std::byte> out(16);
  const auto text = [&](const RowTable& table, int threads, std::span<std::byte> to) {
    return gather_rows(table, std::span(ids), threads, to).message();
  };
  EXPECT_EQ(text(t.table, 1, out), "");
  EXPECT_EQ(text(t.table, -1, out), "threads is -1, wanted at least 0");
  EXPECT_EQ(text(t.table, 1, std::span(out).first(15)), "out has 15 bytes, wanted 16 for 2 rows of 8");
  EXPECT_EQ(text({t.bytes.data(), 10, 0}, 1, out),
            "table has 10 rows of 0 bytes, wanted rows of at least 1 within 64 bits");
  EXPECT_EQ(text({t.bytes.data(), int64_t{1} << 62, 8}, 1, out),
            "table has 4611686018427387904 rows of 8 bytes, wanted rows of at least 1 within 64 bits");
  EXPECT_EQ(text(t.table, 1, std::span(t.bytes).subspan(64, 16)), "out lies in the table, wanted memory of its own");
  EXPECT_EQ(text({nullptr, 0, 8}, 1, out), "ids[0] is 1, wanted none: the table is empty");
}

}  // namespace
}  // namespace overlace::gnn
