// What a gather on a GPU refuses before it asks a device, and builds that have none.
#include "src/gnn/gather/device_gather.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace overlace::gnn {
namespace {

struct Sizes {
  std::vector<DeviceRows> sources;
  DeviceGather gather;

  std::string text() {
    gather.sources = sources;
    return queue_gather_rows(gather, nullptr).message();
  }
};

class DeviceGatherTest : public testing::Test {
 protected:
  Sizes good() {
    Sizes sizes;
    sizes.sources = {{table_.data(), 4}, {table_.data() + 32, 4}};
    sizes.gather.row_bytes = 8;
    sizes.gather.ids = ids_.data();
    sizes.gather.num_ids = 2;
    sizes.gather.out = out_.data();
    return sizes;
  }
  std::vector<std::byte> table_ = std::vector<std::byte>(64), out_ = std::vector<std::byte>(16);
  std::vector<int64_t> ids_ = {1, 7};
};

TEST_F(DeviceGatherTest, RefusesSizesThatDoNotBelongTogether) {
  Sizes s = good();
  s.sources.clear();
  EXPECT_EQ(s.text(), "0 sources, wanted 1 to 16");
  s.sources.resize(17);
  EXPECT_EQ(s.text(), "17 sources, wanted 1 to 16");
  s = good();
  s.gather.row_bytes = 0;
  EXPECT_EQ(s.text(), "row_bytes is 0, wanted 1 to 1073741824");
  s.gather.row_bytes = int64_t{1} << 31;
  EXPECT_EQ(s.text(), "row_bytes is 2147483648, wanted 1 to 1073741824");
  s = good();
  s.gather.id_bytes = 2;
  EXPECT_EQ(s.text(), "ids have 2 bytes each, wanted 4 or 8");
  s = good();
  s.gather.num_ids = -1;
  EXPECT_EQ(s.text(), "-1 ids for rows of 8 bytes, wanted at least 0 within 64 bits");
  s.gather.num_ids = int64_t{1} << 60;
  EXPECT_EQ(s.text(), "1152921504606846976 ids for rows of 8 bytes, wanted at least 0 within 64 bits");
  s = good();
  s.gather.ctas = -1;
  EXPECT_EQ(s.text(), "ctas is -1, wanted at least 0");
  s = good();
  s.sources[1].num_rows = -2;
  EXPECT_EQ(s.text(), "sources[1] has -2 rows of 8 bytes, wanted at least 0 and all within 64 bits");
  s.sources[1].num_rows = std::numeric_limits<int64_t>::max() / 8 - 3;
  EXPECT_EQ(s.text(), "sources[1] has 1152921504606846972 rows of 8 bytes, wanted at least 0 and all within 64 bits");
}

TEST_F(DeviceGatherTest, RefusesAddressesThatCannotBe) {
  Sizes s = good();
  s.gather.ids = nullptr;
  EXPECT_EQ(s.text(), "ids is null, wanted an address");
  s = good();
  s.gather.out = nullptr;
  EXPECT_EQ(s.text(), "out is null, wanted an address");
  s = good();
  s.gather.ids = reinterpret_cast<const void*>(uintptr_t{0x1004});
  EXPECT_EQ(s.text(), "ids lie at 0x1004, wanted a multiple of 8");
  s = good();
  s.gather.first_bad = reinterpret_cast<uint64_t*>(uintptr_t{0x1001});
  EXPECT_EQ(s.text(), "first_bad lies at 0x1001, wanted a multiple of 8");
  s = good();
  s.sources[0].data = nullptr;
  EXPECT_EQ(s.text(), "sources[0] is null, wanted an address");
  s = good();
  s.gather.out = table_.data() + 60;
  EXPECT_EQ(s.text(), "out lies in sources[1], wanted memory of its own");
}

TEST_F(DeviceGatherTest, QueuesNothingWithoutIds) {
  Sizes s = good();
  s.gather.num_ids = 0;
  s.gather.ids = s.gather.out = nullptr;
  EXPECT_EQ(s.text(), "");
}

#ifndef OVERLACE_HAS_CUDA
TEST_F(DeviceGatherTest, IsNotSupportedWithoutCuda) {
  Sizes s = good();
  EXPECT_EQ(s.text(), "gathering on a GPU: this build has no CUDA (OVERLACE_CUDA=OFF, or nvcc was not found)");
  EXPECT_EQ(queue_gather_rows(s.gather, nullptr).code(), Errc::not_supported);
}
#endif

}  // namespace
}  // namespace overlace::gnn
