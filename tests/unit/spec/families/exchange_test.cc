// gemm_a2a and a2a_gemm with blocks of rows of any length, and of columns: the checks pass, and find what goes to the
// wrong place.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "overlace/schedule.h"
#include "src/spec/check.h"
#include "src/spec/machine.h"
#include "tests/unit/spec/support/findings.h"

namespace overlace::spec {
namespace {

using test::Codes;
using test::errors;
using test::task;

/// Blocks of 0 to 6 rows, a third of them empty; of some ranks all.
OpSpec drawn(const char* name, std::mt19937* random, int ranks) {
  OpSpec op{.op = name, .n = 24, .k = 40, .ranks = ranks, .row_offsets = {}};
  const auto below = [&](uint32_t n) { return static_cast<int64_t>((*random)() % n); };
  const int64_t idle = below(2) == 0 ? below(static_cast<uint32_t>(ranks)) : -1, deaf = below(4) == 0 ? 0 : -1;
  for (int64_t from = 0; from < ranks; ++from)
    for (int64_t to = 0; to < ranks; ++to) {
      const bool is_empty = from == idle || to == deaf || below(3) == 0;
      op.splits.push_back(is_empty ? 0 : 1 + below(6));
      op.m += op.splits.back();
    }
  op.bias = below(2) == 0;
  return op;
}

TEST(Exchange, UnevenAndEmptyBlocksPassTheChecks) {
  std::mt19937 random(7);
  for (int turn = 0; turn < 120; ++turn) {
    const OpSpec op = drawn(turn % 2 == 0 ? "gemm_a2a" : "a2a_gemm", &random, 1 + turn / 2 % 5);
    for (const std::string& family : families(op.op)) {
      CheckOptions how;
      how.coverage = family != "compute" && family != "comm" && family != "limit";
      const CheckReport report = check(make_schedule(op, family, 1 + turn % 3), Machine{}, how);
      EXPECT_TRUE(report.ok()) << op.to_string() << " " << family << "\n" << report.to_string();
    }
  }
}

/// One to three blocks of columns; rows as even as it goes, or some ranks without any.
OpSpec drawn_columns(const char* name, std::mt19937* random, int ranks) {
  const auto below = [&](uint32_t n) { return static_cast<int64_t>((*random)() % n); };
  OpSpec op{.op = name, .m = below(20), .n = 24, .k = 40, .ranks = ranks, .row_offsets = {}};
  op.exchange = Exchange::cols;
  int64_t columns = 0;
  for (int64_t left = 1 + below(3); left > 0; --left) {
    op.blocks.push_back(ranks * (1 + below(4)));
    columns += op.blocks.back();
  }
  (op.op == "gemm_a2a" ? op.n : op.k) = columns;
  if (op.blocks.size() == 1 && below(2) == 0) op.blocks.clear();
  if (below(2) == 0) {
    op.m = 0;
    for (int rank = 0; rank < ranks; ++rank) op.splits.push_back(below(3) * below(4));
    for (const int64_t rows : op.splits) op.m += rows;
  }
  op.bias = below(2) == 0;
  op.b_layout = below(2) == 0 ? BLayout::nk : BLayout::kn;
  return op;
}

TEST(Exchange, ColumnsInBlocksPassTheChecks) {
  std::mt19937 random(11);
  for (int turn = 0; turn < 120; ++turn) {
    const OpSpec op = drawn_columns(turn % 2 == 0 ? "gemm_a2a" : "a2a_gemm", &random, 1 + turn / 2 % 5);
    for (const std::string& family : families(op.op)) {
      CheckOptions how;
      how.coverage = family != "compute" && family != "comm" && family != "limit";
      const CheckReport report = check(make_schedule(op, family, 1 + turn % 3), Machine{}, how);
      EXPECT_TRUE(report.ok()) << op.to_string() << " " << family << "\n" << report.to_string();
    }
  }
}

TEST(Exchange, AColumnAtTheWrongPlaceIsFound) {
  OpSpec op{.op = "gemm_a2a", .m = 17, .n = 36, .k = 36, .ranks = 3, .row_offsets = {}};
  op.exchange = Exchange::cols;
  op.blocks = {12, 12, 12};
  for (const char* name : {"gemm_a2a", "a2a_gemm"}) {
    op.op = name;
    for (const std::string& family : families(name)) {
      if (family == "compute" || family == "comm" || family == "limit") continue;
      const Schedule made = make_schedule(op, family, 2);
      EXPECT_EQ(errors(made), std::set<std::string>()) << name << " " << family;
      int tasks = 0;
      for (size_t t = 0; t < made.tasks.size(); ++t) {
        Schedule spoilt = made;
        Task& task = spoilt.tasks[t];
        // At their owner, the blocks lie in the reverse order.
        for (Region* region : {&task.reads[0], &task.writes[0]}) {
          Expr& begin = region->dims[1].begin;
          if (!region->each || begin.text() != "block[j]/G") continue;
          ++tasks;
          begin = "block[blocks-1-j]/G";
        }
        if (!(spoilt == made)) {
          EXPECT_TRUE(errors(spoilt).contains("S9")) << name << " " << family << " " << task.id;
        }
      }
      EXPECT_GT(tasks, 0) << name << " " << family;
    }
  }
}

TEST(Exchange, BlocksThatRanksDoNotDivideAreRefused) {
  OpSpec op{.op = "gemm_a2a", .m = 8, .n = 24, .k = 16, .ranks = 4, .row_offsets = {}};
  op.exchange = Exchange::cols;
  const auto why = [&](const std::vector<int64_t>& blocks) {
    op.blocks = blocks;
    try {
      return make_schedule(op, "serial").family;
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(why({16, 4, 4}), "serial_a2a");
  EXPECT_EQ(why({}), "serial_a2a");
  EXPECT_EQ(why({16, 6, 2}),
            "gemm_a2a M 8 N 24 K 16 G 4 bf16 cols 16 6 2: blocks[1] is 6, wanted a multiple of 4 above 0: as many "
            "columns for each rank");
  EXPECT_EQ(
      why({24, 0}),
      "gemm_a2a M 8 N 24 K 16 G 4 bf16 cols 24 0: blocks[1] is 0, wanted a multiple of 4 above 0: as many columns "
      "for each rank");
  EXPECT_EQ(why({16, 4}), "gemm_a2a M 8 N 24 K 16 G 4 bf16 cols 16 4: blocks sum to 20, wanted N = 24");
  op.n = 22;
  EXPECT_EQ(why({}),
            "gemm_a2a M 8 N 22 K 16 G 4 bf16 cols: N is 22, wanted a multiple of 4: as many columns for each rank");
  op.n = 24;
  op.splits = {2, 2, 4};
  EXPECT_EQ(why({}),
            "gemm_a2a M 8 N 24 K 16 G 4 bf16 cols splits: splits has 3 entries, wanted 4: rows of each of 4 ranks");
  op.splits = {2, 2, 4, 0};
  EXPECT_EQ(why({}), "serial_a2a");
  op.exchange = Exchange::rows;
  op.splits.clear();
  EXPECT_EQ(why({24}), "gemm_a2a M 8 N 24 K 16 G 4 bf16 24: blocks are given, wanted none: no columns travel");
  op.op = "ag_gemm";
  op.exchange = Exchange::cols;
  EXPECT_EQ(why({}), "ag_gemm M 8 N 24 K 16 G 4 bf16 cols: exchange is cols, wanted rows: ag_gemm exchanges nothing");
}

TEST(Exchange, TablesSayWhereEachChunkLies) {
  OpSpec op{.op = "gemm_a2a", .m = 14, .n = 8, .k = 8, .ranks = 2, .row_offsets = {}};
  op.splits = {3, 5, 0, 6};
  const Schedule schedule = make_schedule(op, "hetero_unfused_1d", 2);
  const auto table = [&](const char* name) { return schedule.tables.at(name); };
  EXPECT_EQ(table("off"), (std::vector<int64_t>{0, 8, 14}));
  EXPECT_EQ(table("got"), (std::vector<int64_t>{0, 3, 14}));
  EXPECT_EQ(table("cut"), (std::vector<int64_t>{0, 2, 3, 6, 8, 8, 8, 11, 14}));
  EXPECT_EQ(table("place"), (std::vector<int64_t>{0, 2, 0, 3, 3, 3, 5, 8}));
  EXPECT_EQ(row_offsets(op), table("off"));
  op.splits.clear();
  op.m = 15;
  EXPECT_EQ(splits(op), (std::vector<int64_t>{4, 4, 4, 3})) << "torch.tensor_split of 8 and of 7 rows";
}

TEST(Exchange, ARowAtTheWrongPlaceIsFound) {
  OpSpec op{.op = "gemm_a2a", .m = 48, .n = 24, .k = 40, .ranks = 3, .row_offsets = {}};
  op.splits = {5, 6, 4, 7, 2, 8, 3, 9, 4};
  const auto spoilt = [&](const char* family, const std::function<void(Schedule*)>& spoil) {
    Schedule schedule = make_schedule(op, family, 2);
    spoil(&schedule);
    return errors(schedule);
  };
  EXPECT_EQ(spoilt("hetero_unfused_1d", [](Schedule*) {}), Codes());
  // Two chunks of one block change places.
  EXPECT_TRUE(spoilt("hetero_unfused_1d", [](Schedule* s) {
                std::swap(s->tables["place"][2], s->tables["place"][3]);
              }).contains("S9"));
  // A block is taken from where another source's lies.
  EXPECT_FALSE(spoilt("serial", [&](Schedule* s) {
                 task(*s, "take").writes[0].dims[0].begin = task(*s, "take_own").writes[0].dims[0].begin;
               }).empty());
  // The own block is multiplied by no task.
  EXPECT_TRUE(spoilt("hetero_fused_1d", [](Schedule* s) {
                std::erase_if(s->tasks, [](const Task& t) { return t.id == "gemm_own"; });
              }).contains("S9"));
  // Rows that travel first: multiplied out of another block's place.
  op.op = "a2a_gemm";
  EXPECT_EQ(spoilt("hetero_fused_1d", [](Schedule*) {}), Codes());
  EXPECT_FALSE(spoilt("hetero_unfused_1d", [](Schedule* s) {
                 std::swap(s->tables["place"][2], s->tables["place"][3]);
               }).empty());
  op.op = "gemm_a2a";
  // The library's exchange with other splits.
  EXPECT_FALSE(
      spoilt("library", [](Schedule* s) { std::swap(s->tables["splits"][0], s->tables["splits"][1]); }).empty());
  EXPECT_FALSE(spoilt("library", [](Schedule* s) { s->tables["splits"].pop_back(); }).empty());
}

}  // namespace
}  // namespace overlace::spec
