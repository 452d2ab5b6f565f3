// Calls of the dense operators drawn from a seed: the same ones on every machine.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "overlace/ops/common.h"
#include "src/spec/operators.h"
#include "tests/ranks/ops_cases.h"
#include "tests/ranks/support/dice.h"

namespace overlace::test {

using Families = std::map<std::string, std::vector<std::string>>;  // by operator

/// Tails and odd multiples of 8.
inline int64_t extent(Dice& dice) { return dice.one_in(2) ? dice.number(1, 19) : 8 * (2 * dice.number(0, 2) + 1); }

inline std::vector<int64_t> ragged(Dice& dice, int64_t m, int ranks) {
  std::vector<int64_t> offsets = {0};
  for (int p = 1; p < ranks; ++p) offsets.push_back(dice.one_in(3) ? offsets.back() : dice.number(0, m));
  std::sort(offsets.begin(), offsets.end());
  offsets.push_back(m);
  return offsets;
}

inline spec::Params options_of(Dice& dice, int degree) {
  spec::Params options;
  if (dice.one_in(4)) options["align"] = dice.number(1, 9);
  if (dice.one_in(4)) options[dice.one_in(2) ? "align_n" : "align_k"] = dice.number(1, 16);
  if (dice.one_in(4)) options["ce_queues"] = dice.number(1, 4);
  if (dice.one_in(4) && degree % 2 == 0) options["own_degree"] = int64_t{2};
  if (dice.one_in(8)) options["credits"] = false;
  return options;
}

/// Any operator, family, degree, options, shape (ragged, empty, K of 0), types, layout, bias and strides.
inline Case draw_case(Dice& dice, int ranks, const Families& families) {
  static constexpr const char* kOps[] = {"ag_gemm", "ag_wgrad", "gemm_rs", "gemm_ar", "gemm_a2a", "a2a_gemm"};
  static constexpr std::pair<DType, DType> kTypes[] = {{DType::fp32, DType::fp32}, {DType::bf16, DType::bf16},
                                                       {DType::fp16, DType::fp16}, {DType::fp64, DType::fp64},
                                                       {DType::fp16, DType::fp32}, {DType::bf16, DType::fp32}};
  Case c;
  c.op = dice.of(kOps);
  c.family = dice.of(families.at(c.op));
  c.degree = static_cast<int>(dice.one_in(10) ? dice.number(9, 20) : dice.number(1, 8));
  c.options = options_of(dice, c.degree);
  if (c.family == "hierarchical") c.options["hosts"] = hosts_of(ranks, static_cast<size_t>(dice.number(0, 11)));
  c.m = dice.one_in(12) ? 0 : dice.number(1, c.family == "one_shot" && dice.one_in(2) ? kOneShotTokens : 40);
  c.n = extent(dice);
  c.k = dice.one_in(20) && !spec::gathers(c.op) ? 0 : extent(dice);
  std::tie(c.in, c.out) = dice.of(kTypes);
  c.layout = dice.one_in(2) ? spec::BLayout::nk : spec::BLayout::kn;
  c.bias = dice.one_in(3) && c.op != "ag_wgrad";
  c.uneven = dice.one_in(3);
  c.gathered = dice.one_in(2);
  c.gap = dice.one_in(4) ? dice.number(1, 9) : 0;
  if (spec::exchanges(c.op)) {
    if (c.family == "library") c.gap = 0;
    if (dice.one_in(2))
      exchange_columns(&c, ranks, static_cast<size_t>(dice.number(0, 1 << 20)));
    else if (dice.one_in(3))
      c.m -= c.m % ranks;
    else
      c.splits = drawn_splits(ranks, c.m, static_cast<size_t>(dice.number(0, 1 << 20)));
  } else if (dice.one_in(4) && c.op != "gemm_ar") {
    c.offsets = ragged(dice, c.m, ranks);
  }
  const bool is_one_kernel = c.family == "k_slab" || c.family == "one_shot";  // which return A of ranks that have rows
  spec::OpSpec rows;
  rows.m = c.m;
  rows.ranks = ranks;
  rows.row_offsets = c.offsets;
  if (is_one_kernel && spec::has_empty_shard(rows)) c.gathered = false;
  return c;
}

/// Families that give a result and that CPU ranks run.
inline Families families_here() {
  Families out;
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    if (runtime.world().rank() != 0) return;
    for (const char* op : {"ag_gemm", "ag_wgrad", "gemm_rs", "gemm_ar", "gemm_a2a", "a2a_gemm"}) {
      const spec::OpSpec problem{.op = op,
                                 .m = 8,
                                 .n = 8,
                                 .k = 8,
                                 .ranks = 2,
                                 .dtype = DType::fp32,
                                 .out_dtype = DType::fp32,
                                 .row_offsets = {}};
      for (const std::string& family : spec::families(op)) {
        if (family == "compute" || family == "comm" || family == "limit") continue;
        const spec::Schedule schedule = spec::make_schedule(problem, family, 1);
        if (ops::supports(runtime.world().channel(StreamRef::cpu()), problem, schedule).ok()) out[op].push_back(family);
      }
    }
  });
  return out;
}

}  // namespace overlace::test
