// What a gather on a GPU by the C API refuses.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "overlace/capi_gnn.h"

namespace overlace::capi {
namespace {

TEST(GnnDeviceGather, NamesWhatItRefuses) {
  std::vector<std::byte> table(64);
  const std::vector<int64_t> ids = {1, 7};
  ovl_gnn_device_gather request = {};
  EXPECT_EQ(ovl_gnn_gather_rows_on_device(&request), OVL_VERSION_MISMATCH);
  request.struct_size = sizeof request;
  EXPECT_EQ(ovl_gnn_gather_rows_on_device(&request), OVL_INVALID_ARGUMENT);
  EXPECT_STREQ(ovl_error_text(), "ovl_gnn_gather_rows_on_device: sources is null, wanted an address");
  const ovl_gnn_row_source source = {table.data(), 8};
  request.sources = &source;
  EXPECT_EQ(ovl_gnn_gather_rows_on_device(&request), OVL_INVALID_ARGUMENT);
  EXPECT_STREQ(ovl_error_text(), "ovl_gnn_gather_rows_on_device: num_sources is 0, wanted at least 1");
  request.num_sources = 1;
  request.row_bytes = 8;
  request.id_bytes = 8;
  request.ids = ids.data();
  request.num_ids = 2;
  request.out = table.data();
  EXPECT_EQ(ovl_gnn_gather_rows_on_device(&request), OVL_INVALID_ARGUMENT);
  EXPECT_STREQ(ovl_error_text(), "out lies in sources[0], wanted memory of its own");
}

}  // namespace
}  // namespace overlace::capi
