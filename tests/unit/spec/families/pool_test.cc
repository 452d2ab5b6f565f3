// Bags of embedding_a2a: what is said of bad ones, and the tables that kernels read instead of the placement.
#include "src/spec/families/pool.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "overlace/schedule.h"
#include "src/spec/families/placement.h"

namespace overlace::spec {
namespace {

constexpr const char* kPlacement =
    R"({"tables":[{"rows":7,"dim":5},{"rows":9,"dim":3,"padding":2}],"features":[{"table":0,"rank":1,"column":0},)"
    R"({"table":1,"rank":0,"column":5},{"table":1,"rank":1,"column":8},{"table":0,"rank":1,"width":2,"column":11}]})";

OpSpec problem(const char* bounds) {
  OpSpec op{.op = "embedding_a2a", .m = 2, .n = 13, .ranks = 2, .row_offsets = {}};
  op.fields = {{"batch", op.m}, {"bounds", bounds}, {"mode", "sum"}, {"placement", kPlacement}};
  return op;
}

TEST(Pool, NamesWhatIsWrongWithABag) {
  EXPECT_EQ(text_of({.kind = BadBagKind::first_offset, .value = -3}, 1), "offsets[0] is -3, wanted 0");
  EXPECT_EQ(text_of({.kind = BadBagKind::last_offset, .position = 8, .value = 3, .most = 12}, 1),
            "offsets[8] is 3, wanted 12: the length of indices");
  EXPECT_EQ(text_of({.kind = BadBagKind::offset, .position = 4, .value = 3, .least = 5, .most = 12}, 1),
            "offsets[4] is 3, wanted 5 to 12");
  EXPECT_EQ(text_of({.feature = 2, .bag = 1, .position = 6, .value = 9, .most = 8}, 1),
            "rank 1, feature 2, bag 1, position 6: index is 9, wanted 0 to 8: the table has 9 rows");
}

/// Rank 1 has the features 1 to 3 of the placement, two bags of each.
TEST(Pool, FindsTheFirstOfThem) {
  const auto said = [](const char* bounds, std::vector<int64_t> offsets, std::vector<int32_t> indices) {
    std::vector<float> weights(7 * 5 + 9 * 3 + 7 * 2);
    const std::vector<TensorView> tensors = {TensorView::contiguous(weights.data(), DType::fp32, {std::ssize(weights)}),
                                             TensorView::contiguous(indices.data(), DType::i32, {std::ssize(indices)}),
                                             TensorView::contiguous(offsets.data(), DType::i64, {std::ssize(offsets)}),
                                             {}};
    return check_bags(problem(bounds), 1, tensors, /*reads_memory=*/true);
  };
  EXPECT_EQ(said("error", {0, 1, 1, 2, 4, 4, 5}, {6, 8, 2, 0, 6}), "");
  EXPECT_EQ(said("error", {0, 1, 1, 2, 4, 4, 5}, {6, 8, 2, -1, 7}),
            "rank 1, feature 2, bag 1, position 1: index is -1, wanted 0 to 8: the table has 9 rows");
  EXPECT_EQ(said("error", {0, 1, 1, 2, 4, 4, 5}, {6, 8, 2, 0, 7}),
            "rank 1, feature 3, bag 1, position 0: index is 7, wanted 0 to 6: the table has 7 rows");
  EXPECT_EQ(said("error", {0, 1, 0, 2, 4, 4, 5}, {6, 8, 2, 0, 6}), "offsets[2] is 0, wanted 1 to 5");
  EXPECT_EQ(said("error", {1, 1, 0, 2, 4, 4, 4}, {6, 8, 2, 0, 6}), "offsets[0] is 1, wanted 0");
  EXPECT_EQ(said("error", {0, 1, 0, 2, 4, 4, 4}, {6, 8, 2, 0, 6}), "offsets[6] is 4, wanted 5: the length of indices");
  EXPECT_EQ(said("ignore", {1, 1, 0, 2, 4, 4, 4}, {6, 99, 2, 0, -6}), "");
}

TEST(Pool, SchedulesHaveWhatKernelsReadOfThePlacement) {
  const Schedule schedule = make_schedule(problem("error"), "serial");
  const Placement placement = read_placement(kPlacement, 2, 13).value();
  const auto table = [&](const char* name) { return schedule.tables.at(name); };
  EXPECT_EQ(table("feature"), (std::vector<int64_t>{0, 1, 4}));
  EXPECT_EQ(table("table_rows"), (std::vector<int64_t>{9, 7, 9, 7}));
  EXPECT_EQ(table("padding"), (std::vector<int64_t>{2, -1, 2, -1}));
  EXPECT_EQ(table("slice"), (std::vector<int64_t>{0, 0, 35, 62}));
  int64_t elements = 0;
  EXPECT_EQ(placement.slices(1, &elements), (std::vector<int64_t>{0, 35, 62}));
  EXPECT_EQ(elements, 76);
}

}  // namespace
}  // namespace overlace::spec
