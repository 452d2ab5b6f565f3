// Calls of the operators drawn from a seed: the same ones on every machine.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "overlace/ops/common.h"
#include "src/base/format.h"
#include "src/spec/operators.h"
#include "tests/ranks/embedding_case.h"
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

inline constexpr const char* kDenseOps[] = {"ag_gemm", "ag_wgrad", "gemm_rs", "gemm_ar", "gemm_a2a", "a2a_gemm"};

/// Any dense operator, family, degree, options, shape (ragged, empty, K of 0), types, layout, bias and strides.
inline Case draw_case(Dice& dice, int ranks, const Families& families) {
  static constexpr std::pair<DType, DType> kTypes[] = {{DType::fp32, DType::fp32}, {DType::bf16, DType::bf16},
                                                       {DType::fp16, DType::fp16}, {DType::fp64, DType::fp64},
                                                       {DType::fp16, DType::fp32}, {DType::bf16, DType::fp32}};
  Case c;
  c.op = dice.of(kDenseOps);
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

/// Tables of few rows, cut into features on any ranks, whose columns lie in the result in any order. `columns`: how
/// many.
inline std::string draw_placement(Dice& dice, int ranks, int64_t* columns) {
  std::string tables, features;
  std::vector<int64_t> dims;
  for (int64_t t = dice.number(1, 4); t > 0; --t) {
    const int64_t rows = dice.number(1, 12);
    dims.push_back(dice.number(1, 9));
    tables += base::format(R"({}{{"rows":{},"dim":{},"padding":{}}})", tables.empty() ? "" : ",", rows, dims.back(),
                           dice.one_in(3) ? dice.number(0, rows - 1) : -1);
  }
  *columns = 0;
  for (int64_t f = dice.number(1, 7); f > 0; --f) {
    const int64_t table = dice.number(0, std::ssize(dims) - 1), dim = dims[static_cast<size_t>(table)];
    const int64_t first = dice.one_in(2) ? 0 : dice.number(0, dim - 1), width = dice.number(1, dim - first);
    features += base::format(R"({}{{"table":{},"rank":{},"first":{},"width":{},"column":{}}})",
                             features.empty() ? "" : ",", table, dice.number(0, ranks - 1), first, width, *columns);
    *columns += width;
  }
  return base::format(R"({{"tables":[{}],"features":[{}]}})", tables, features);
}

/// A problem of embedding_a2a, how its bags are pooled, and a schedule.
struct BagCase {
  BagVariant v;
  spec::OpSpec op;
  std::string family;
  int degree = 1;

  std::string text() const {
    std::string rows;
    for (const int64_t o : v.row_offsets) rows += " " + std::to_string(o);
    return base::format("embedding_a2a {} q {} B {} {} {} {}->{} {}{}{} {}", family, degree, op.m, v.mode, v.bounds,
                        dtype_name(v.dtype), dtype_name(v.out_dtype), dtype_name(v.index),
                        v.has_factors ? " factors" : "", rows.empty() ? "" : " rows" + rows,
                        std::get<std::string>(op.fields.at("placement")));
  }
};

/// Any placement, family, degree, split of the batch (empty parts and none), types, mode, bounds and factors.
inline BagCase draw_bags(Dice& dice, int ranks, const std::vector<std::string>& families) {
  static constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16, DType::fp64};
  static constexpr const char* kModes[] = {"sum", "mean", "max"};
  static constexpr const char* kBounds[] = {"error", "ignore", "clamp", "zero_row", "none"};
  BagCase c;
  c.family = dice.of(families);
  c.degree = static_cast<int>(dice.number(1, 5));
  const int64_t batch = dice.one_in(12) ? 0 : dice.number(1, 40);
  c.v.mode = dice.of(kModes), c.v.bounds = dice.of(kBounds);
  c.v.dtype = dice.of(kTypes), c.v.out_dtype = dice.one_in(2) || c.v.dtype == DType::fp64 ? c.v.dtype : DType::fp32;
  c.v.index = dice.one_in(2) ? DType::i32 : DType::i64;
  c.v.has_factors = c.v.mode == "sum" && dice.one_in(2);
  if (dice.one_in(3)) c.v.row_offsets = ragged(dice, batch, ranks);
  int64_t columns = 0;
  const std::string placement = draw_placement(dice, ranks, &columns);
  c.op = bag_problem(ranks, batch, c.v, placement, columns);
  return c;
}

/// Families that give a result and that CPU ranks run.
inline Families families_here() {
  Families out;
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    if (runtime.world().rank() != 0) return;
    std::vector<spec::OpSpec> problems = {bag_problem(2, 8)};
    for (const char* op : kDenseOps) {
      spec::OpSpec problem{.op = op, .m = 8, .n = 8, .k = 8, .ranks = 2, .row_offsets = {}};
      problem.dtype = problem.out_dtype = DType::fp32;
      problems.push_back(problem);
    }
    for (const spec::OpSpec& problem : problems) {
      for (const std::string& family : spec::families(problem.op)) {
        if (family == "compute" || family == "comm" || family == "limit") continue;
        const spec::Schedule schedule = spec::make_schedule(problem, family, 1);
        if (ops::supports(runtime.world().channel(StreamRef::cpu()), problem, schedule).ok())
          out[problem.op].push_back(family);
      }
    }
  });
  return out;
}

}  // namespace overlace::test
