// Operators, schedules, shapes, types, teams and adversaries drawn at random. OVERLACE_TEST_SEEDS="COUNT@FIRST" says
// how many teams are drawn and from which seed on; a team makes kDraws draws, and a failure names the one seed that
// draws its team again.
#include <cmath>
#include <cstdio>
#include <map>
#include <random>

#include "overlace/ops/common.h"
#include "src/spec/operators.h"
#include "tests/ranks/ops_cases.h"
#include "tests/ranks/support/seeds.h"

namespace overlace::test {
namespace {

constexpr int kDraws = 25;

struct Draw {
  Case what;
  bool is_exact = true;  // small integers, the same bits in any order; else normal data
};

/// What one seed stands for.
struct TeamDraws {
  uint64_t seed = 0;
  int ranks = 1;
  Mode mode = Mode::threads;
  std::vector<Draw> draws;
};

using Families = std::map<std::string, std::vector<std::string>>;  // by operator

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  /// From least to most. Not std::uniform_int_distribution, which draws otherwise in each library.
  int64_t number(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  bool one_in(int64_t n) { return number(1, n) == 1; }
  template <class List>
  auto of(const List& list) {
    return list[static_cast<size_t>(number(0, static_cast<int64_t>(std::size(list)) - 1))];
  }

 private:
  std::mt19937_64 random_;
};

/// Tails and odd multiples of 8.
int64_t extent(Dice& dice) { return dice.one_in(2) ? dice.number(1, 19) : 8 * (2 * dice.number(0, 2) + 1); }

std::vector<int64_t> ragged(Dice& dice, int64_t m, int ranks) {
  std::vector<int64_t> offsets = {0};
  for (int p = 1; p < ranks; ++p) offsets.push_back(dice.one_in(3) ? offsets.back() : dice.number(0, m));
  std::sort(offsets.begin(), offsets.end());
  offsets.push_back(m);
  return offsets;
}

spec::Params options_of(Dice& dice, int degree) {
  spec::Params options;
  if (dice.one_in(4)) options["align"] = dice.number(1, 9);
  if (dice.one_in(4)) options[dice.one_in(2) ? "align_n" : "align_k"] = dice.number(1, 16);
  if (dice.one_in(4)) options["ce_queues"] = dice.number(1, 4);
  if (dice.one_in(4) && degree % 2 == 0) options["own_degree"] = int64_t{2};
  if (dice.one_in(8)) options["credits"] = false;
  return options;
}

Draw draw(Dice& dice, int ranks, const Families& families) {
  static constexpr const char* kOps[] = {"ag_gemm", "ag_wgrad", "gemm_rs", "gemm_ar"};
  static constexpr std::pair<DType, DType> kTypes[] = {{DType::fp32, DType::fp32}, {DType::bf16, DType::bf16},
                                                       {DType::fp16, DType::fp16}, {DType::fp64, DType::fp64},
                                                       {DType::fp16, DType::fp32}, {DType::bf16, DType::fp32}};
  Draw out;
  Case& c = out.what;
  c.op = dice.of(kOps);
  c.family = dice.of(families.at(c.op));
  c.degree = static_cast<int>(dice.one_in(10) ? dice.number(9, 20) : dice.number(1, 8));
  c.options = options_of(dice, c.degree);
  if (c.family == "hierarchical") c.options["hosts"] = hosts_of(ranks, static_cast<size_t>(dice.number(0, 11)));
  c.m = dice.one_in(12) ? 0 : dice.number(1, 40);
  c.n = extent(dice);
  c.k = dice.one_in(20) && !spec::gathers(c.op) ? 0 : extent(dice);
  std::tie(c.in, c.out) = dice.of(kTypes);
  c.layout = dice.one_in(2) ? spec::BLayout::nk : spec::BLayout::kn;
  c.bias = dice.one_in(3) && c.op != "ag_wgrad";
  c.uneven = dice.one_in(3);
  c.gathered = dice.one_in(2);
  c.gap = dice.one_in(4) ? dice.number(1, 9) : 0;
  if (dice.one_in(4) && c.op != "gemm_ar") c.offsets = ragged(dice, c.m, ranks);
  const bool is_one_kernel = c.family == "k_slab" || c.family == "one_shot";  // which return A of ranks that have rows
  spec::OpSpec rows;
  rows.m = c.m;
  rows.ranks = ranks;
  rows.row_offsets = c.offsets;
  if (is_one_kernel && spec::has_empty_shard(rows)) c.gathered = false;
  out.is_exact = !dice.one_in(4);
  return out;
}

TeamDraws draw_team(uint64_t seed, const Families& families) {
  Dice dice(seed);
  TeamDraws out;
  out.seed = seed;
  out.ranks = static_cast<int>(dice.number(1, 8));
  out.mode = dice.one_in(2) ? Mode::threads_adversary : Mode::threads;
  if (dice.one_in(16) && kHasProcesses) out.mode = Mode::processes;
  for (int i = 0; i < kDraws; ++i) out.draws.push_back(draw(dice, out.ranks, families));
  return out;
}

/// Families that give a result and that CPU ranks run.
Families families_here() {
  Families out;
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    if (runtime.world().rank() != 0) return;
    for (const char* op : {"ag_gemm", "ag_wgrad", "gemm_rs", "gemm_ar"}) {
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

/// From the formats alone: fp32 (fp64) sums in any order, each rank's part rounded to the type of the result, then
/// the additions of the parts in that type, as a collective library may do.
double error_bound(const Case& c, int ranks, double terms) {
  const auto digits = [](DType t) { return t == DType::fp64 ? 53 : t == DType::fp32 ? 24 : t == DType::fp16 ? 11 : 8; };
  const int parts = spec::gathers(c.op) ? 1 : ranks;
  const double additions = static_cast<double>(((c.op == "ag_wgrad" ? c.m : c.k) + 2) * parts + 3);
  const double smallest = c.out == DType::fp16 ? std::ldexp(parts + 1, -24) : 0;  // where numbers are denormal
  return terms * (additions * std::ldexp(1, c.in == DType::fp64 ? -53 : -24) +
                  (parts + 2) * std::ldexp(1, -digits(c.out))) +
         smallest;
}

/// One call; what is wrong with its result, in words.
std::string wrong(Operands& operands, const Draw& d, int ranks, int64_t seed) {
  d.is_exact ? operands.fill(seed) : operands.fill_normal(seed);
  operands.run();
  if (d.is_exact) return operands.mismatch();
  const Operands::Errors errors = operands.errors();
  const double bound = error_bound(d.what, ranks, errors.terms);
  if (errors.error <= bound) return "";
  return d.what.text() + ": error " + std::to_string(errors.error) + ", wanted at most " + std::to_string(bound);
}

/// Two by two, so that calls of different schedules alternate; each twice on the same data, for the same bits.
void run_draws(Runtime& runtime, const TeamDraws& team) {
  Channel& channel = runtime.world().channel(StreamRef::cpu());
  const std::string again = "\nOVERLACE_TEST_SEEDS=1@" + std::to_string(team.seed) + " draws this again; draw ";
  for (size_t first = 0; first < team.draws.size(); first += 2) {
    std::vector<Operands> pair;
    for (size_t i = first; i < std::min(first + 2, team.draws.size()); ++i) {
      pair.emplace_back(team.draws[i].what, channel);
      const ops::Support support = ops::supports(channel, pair.back().problem(), pair.back().schedule());
      ASSERT_TRUE(support.ok()) << team.draws[i].what.text() << ": " << support.reason << again << i;
    }
    std::vector<std::vector<char>> before(pair.size());
    for (const bool is_second : {false, true}) {
      for (size_t i = 0; i < pair.size(); ++i) {
        const Draw& d = team.draws[first + i];
        ASSERT_EQ(wrong(pair[i], d, team.ranks, static_cast<int64_t>(first + i)), "") << again << first + i;
        ASSERT_TRUE(!is_second || pair[i].out().bytes() == before[i])
            << "other bits: " << d.what.text() << again << first + i;
        before[i] = pair[i].out().bytes();
      }
    }
  }
}

/// What was drawn, for people: how often each family and team size.
void print_distribution(const std::map<std::string, int>& counts, uint64_t first, int teams) {
  std::printf("random: %d teams with %d draws each, seeds %llu to %llu\n", teams, kDraws,
              static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first) + static_cast<unsigned>(teams) - 1);
  for (const auto& [name, count] : counts) std::printf("random: %-36s %d\n", name.c_str(), count);
}

TEST(Random, DrawnCallsGiveTheOraclesResultTwice) {
  const Families families = families_here();
  ASSERT_EQ(families.size(), 4u);
  for (const auto& [op, names] : families) ASSERT_GE(names.size(), 5u) << op;
  std::map<std::string, int> counts;
  const Seeds chosen = seeds();
  for (int i = 0; i < chosen.count && !HasFailure(); ++i) {
    const TeamDraws team = draw_team(chosen.first + static_cast<uint64_t>(i), families);
    RankOptions options;
    options.num_signal_ids = 4096;  // hierarchical: hosts * degree words of each sender
    if (team.mode == Mode::threads_adversary)
      options.adversary = AdversaryOptions::parse("delay_us=50,seed=" + std::to_string(team.seed));
    run_ranks(
        team.ranks, team.mode, [&](Runtime& runtime) { run_draws(runtime, team); }, options);
    ++counts["team of " + std::to_string(team.ranks)];
    ++counts[std::string("mode ") + mode_name(team.mode)];
    for (const Draw& d : team.draws) ++counts[d.what.op + " " + d.what.family];
  }
  print_distribution(counts, chosen.first, chosen.count);
}

/// The long run stands on it: one seed, the same draws everywhere.
TEST(Random, ASeedSaysEverything) {
  const Families families = {{"ag_gemm", {"library", "serial"}},
                             {"ag_wgrad", {"library"}},
                             {"gemm_rs", {"library"}},
                             {"gemm_ar", {"library"}}};
  const TeamDraws team = draw_team(7, families), same = draw_team(7, families), other = draw_team(8, families);
  std::string texts, others;
  for (size_t i = 0; i < kDraws; ++i) {
    EXPECT_EQ(team.draws[i].what.text(), same.draws[i].what.text());
    texts += team.draws[i].what.text();
    others += other.draws[i].what.text();
  }
  EXPECT_EQ(team.ranks, same.ranks);
  EXPECT_NE(texts, others);
}

}  // namespace
}  // namespace overlace::test
