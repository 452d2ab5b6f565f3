#include "src/spec/kernel_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "overlace/operator.h"
#include "src/spec/expand.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

OpSpec gemm_problem(std::string_view op, std::vector<int64_t> offsets, int64_t n, int64_t k) {
  OpSpec out;
  out.op = op;
  out.m = offsets.back();
  out.n = n;
  out.k = k;
  out.ranks = static_cast<int>(offsets.size()) - 1;
  out.row_offsets = std::move(offsets);
  for (const FieldDef& field : find_operator(op)->fields) out.fields[std::string(field.name)] = 1e-5;
  return out;
}

bool has_kernel(const Schedule& schedule) { return std::ranges::any_of(schedule.tasks, is_part); }

/// What the kernel of any rank refuses; empty if none does.
std::string refused_by_kernel(const Schedule& schedule, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    const auto expansion = expand(schedule, rank, ranks);
    if (!expansion.ok()) return "expansion: " + expansion.status().message();
    if (const base::Status status = check_kernel(schedule, *expansion); !status.ok()) {
      EXPECT_EQ(status.code(), Errc::bad_schedule);
      return status.message();
    }
  }
  return "";
}

constexpr const char* kGemms[] = {"ag_gemm", "gemm_rs", "gemm_ar", "gemm_ar_norm"};

/// Rows of 0 to several tiles on 1 to 8 ranks, wide and narrow, few and many pieces.
TEST(KernelParts, OfEveryFusedFamilyAreWhatTheKernelDoes) {
  const std::vector<std::vector<int64_t>> splits = {{0, 16, 32},
                                                    {0, 5, 5, 64},
                                                    {0, 0, 0},
                                                    {0, 1, 2, 3, 4},
                                                    {0, 512, 1024},
                                                    {0, 0, 700, 701},
                                                    {0, 2048, 2049, 6000, 9000},
                                                    {0, 300, 600, 900, 1200, 1500},
                                                    {0, 256, 512, 768, 1024, 1280, 1536, 1792, 2048}};
  std::set<std::string> kernels;
  for (const char* name : kGemms) {
    for (const FamilyDef& family : find_operator(name)->families) {
      for (const auto& split : splits) {
        for (const auto& [n, k] : {std::pair<int64_t, int64_t>{640, 512}, {8, 8}, {5000, 72}, {16384, 1000}}) {
          for (const int degree : {1, 3, 64}) {
            for (const bool has_more : {false, true}) {
              OpSpec op = gemm_problem(name, split, n, k);
              op.bias = has_more;
              if (has_more && find_operator(name)->takes_activation) op.activation = Activation::swiglu;
              const Schedule schedule = make_schedule(op, family.name, family.has_degree ? degree : 1);
              if (!has_kernel(schedule)) break;
              kernels.insert(std::string(name) + " " + std::string(family.name));
              ASSERT_EQ(refused_by_kernel(schedule, op.ranks), "")
                  << name << " " << family.name << ":" << degree << ", " << op.ranks << " ranks, M " << op.m << ", N "
                  << n << ", K " << k;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(kernels.size(), 9U) << "two families of each operator, and tracked";
}

Schedule example(const char* op, const char* family, int degree = 2) {
  return make_schedule(gemm_problem(op, {0, 512, 1024, 1536}, 640, 512), family, degree);
}
Task& task(Schedule& schedule, std::string_view id) { return *std::ranges::find(schedule.tasks, id, &Task::id); }

Buffer& buffer(Schedule& schedule, std::string_view name) {
  return *std::ranges::find(schedule.buffers, name, &Buffer::name);
}

/// A bias that a task of its own adds is added by the kernel, too.
TEST(KernelParts, ABiasIsAddedWhereTheKernelAddsIt) {
  OpSpec op = gemm_problem("gemm_rs", {0, 512, 1024, 1536}, 640, 512);
  op.bias = true;
  Schedule schedule = make_schedule(op, "tma_slot", 2);
  EXPECT_EQ(refused_by_kernel(schedule, 3), "");
  Task& sum = task(schedule, "sum_own");
  sum.params.erase("bias");
  sum.reads.pop_back();
  EXPECT_NE(refused_by_kernel(schedule, 3), "");
}

/// What only moves nothing may wait and tell as little as the kernel does.
TEST(KernelParts, OfRanksWithoutRowsAreComparedToo) {
  const OpSpec op = gemm_problem("gemm_rs", {0, 512, 512, 1024}, 640, 512);
  Schedule schedule = make_schedule(op, "tma_slot", 2);
  EXPECT_EQ(refused_by_kernel(schedule, 3), "");
  schedule.signals.push_back({"extra", 1});
  Set extra;
  extra.signal = "extra";
  extra.slot = Expr(0);
  extra.at = Expr("1");
  extra.each = Loop{"z", 0, "max(0,1-off[(r+p)%G+1]+off[(r+p)%G])"};
  task(schedule, "tiles_remote").sets.push_back(extra);
  EXPECT_NE(refused_by_kernel(schedule, 3).find("set arrived"), std::string::npos);
}

TEST(KernelParts, MoreRanksThanAKernelTakesAreRefused) {
  std::vector<int64_t> offsets;
  for (int64_t r = 0; r <= 9; ++r) offsets.push_back(r * 256);
  const Schedule schedule = make_schedule(gemm_problem("gemm_rs", offsets, 640, 512), "tma_slot", 2);
  EXPECT_EQ(refused_by_kernel(schedule, 9), "schedule tma_slot_rs is of 9 ranks; its kernel takes 2 to 8");
}

struct Refused {
  const char *op, *family, *text;
  void (*edit)(Schedule&);
};
const Refused kRefused[] = {
    {"gemm_rs", "tma_slot",
     "schedule tma_slot_rs lets sum_own[s=0,j=0] of rank 0 wait for nothing; its kernel: arrived[0] of rank 1 >= 1, "
     "arrived[0] of rank 2 >= 1",
     [](Schedule& s) { task(s, "sum_own").waits.clear(); }},
    {"gemm_rs", "tma_slot",
     "schedule tma_slot_rs lets tiles_remote[p=1,s=0,j=1] of rank 0 set arrived[0] += 1 at rank 1; its kernel: "
     "arrived[1] += 1 at rank 1",
     [](Schedule& s) { task(s, "tiles_remote").sets[0].slot = Expr(0); }},
    {"gemm_rs", "tma_slot",
     "schedule tma_slot_rs lets sum_own[s=0,j=0] of rank 0 come behind nothing; its kernel: tiles_own[s=0,j=0]",
     [](Schedule& s) { task(s, "sum_own").deps.clear(); }},
    {"gemm_rs", "tma_slot",
     "schedule tma_slot_rs has no part release on rank 0 for credit[0] += 1 at rank 1, credit[0] += 1 at rank 2",
     [](Schedule& s) { std::erase(s.tasks, task(s, "release")); }},
    {"gemm_rs", "tma_slot",
     "schedule tma_slot_rs lets tiles_remote[p=1,s=0,j=0] of rank 0 write S[0:1, 0:512, 0:384] of rank 1; its "
     "kernel: S[1:2, 0:512, 0:384] of rank 1",
     [](Schedule& s) {
       task(s, "tiles_remote").writes[0].dims[0] = Range{"p-1", 1};
     }},
    {"gemm_ar", "tma_slot", "schedule tma_slot_ar has 101 parts on rank 0; its kernel does 81",
     [](Schedule& s) {
       Task again = task(s, "copy_out");
       again.id = "copy_again";
       s.tasks.push_back(std::move(again));
     }},
    {"ag_gemm", "k_slab",
     "schedule k_slab lets push[s=0,p=1] of rank 0 write X[0:512, 0:320] of rank 2; its kernel: X[0:512, 0:256] of "
     "rank 2",
     [](Schedule& s) { s.tables["slab"][1] += 64; }},
    {"ag_gemm", "k_slab", "schedule k_slab has items woven; its kernel draws them rotated",
     [](Schedule& s) { s.params["items"] = std::string("woven"); }},
    {"ag_gemm", "k_slab",
     "schedule k_slab has X as bf16 of (1536, 512), 1 copies; its kernel wants symmetric memory of the operands' "
     "type, (1536, 512), 2 copies",
     [](Schedule& s) { s.buffers.back().depth = 1; }},
    {"gemm_rs", "tma_slot",
     "schedule tma_slot_rs has S as i8 of (2, 512, 640), 2 copies; its kernel wants symmetric memory of the "
     "operands' "
     "type, (2, 512, 640), 2 copies",
     [](Schedule& s) { buffer(s, "S").dtype = DType::i8; }},
    {"gemm_rs", "tma_slot", "schedule tma_slot_rs has 3 copies of pad; beside its kernel there are 2",
     [](Schedule& s) {
       Buffer pad = buffer(s, "S");
       pad.name = "pad";
       pad.depth = 3;
       s.buffers.push_back(std::move(pad));
     }},
    {"gemm_rs", "tma_slot",
     "schedule tma_slot_rs lets tiles_remote[p=1,s=0,j=0] of rank 0 read A[0:512, 0:512] of rank 0, B[0:384, 0:512] "
     "of "
     "rank 0; its kernel: A[512:1024, 0:512] of rank 0, B[0:384, 0:512] of rank 0",
     [](Schedule& s) { task(s, "tiles_remote").reads[0].dims[0].begin = Expr("cut[r*q+s]"); }},
    {"gemm_rs", "tma_slot",
     "schedule tma_slot_rs lets look, which is no part of its kernel, use the kernel's signals or inboxes; wanted: "
     "others",
     [](Schedule& s) {
       Task look = task(s, "release");
       look.id = "look";
       look.wait_by = WaitBy::queue;
       look.deps.clear();
       look.sets.clear();
       look.waits = task(s, "sum_own").waits;
       for (Wait& wait : look.waits) wait.slot = Expr(0);
       s.tasks.push_back(std::move(look));
     }},
    {"ag_gemm", "k_slab",
     "schedule k_slab states tiles_add[p=1,s=1] in another way than its kernel does it: kind, engine, combine, bias, "
     "activation or layout of B",
     [](Schedule& s) { task(s, "tiles_add").combine = Combine::none; }},
    {"ag_gemm", "k_slab",
     "schedule k_slab states push[s=0,p=1] in another way than its kernel does it: kind, engine, combine, bias, "
     "activation or layout of B",
     [](Schedule& s) { task(s, "push").engine = Engine::ce; }},
    {"gemm_rs", "tma_slot", "schedule tma_slot_rs has tile_m 0; its kernel takes 1 to 1073741824",
     [](Schedule& s) { s.params["tile_m"] = int64_t{0}; }},
    {"gemm_ar", "one_shot",
     "schedule one_shot_ar has S as bf16 of (3, 1544, 640), 2 copies; its kernel wants symmetric memory of the "
     "operands' type, (3, 1536, 640), 2 copies",
     [](Schedule& s) { s.consts["tokens"] = 1544; }}};

TEST(KernelParts, TextsNameThePartWhatTheScheduleSaysAndWhatTheKernelDoes) {
  for (const Refused& c : kRefused) {
    Schedule schedule = example(c.op, c.family);
    c.edit(schedule);
    EXPECT_EQ(refused_by_kernel(schedule, 3), c.text);
  }
  const OpSpec op = gemm_problem("gemm_rs", {0, 512, 1024, 1536}, 640, 512);
  EXPECT_EQ(refused_by_kernel(make_schedule(op, "tma_slot", 2, {{"credits", false}}), 3),
            "schedule tma_slot_rs has no signal credit, which its kernel uses");
}

}  // namespace
}  // namespace overlace::spec
