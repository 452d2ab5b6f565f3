// Which boxes of a gemm instance are one launch.
#include "src/spec/products.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "src/spec/operators.h"
#include "tests/unit/spec/operators.h"

namespace overlace::spec {
namespace {

using Rows = std::vector<std::pair<int64_t, int64_t>>;  // begin, count

constexpr int64_t kSlotRows = 10, kSlots = 4;

/// One gemm task that reads rows of "A" (M, 4); it writes rows of "C" (M, 3), or of slot i of a buffer of slots.
struct Gemm {
  explicit Gemm(const Rows& a, const Rows& c, bool has_slots = false) {
    const int buffer_c = has_slots ? 2 : 1;
    schedule.buffers = {{"A", Space::argument, DType::fp32, {"M", 4}},
                        {"C", Space::argument, DType::fp32, {"M", 3}},
                        {"S", Space::symmetric, DType::fp32, {"G", "rows", 3}}};
    schedule.tasks.emplace_back();
    expansion.buffer_shapes = {{100, 4}, {100, 3}, {kSlots, kSlotRows, 3}};
    instance.reads.emplace_back();
    instance.writes.emplace_back();
    for (size_t i = 0; i < a.size(); ++i) {
      Box from{.buffer = 0, .ndim = 2}, to{.buffer = buffer_c, .ndim = has_slots ? 3 : 2};
      from.begin[0] = a[i].first, from.count[0] = a[i].second, from.count[1] = 4;
      const int row = to.ndim - 2;
      if (has_slots) to.begin[0] = static_cast<int64_t>(i), to.count[0] = 1;
      to.begin[row] = c[i].first, to.count[row] = c[i].second, to.count[row + 1] = 3;
      instance.reads[0].push_back(from);
      instance.writes[0].push_back(to);
    }
  }
  std::vector<ProductRows> products() const { return product_rows(schedule, expansion, instance); }
  Schedule schedule;
  Expansion expansion;
  Instance instance;
};

TEST(Products, RowsThatTouchInBothAreOneBlock) {
  const std::vector<ProductRows> one = Gemm({{2, 3}, {5, 1}, {6, 4}}, {{0, 3}, {3, 1}, {4, 4}}).products();
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].a.begin[0], 2);
  EXPECT_EQ(one[0].a.count[0], 8);
  EXPECT_EQ(one[0].c.begin[0], 0);
  EXPECT_EQ(one[0].c.count[0], 8);
  const std::vector<ProductRows> two = Gemm({{2, 3}, {5, 1}}, {{0, 3}, {4, 1}}).products();
  EXPECT_EQ(two.size(), 2U) << "rows of c do not touch";
}

TEST(Products, BlocksAtEqualDistancesInBothAreOneLaunch) {
  const std::vector<ProductRows> one = Gemm({{0, 2}, {4, 2}, {8, 2}}, {{1, 2}, {7, 2}, {13, 2}}).products();
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].batch, 3);
  EXPECT_EQ(one[0].step_a, 4);
  EXPECT_EQ(one[0].step_c, 6);
  EXPECT_EQ(Gemm({{0, 2}, {4, 2}, {8, 2}}, {{1, 2}, {7, 2}, {12, 2}}).products().size(), 2U);
  EXPECT_EQ(Gemm({{4, 2}, {0, 2}}, {{4, 2}, {0, 2}}).products().size(), 2U) << "no launch goes back";
}

TEST(Products, RowsOfSlotsFollowEachOther) {
  const std::vector<ProductRows> whole =
      Gemm({{0, 10}, {10, 10}, {20, 10}}, {{0, 10}, {0, 10}, {0, 10}}, true).products();
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_EQ(whole[0].batch, 1);
  EXPECT_EQ(whole[0].c.count[1], 30);
  const std::vector<ProductRows> part = Gemm({{0, 5}, {5, 5}, {10, 5}}, {{2, 5}, {2, 5}, {2, 5}}, true).products();
  ASSERT_EQ(part.size(), 1U);
  EXPECT_EQ(part[0].batch, 3);
  EXPECT_EQ(part[0].step_c, kSlotRows);
}

TEST(Products, RowsOfOtherMatricesStayApart) {
  const auto blocks_with = [](const auto& change) {
    Gemm gemm({{0, 2}, {2, 2}}, {{0, 2}, {2, 2}});
    change(&gemm.instance.reads[0][1], &gemm.instance.writes[0][1]);
    return gemm.products().size();
  };
  EXPECT_EQ(blocks_with([](Box*, Box*) {}), 1U);
  EXPECT_EQ(blocks_with([](Box* a, Box*) { a->buffer = 1; }), 2U);
  EXPECT_EQ(blocks_with([](Box*, Box* c) { c->rank = 1; }), 2U);
  EXPECT_EQ(blocks_with([](Box* a, Box*) { a->begin[1] = 1, a->count[1] = 3; }), 2U);
  EXPECT_EQ(blocks_with([](Box*, Box* c) { c->count[1] = 2; }), 2U);
}

/// Whatever is joined, each row of c is computed once, from the row of a that its box says.
TEST(Products, AllRowsOfAllFamiliesAreComputedOnce) {
  int joined = 0;
  for (const std::string& name : test::all_operators()) {
    for (const FamilyDef& family : find_operator(name)->families) {
      OpSpec op;
      op.op = name;
      op.m = 47, op.n = 24, op.k = 40;
      op.ranks = 4;
      const Schedule schedule = make_schedule(op, std::string(family.name), family.has_degree ? 2 : 1);
      const std::vector<Expansion> all = expand_all(schedule, op.ranks).value();
      for (const Expansion& expansion : all) {
        for (const Instance& in : expansion.instances) {
          const Task& task = schedule.tasks[static_cast<size_t>(in.task)];
          if (task.kind != Kind::gemm || sums_rows(task)) continue;
          std::multiset<std::pair<int64_t, int64_t>> wanted, got;
          for (size_t i = 0; i < in.writes[0].size(); ++i)
            for (int64_t row = 0; row < in.writes[0][i].count[0]; ++row)
              wanted.emplace(in.reads[0][i].begin[0] + row, in.writes[0][i].begin[0] + row);
          const std::vector<ProductRows> products = product_rows(schedule, expansion, in);
          joined += products.size() < in.writes[0].size() ? 1 : 0;
          for (const ProductRows& p : products)
            for (int64_t b = 0; b < p.batch; ++b)
              for (int64_t row = 0; row < p.c.count[0]; ++row)
                got.emplace(p.a.begin[0] + b * p.step_a + row, p.c.begin[0] + b * p.step_c + row);
          EXPECT_EQ(got, wanted) << schedule.family << " " << in.id(schedule);
        }
      }
    }
  }
  EXPECT_GT(joined, 20);
}

}  // namespace
}  // namespace overlace::spec
