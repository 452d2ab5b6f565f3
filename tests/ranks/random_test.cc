// Operators, schedules, shapes, types, teams and adversaries drawn at random. OVERLACE_TEST_SEEDS="COUNT@FIRST" says
// how many teams are drawn and from which seed on; a team makes kDraws draws, and a failure names the one seed that
// draws its team again.
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>

#include "tests/ranks/draws.h"
#include "tests/ranks/support/seeds.h"

namespace overlace::test {
namespace {

constexpr int kDraws = 25;

/// One rank's operands of a drawn call.
struct Prepared {
  spec::OpSpec problem;
  spec::Schedule schedule;
  std::function<std::string(int64_t seed)> wrong;  // calls with the data of a seed; what is wrong then, in words
  std::function<std::vector<char>()> bytes;        // of the result
};

struct Draw {
  std::string op, family, text;
  std::function<Prepared(Channel&)> prepare;
};

/// What one seed stands for.
struct TeamDraws {
  uint64_t seed = 0;
  int ranks = 1;
  Mode mode = Mode::threads;
  std::vector<Draw> draws;
};

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

/// Exact data are small integers, whose sums have the same bits in any order; else they are normal.
std::string wrong(Operands& operands, bool is_exact, int ranks, int64_t seed) {
  is_exact ? operands.fill(seed) : operands.fill_normal(seed);
  operands.run();
  if (is_exact) return operands.mismatch();
  const Operands::Errors errors = operands.errors();
  const double bound = error_bound(operands.what(), ranks, errors.terms);
  if (errors.error <= bound) return "";
  return operands.what().text() + ": error " + std::to_string(errors.error) + ", wanted at most " +
         std::to_string(bound);
}

Draw draw_dense(Dice& dice, int ranks, const Families& families) {
  const Case c = draw_case(dice, ranks, families);
  const bool is_exact = !dice.one_in(4);
  return {c.op, c.family, c.text(), [c, is_exact, ranks](Channel& channel) -> Prepared {
            const auto operands = std::make_shared<Operands>(c, channel);
            return {operands->problem(), operands->schedule(),
                    [=](int64_t seed) { return wrong(*operands, is_exact, ranks, seed); },
                    [=] { return operands->out().bytes(); }};
          }};
}

Draw draw_embedding(Dice& dice, int ranks, const Families& families) {
  const BagCase c = draw_bags(dice, ranks, families.at("embedding_a2a"));
  return {c.op.op, c.family, c.text(), [c](Channel& channel) -> Prepared {
            const spec::Schedule schedule = spec::make_schedule(c.op, c.family, c.degree);
            const auto call = std::make_shared<BagCall>(channel, schedule, c.v);
            return {c.op, schedule, [=](int64_t seed) { return call->run(seed); }, [=] { return call->bytes(); }};
          }};
}

TeamDraws draw_team(uint64_t seed, const Families& families) {
  Dice dice(seed);
  TeamDraws out;
  out.seed = seed;
  out.ranks = static_cast<int>(dice.number(1, 8));
  out.mode = dice.one_in(2) ? Mode::threads_adversary : Mode::threads;
  if (dice.one_in(16) && kHasProcesses) out.mode = Mode::processes;
  for (int i = 0; i < kDraws; ++i) {
    const auto draw = dice.one_in(7) ? draw_embedding : draw_dense;
    out.draws.push_back(draw(dice, out.ranks, families));
  }
  return out;
}

/// Two by two, so that calls of different schedules alternate; each twice on the same data, for the same bits.
void run_draws(Runtime& runtime, const TeamDraws& team) {
  Channel& channel = runtime.world().channel(StreamRef::cpu());
  const std::string again = "\nOVERLACE_TEST_SEEDS=1@" + std::to_string(team.seed) + " draws this again; draw ";
  for (size_t first = 0; first < team.draws.size(); first += 2) {
    std::vector<Prepared> pair;
    for (size_t i = first; i < std::min(first + 2, team.draws.size()); ++i) {
      pair.push_back(team.draws[i].prepare(channel));
      const ops::Support support = ops::supports(channel, pair.back().problem, pair.back().schedule);
      ASSERT_TRUE(support.ok()) << team.draws[i].text << ": " << support.reason << again << i;
    }
    std::vector<std::vector<char>> before(pair.size());
    for (const bool is_second : {false, true}) {
      for (size_t i = 0; i < pair.size(); ++i) {
        const Draw& d = team.draws[first + i];
        ASSERT_EQ(pair[i].wrong(static_cast<int64_t>(first + i)), "") << d.text << again << first + i;
        std::vector<char> bytes = pair[i].bytes();
        ASSERT_TRUE(!is_second || bytes == before[i]) << "other bits: " << d.text << again << first + i;
        before[i] = std::move(bytes);
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
  ASSERT_EQ(families.size(), 7u);
  for (const auto& [op, names] : families) ASSERT_GE(names.size(), op == "embedding_a2a" ? 3u : 5u) << op;
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
    for (const Draw& d : team.draws) ++counts[d.op + " " + d.family];
  }
  print_distribution(counts, chosen.first, chosen.count);
}

/// The long run stands on it: one seed, the same draws everywhere.
TEST(Random, ASeedSaysEverything) {
  const Families families = {{"ag_gemm", {"library", "serial"}}, {"ag_wgrad", {"library"}}, {"gemm_rs", {"library"}},
                             {"gemm_ar", {"library"}},           {"gemm_a2a", {"serial"}},  {"a2a_gemm", {"serial"}},
                             {"embedding_a2a", {"serial"}}};
  const TeamDraws team = draw_team(7, families), same = draw_team(7, families), other = draw_team(8, families);
  std::string texts, others;
  for (size_t i = 0; i < kDraws; ++i) {
    EXPECT_EQ(team.draws[i].text, same.draws[i].text);
    texts += team.draws[i].text;
    others += other.draws[i].text;
  }
  EXPECT_EQ(team.ranks, same.ranks);
  EXPECT_NE(texts, others);
}

}  // namespace
}  // namespace overlace::test
